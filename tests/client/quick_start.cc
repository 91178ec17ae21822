// The quick start of replay/client.h's first comment, line by line, so that it compiles.
#include <cmath>
#include <iostream>
#include <span>
#include <vector>

#include "replay/client.h"

using namespace std::chrono_literals;

namespace {

int64_t g_tokens_trained = 0;
void Train(std::span<const int32_t> token_ids) { g_tokens_trained += static_cast<int64_t>(token_ids.size()); }

std::vector<replay::Trajectory> MakeGroup() {
  replay::Trajectory rollout;
  rollout.trajectory_id = "step12-prompt7-2";  // empty: the client makes one up
  rollout.token_ids = {1, 15, 9, 204, 2};      // [L] prompt and response
  rollout.prompt_length = 2;
  rollout.loss_mask = {0, 0, 1, 1, 1};                           // [L]
  rollout.behaviour_logprobs = {NAN, NAN, -0.1f, -2.3f, -0.7f};  // [L], NaN where not generated
  rollout.version_segments = {{2, 5, 12}};                       // tokens [2, 5) came from policy version 12
  rollout.reward = 1.0f;
  rollout.correct = replay::Correctness::kYes;
  return {rollout};
}

}  // namespace

int main(int argc, char** argv) {
  replay::Client client({.address = argc > 1 ? argv[1] : "127.0.0.1:7070"});
  if (auto made = client.CreateBuffer("rollouts", {.capacity_items = 2268, .policy = "positive_bias", .delta = "0.25"});
      !made) {
    std::cerr << made.error().ToString() << "\n";
    return 1;
  }

  const std::vector<replay::Trajectory> group = MakeGroup();
  auto writer = client.NewWriter("rollouts");  // generator
  if (auto queued = writer->InsertGroup(group); !queued) std::cerr << queued.error().ToString() << "\n";
  if (auto done = writer->Flush(5s); !done) std::cerr << done.error().ToString() << "\n";

  const int64_t steps = argc > 2 ? std::stoll(argv[2]) : 1000;
  auto sampler = client.NewSampler("rollouts", {.count = 64, .prefetch = 2});  // trainer
  for (int64_t step = 12; step < 12 + steps; ++step) {
    auto batch = sampler->Next(step, 30s);
    if (!batch) {  // says why: "12 of 64 items present"
      std::cerr << batch.error().ToString() << "\n";
      continue;
    }
    for (const replay::Draw& draw : batch->draws) Train(batch->trajectory(draw).token_ids());
    client.PublishVersion({.version = step + 1, .step = step + 1});
  }
  std::cout << g_tokens_trained << " tokens trained on\n";
}
