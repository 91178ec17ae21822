#include "trainer/model/decoder.h"

#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <tuple>
#include <utility>

namespace replay::model {

using torch::Tensor;

namespace {

// The largest part of a vocabulary that is looked through before all of it is sorted, see Sample.
constexpr int64_t kLikeliest = 256;

const SamplingOptions& Checked(const SamplingOptions& options, const ModelConfig& config) {
  TORCH_CHECK(options.max_answer_tokens >= 1, "max_answer_tokens is ", options.max_answer_tokens, ": must be at least 1");
  // Lower ones would divide logits beyond the range of float.
  TORCH_CHECK(options.temperature == 0 || (options.temperature >= 1e-4 && options.temperature <= 1e4), "temperature is ",
              options.temperature, ": must be 0 or from 0.0001 to 10000");
  TORCH_CHECK(options.top_p > 0 && options.top_p <= 1, "top_p is ", options.top_p, ": must be in (0, 1]");
  TORCH_CHECK(options.end_token >= -1 && options.end_token < config.vocab_size, "end_token is ", options.end_token,
              ": must be -1 or below ", config.vocab_size, ", the size of the vocabulary");
  return options;
}

}  // namespace

Decoder::Decoder(const Transformer& model, int64_t rows, int64_t capacity, const SamplingOptions& options, uint64_t seed)
    : model_(model),
      options_(Checked(options, model.config())),
      cache_(model, rows, capacity),
      random_(at::detail::createCPUGenerator(seed)) {}

void Decoder::Add(const std::vector<Job>& jobs) {
  const c10::InferenceMode no_gradients;
  if (jobs.empty()) return;
  int64_t longest = 0, wanted = 0;
  const int64_t vocab_size = model_.config().vocab_size;
  for (const Job& job : jobs) {
    TORCH_CHECK(!job.prompt.empty(), "a prompt of 0 tokens: must be at least 1");
    TORCH_CHECK(job.count >= 1, "0 answers wanted to a prompt: must be at least 1");
    for (const int32_t id : job.prompt)
      TORCH_CHECK(id >= 0 && id < vocab_size, "token id ", id, " of a prompt: the vocabulary has ", vocab_size);
    longest = std::max<int64_t>(longest, static_cast<int64_t>(job.prompt.size()));
    wanted += job.count;
  }
  TORCH_CHECK(longest + options_.max_answer_tokens <= cache_.capacity(), "a prompt of ", longest, " tokens and an answer of ",
              options_.max_answer_tokens, " do not fit into ", cache_.capacity());
  TORCH_CHECK(wanted <= room(), wanted, " answers wanted, there is room for ", room());

  // The prompts side by side, padded on the right: what the padding leaves in the cache lies behind their ends.
  const auto count = static_cast<int64_t>(jobs.size());
  const Tensor ids = torch::zeros({count, longest}, torch::kInt64);
  const Tensor last = torch::empty({count}, torch::kInt64);
  for (int64_t i = 0; i < count; ++i) {
    const Job& job = jobs[static_cast<size_t>(i)];
    std::copy(job.prompt.begin(), job.prompt.end(), ids.data_ptr<int64_t>() + i * longest);
    last.data_ptr<int64_t>()[i] = static_cast<int64_t>(job.prompt.size()) - 1;
  }
  KvCache prompts(model_, count, longest);
  const auto device = model_.device();
  const Tensor hidden = model_.Forward(ids.to(device), &prompts);
  const Tensor logits = model_.Logits(hidden.index({torch::arange(count).to(device), last.to(device)}));  // [prompts, vocab]

  const auto first_row = static_cast<int64_t>(rows_.size());
  std::vector<int64_t> prompt_of_row;
  for (int64_t i = 0; i < count; ++i) {
    const Job& job = jobs[static_cast<size_t>(i)];
    std::vector<int64_t> to;
    for (uint32_t index = 0; index < job.count; ++index) {
      to.push_back(static_cast<int64_t>(rows_.size()));
      Row& row = rows_.emplace_back();
      row.answer.tag = job.tag;
      row.answer.index = index;
      row.length = static_cast<int64_t>(job.prompt.size());
      prompt_of_row.push_back(i);
    }
    cache_.CopyRow(prompts, i, to, static_cast<int64_t>(job.prompt.size()));
  }
  Take(logits.index_select(0, torch::tensor(prompt_of_row, torch::kInt64).to(device)), first_row, &complete_at_once_);
}

std::vector<Answer> Decoder::Step() {
  const c10::InferenceMode no_gradients;
  std::vector<Answer> complete = std::exchange(complete_at_once_, {});
  if (rows_.empty()) return complete;
  const int64_t count = active();
  const Tensor ids = torch::empty({count, 1}, torch::kInt64), lengths = torch::empty({count}, torch::kInt64);
  int64_t longest = 0;
  for (int64_t i = 0; i < count; ++i) {
    const Row& row = rows_[static_cast<size_t>(i)];
    ids.data_ptr<int64_t>()[i] = row.next_token;
    lengths.data_ptr<int64_t>()[i] = row.length;
    longest = std::max(longest, row.length + 1);
  }
  const auto device = model_.device();
  const Tensor hidden = model_.Extend(ids.to(device), lengths.to(device), longest, &cache_);
  for (Row& row : rows_) ++row.length;
  Take(model_.Logits(hidden.squeeze(1)), 0, &complete);
  return complete;
}

std::vector<Answer> Decoder::Finish() {
  std::vector<Answer> all;
  while (!rows_.empty() || !complete_at_once_.empty()) {
    for (Answer& answer : Step()) all.push_back(std::move(answer));
  }
  return all;
}

std::pair<Tensor, Tensor> Decoder::Sample(const Tensor& logits) {
  const bool greedy = options_.temperature == 0;
  const Tensor logprobs = torch::log_softmax(
      greedy || options_.temperature == 1 ? logits.to(torch::kFloat32) : logits.to(torch::kFloat32) / options_.temperature, -1);
  Tensor chosen;  // [rows, 1]
  if (greedy) {
    chosen = logprobs.argmax(-1, /*keepdim=*/true);
  } else {
    Tensor weights = logprobs.exp(), order;
    if (options_.top_p < 1) {
      std::tie(weights, order) = SortDown(weights);
      // A token stays while what is likelier than it adds up to less than top_p: the likeliest always does.
      weights = weights * ((weights.cumsum(-1) - weights) < options_.top_p);
    }
    // The first token at which the sum reaches a share in (0, 1] of the whole: never one of weight 0. In doubles, so that no token
    // of a large vocabulary is lost; one random number for each row, from the CPU's generator on every device.
    const Tensor sums = weights.cumsum(-1, torch::kFloat64);
    const Tensor share = 1 - torch::rand({weights.size(0), 1}, random_, torch::kFloat64).to(weights.device());
    chosen = torch::searchsorted(sums, share * sums.narrow(-1, -1, 1));
    if (order.defined()) chosen = order.gather(-1, chosen);
  }
  return {chosen.squeeze(-1), logprobs.gather(-1, chosen).squeeze(-1)};
}

// The likeliest tokens of each row, falling, with their ids: at least those that reach top_p.
std::pair<Tensor, Tensor> Decoder::SortDown(const Tensor& probabilities) const {
  if (probabilities.size(-1) > kLikeliest) {
    const auto [likeliest, ids] = probabilities.topk(kLikeliest);
    if ((likeliest.sum(-1) >= options_.top_p).all().item<bool>()) return {likeliest, ids};
  }
  const auto [sorted, ids] = probabilities.sort(-1, /*descending=*/true);
  return {sorted, ids};
}

void Decoder::Take(const Tensor& logits, int64_t first_row, std::vector<Answer>* complete) {
  const auto [chosen, logprobs] = Sample(logits);
  const Tensor ids = chosen.to(torch::kCPU).contiguous(), values = logprobs.to(torch::kCPU).contiguous();
  const auto count = static_cast<size_t>(ids.size(0));
  tokens_sampled_ += count;
  for (size_t i = 0; i < count; ++i) {
    Row& row = rows_[static_cast<size_t>(first_row) + i];
    Answer& answer = row.answer;
    const auto token = static_cast<int32_t>(ids.data_ptr<int64_t>()[i]);
    const auto at = static_cast<uint32_t>(answer.token_ids.size());
    answer.token_ids.push_back(token);
    answer.logprobs.push_back(values.data_ptr<float>()[i]);
    if (answer.versions.empty() || answer.versions.back().version != version_) answer.versions.push_back({at, at, version_});
    answer.versions.back().end = at + 1;
    answer.ended = token == options_.end_token;
    row.next_token = token;
  }
  for (size_t i = rows_.size(); i-- > static_cast<size_t>(first_row);) {
    Answer& answer = rows_[i].answer;
    if (!answer.ended && static_cast<int64_t>(answer.token_ids.size()) < options_.max_answer_tokens) continue;
    complete->push_back(std::move(answer));
    RemoveRow(i);
  }
}

void Decoder::RemoveRow(size_t row) {
  if (row + 1 < rows_.size()) {
    rows_[row] = std::move(rows_.back());
    cache_.CopyRow(cache_, static_cast<int64_t>(rows_.size()) - 1, {static_cast<int64_t>(row)}, rows_[row].length);
  }
  rows_.pop_back();
}

}  // namespace replay::model
