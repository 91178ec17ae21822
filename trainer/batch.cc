#include "trainer/batch.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <variant>

namespace replay::trainer {

using torch::Tensor;

namespace {

// Nothing that was sampled is as unlikely as e^-40 = 4e-18; engines write -inf or -9999 for tokens that they were made to say.
// Above it the ratio pi / pi_old is at most 2e17, whose square single precision holds: one bad row must not cost the batch.
constexpr float kLeastLogprob = -40;

}  // namespace

AnsweredPrompt::AnsweredPrompt(std::span<const int32_t> prompt, std::span<const int32_t> answer)
    : token_ids_(prompt.begin(), prompt.end()), loss_mask_(prompt.size(), 0), logprobs_(prompt.size() + answer.size(), 0) {
  token_ids_.insert(token_ids_.end(), answer.begin(), answer.end());
  loss_mask_.resize(token_ids_.size(), 1);
}

Row AnsweredPrompt::row() const {
  return {.token_ids = token_ids_, .loss_mask = loss_mask_, .behaviour_logprobs = logprobs_, .advantages = {}};
}

Row RowOf(const TrajectoryView& trajectory) {
  Row row;
  row.token_ids = trajectory.token_ids();
  row.loss_mask = trajectory.loss_mask();
  row.behaviour_logprobs = trajectory.behaviour_logprobs();
  constexpr float kNone = std::numeric_limits<float>::quiet_NaN();
  const auto advantage = trajectory.advantage();
  row.advantage = kNone;
  if (const auto* scalar = std::get_if<float>(&advantage)) row.advantage = *scalar;
  if (const auto* per_token = std::get_if<std::span<const float>>(&advantage)) row.advantages = *per_token;
  row.reward = trajectory.reward();
  row.group_mean = trajectory.named_reward("group_mean").value_or(kNone);
  row.temperature = trajectory.temperature();
  return row;
}

std::string CheckRow(const Row& row, int64_t vocab_size, int64_t context, const LossOptions& loss) {
  using std::to_string;
  const size_t length = row.token_ids.size();
  if (length < 2) return "it has " + to_string(length) + " tokens: at least 2 are needed";
  if (static_cast<int64_t>(length) > context)
    return "it has " + to_string(length) + " tokens: the model's context is " + to_string(context);
  if (row.loss_mask.size() != length || row.behaviour_logprobs.size() != length ||
      (!row.advantages.empty() && row.advantages.size() != length))
    return "it has " + to_string(length) + " tokens, a loss mask of " + to_string(row.loss_mask.size()) + ", " +
           to_string(row.behaviour_logprobs.size()) + " log-probabilities and " + to_string(row.advantages.size()) +
           " advantages: one each for every token, or no advantages";
  if (row.loss_mask[0] != 0) return "its first token is to be trained on: nothing predicts it";
  for (size_t i = 0; i < length; ++i) {
    if (row.token_ids[i] < 0 || row.token_ids[i] >= vocab_size)
      return "token id " + to_string(row.token_ids[i]) + " at " + to_string(i) + ": the vocabulary has " +
             to_string(vocab_size);
    // NaN fails too.
    if (row.loss_mask[i] != 0 && !(row.behaviour_logprobs[i] <= 0 && row.behaviour_logprobs[i] >= kLeastLogprob))
      return "log-probability " + to_string(row.behaviour_logprobs[i]) + " at " + to_string(i) + ": must be from " +
             to_string(static_cast<int>(kLeastLogprob)) + " to 0 where the loss mask is 1";
    if (row.loss_mask[i] != 0 && !row.advantages.empty() && !std::isfinite(row.advantages[i]))
      return "advantage " + to_string(row.advantages[i]) + " at " + to_string(i) + ": must be finite";
  }
  if (!std::isfinite(row.reward)) return "reward is " + to_string(row.reward) + ": must be finite";
  if (!(row.temperature >= 0 && std::isfinite(row.temperature)))
    return "temperature is " + to_string(row.temperature) + ": must be finite and at least 0";
  const bool by_reward = loss.kind == "asymre", by_advantage = loss.kind == "grpo" || loss.kind == "reinforce";
  if (by_reward && !std::isfinite(row.group_mean)) return "it has no named reward \"group_mean\", which the loss asymre needs";
  if (by_advantage && row.advantages.empty() && !std::isfinite(row.advantage))
    return "it has no advantage, which the loss " + loss.kind + " needs";
  return "";
}

std::vector<MicroBatch> MakeMicroBatches(std::span<const Row> rows, int64_t max_tokens, torch::Device device,
                                         Normalizer* normalizer) {
  std::vector<size_t> order;
  for (size_t i = 0; i < rows.size(); ++i)
    if (std::any_of(rows[i].loss_mask.begin(), rows[i].loss_mask.end(), [](uint8_t bit) { return bit != 0; }))
      order.push_back(i);
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return rows[a].token_ids.size() > rows[b].token_ids.size(); });

  *normalizer = {.sequences = static_cast<double>(order.size())};
  std::vector<MicroBatch> batches;
  for (size_t begin = 0; begin < order.size();) {
    // Longest first: the first row of a part says how much each of them takes.
    const auto t = static_cast<int64_t>(rows[order[begin]].token_ids.size()) - 1;
    const size_t count = std::min(order.size() - begin, static_cast<size_t>(std::max<int64_t>(1, max_tokens / t)));
    const auto b = static_cast<int64_t>(count);
    const Tensor ids = torch::zeros({b, t}, torch::kInt64);
    const Tensor mask = torch::zeros({b, t}), behaviour = torch::zeros({b, t}), advantage = torch::zeros({b, t});
    const Tensor reward = torch::empty({b}), mean = torch::empty({b});
    std::vector<int64_t> positions, targets;
    std::vector<float> temperature;
    for (int64_t r = 0; r < b; ++r) {
      const Row& row = rows[order[begin + static_cast<size_t>(r)]];
      std::copy(row.token_ids.begin(), row.token_ids.end() - 1, ids.data_ptr<int64_t>() + r * t);
      for (size_t i = 1; i < row.token_ids.size(); ++i) {
        if (row.loss_mask[i] == 0) continue;
        const int64_t at = r * t + static_cast<int64_t>(i) - 1;
        mask.data_ptr<float>()[at] = 1;
        behaviour.data_ptr<float>()[at] = row.behaviour_logprobs[i];
        advantage.data_ptr<float>()[at] = row.advantages.empty() ? row.advantage : row.advantages[i];
        positions.push_back(at);
        targets.push_back(row.token_ids[i]);
        temperature.push_back(row.temperature > 0 ? row.temperature : 1);
      }
      reward.data_ptr<float>()[r] = row.reward;
      mean.data_ptr<float>()[r] = row.group_mean;
    }
    normalizer->tokens += static_cast<double>(positions.size());
    batches.push_back({.ids = ids.to(device),
                       .positions = torch::tensor(positions).to(device),
                       .targets = torch::tensor(targets).to(device),
                       .temperature = torch::tensor(temperature).to(device),
                       .loss = {.logprobs = {},
                                .behaviour_logprobs = behaviour.to(device),
                                .mask = mask.to(device),
                                .advantage = advantage.to(device),
                                .reward = reward.to(device),
                                .group_mean = mean.to(device),
                                .reference_logprobs = {}}});
    begin += count;
  }
  return batches;
}

Tensor TargetLogprobs(const model::Transformer& transformer, const Tensor& hidden, const MicroBatch& batch,
                      double* entropy_sum) {
  const Tensor logits = transformer.Logits(hidden.flatten(0, 1).index_select(0, batch.positions));  // [n, vocab]
  const Tensor logprobs = torch::log_softmax(logits.to(torch::kFloat32) / batch.temperature.unsqueeze(1), -1);
  if (entropy_sum != nullptr) {
    const torch::NoGradGuard no_grad;
    *entropy_sum = -(logprobs.exp() * logprobs).sum().item<double>();
  }
  const Tensor chosen = logprobs.gather(-1, batch.targets.unsqueeze(-1)).squeeze(-1);  // [n]
  return torch::zeros({batch.ids.numel()}, chosen.options()).index_copy(0, batch.positions, chosen).view(batch.ids.sizes());
}

}  // namespace replay::trainer
