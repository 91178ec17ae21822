#include "trainer/batch.h"

#include <algorithm>
#include <numeric>

namespace replay::trainer {

using torch::Tensor;

std::string CheckRow(const Row& row, int64_t vocab_size, int64_t context) {
  const size_t length = row.token_ids.size();
  if (length < 2) return "it has " + std::to_string(length) + " tokens: at least 2 are needed";
  if (static_cast<int64_t>(length) > context)
    return "it has " + std::to_string(length) + " tokens: the model's context is " + std::to_string(context);
  if (row.loss_mask.size() != length || row.behaviour_logprobs.size() != length)
    return "it has " + std::to_string(length) + " tokens, a loss mask of " + std::to_string(row.loss_mask.size()) + " and " +
           std::to_string(row.behaviour_logprobs.size()) + " log-probabilities";
  if (row.loss_mask[0] != 0) return "its first token is to be trained on, which nothing predicts";
  for (size_t i = 0; i < length; ++i) {
    if (row.token_ids[i] < 0 || row.token_ids[i] >= vocab_size)
      return "token id " + std::to_string(row.token_ids[i]) + " at " + std::to_string(i) + ": the vocabulary has " + std::to_string(vocab_size);
    if (row.loss_mask[i] != 0 && !(row.behaviour_logprobs[i] <= 0))
      return "log-probability " + std::to_string(row.behaviour_logprobs[i]) + " at " + std::to_string(i) + ": must be at most 0 where the loss mask is 1";
  }
  return "";
}

std::vector<MicroBatch> MakeMicroBatches(std::span<const Row> rows, int64_t max_tokens, torch::Device device, Normalizer* normalizer) {
  std::vector<size_t> order;
  for (size_t i = 0; i < rows.size(); ++i)
    if (std::any_of(rows[i].loss_mask.begin(), rows[i].loss_mask.end(), [](uint8_t bit) { return bit != 0; })) order.push_back(i);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return rows[a].token_ids.size() > rows[b].token_ids.size(); });

  *normalizer = {};
  normalizer->sequences = static_cast<double>(order.size());
  std::vector<MicroBatch> batches;
  for (size_t begin = 0; begin < order.size();) {
    // Longest first: the first row of a part says how much each of them takes.
    const auto longest = static_cast<int64_t>(rows[order[begin]].token_ids.size());
    const size_t count = std::min(order.size() - begin, static_cast<size_t>(std::max<int64_t>(1, max_tokens / longest)));
    const auto b = static_cast<int64_t>(count), t = longest - 1;
    const Tensor ids = torch::zeros({b, longest}, torch::kInt64), mask = torch::zeros({b, t}), behaviour = torch::zeros({b, t});
    const Tensor advantage = torch::empty({b}), reward = torch::empty({b}), mean = torch::empty({b}), temperature = torch::empty({b});
    for (int64_t r = 0; r < b; ++r) {
      const Row& row = rows[order[begin + static_cast<size_t>(r)]];
      const auto length = static_cast<int64_t>(row.token_ids.size());
      std::copy(row.token_ids.begin(), row.token_ids.end(), ids.data_ptr<int64_t>() + r * longest);
      std::copy(row.loss_mask.begin() + 1, row.loss_mask.end(), mask.data_ptr<float>() + r * t);
      std::copy(row.behaviour_logprobs.begin() + 1, row.behaviour_logprobs.end(), behaviour.data_ptr<float>() + r * t);
      normalizer->tokens += static_cast<double>(std::accumulate(row.loss_mask.begin(), row.loss_mask.begin() + length, 0));
      advantage.data_ptr<float>()[r] = row.advantage;
      reward.data_ptr<float>()[r] = row.reward;
      mean.data_ptr<float>()[r] = row.group_mean;
      temperature.data_ptr<float>()[r] = row.temperature > 0 ? row.temperature : 1;
    }
    MicroBatch& batch = batches.emplace_back();
    batch.ids = ids.to(device);
    batch.targets = ids.narrow(1, 1, t).to(device);
    batch.temperature = temperature.to(device);
    batch.loss = {.behaviour_logprobs = behaviour.to(device),
                  .mask = mask.to(device),
                  .advantage = advantage.to(device),
                  .reward = reward.to(device),
                  .group_mean = mean.to(device)};
    begin += count;
  }
  return batches;
}

Tensor TargetLogprobs(const Tensor& logits, const MicroBatch& batch, Tensor* entropy_sum) {
  const Tensor logprobs = torch::log_softmax(logits.to(torch::kFloat32) / batch.temperature.view({-1, 1, 1}), -1);
  if (entropy_sum != nullptr) {
    const torch::NoGradGuard no_grad;
    *entropy_sum = -((logprobs.exp() * logprobs).sum(-1) * batch.loss.mask).sum();
  }
  return logprobs.gather(-1, batch.targets.unsqueeze(-1)).squeeze(-1);
}

}  // namespace replay::trainer
