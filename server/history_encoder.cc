// The reply of codec.h that lists prompts.

#include "schema/protocol.capnp.h"
#include "server/codec.h"

namespace replay::server {

void ReplyEncoder::History(uint64_t id, std::span<const PromptOutcomes> prompts, bool more, OutputQueue& output) {
  const auto count = static_cast<uint32_t>(prompts.size());
  auto reply = builder_.Start<schema::Reply>(16 + 5 * count);
  reply.setId(id);
  auto history = reply.initHistory();
  history.setMore(more);
  auto list = history.initPrompts(count);
  for (uint32_t i = 0; i < count; ++i) {
    list[i].setDatasetIndex(prompts[i].dataset_index);
    list[i].setRollouts(prompts[i].rollouts);
    list[i].setScored(prompts[i].scored);
    list[i].setCorrect(prompts[i].correct);
    list[i].setRewardSum(prompts[i].reward_sum);
  }
  output.AddBytes(builder_.Finish(0));
}

}  // namespace replay::server
