#pragma once
// Decoder samples answers to prompts, many at once: continuous batching over one KvCache.
//
//   Add      a prompt is run through the model once, its keys and values copied to a row for each answer wanted
//   Step     every row gets its next token; finished rows leave, the last row takes the place of each, so that the rows in use are
//            always 0 … active()-1 and no step computes what nobody needs
//
// The weights may change between two steps: SetVersion says so, generation goes on with the keys and values at hand, and each
// answer knows which tokens came from which version.
//
// What is drawn from, and what log-probability is reported:
//   p = softmax(logits / temperature)                     logprob = log p[token]
//   q = p on the smallest set of tokens whose p adds up to top_p, scaled up       token ~ q
// so that the trainer, which knows the temperature, computes the same number; top_p is an edit of the distribution that no
// importance ratio should divide by. Temperature 0: the likeliest token, with its logprob at temperature 1.
//
// One thread. Seeded: the same model, order of calls and number of threads give the same answers.

#include <torch/types.h>

#include <cstdint>
#include <span>
#include <vector>

#include "trainer/model/transformer.h"

namespace replay::model {

struct SamplingOptions {
  double temperature = 1;         // 0, or from 0.0001 to 10,000
  double top_p = 1;               // in (0, 1]
  int64_t max_answer_tokens = 0;  // at least 1
  int32_t end_token = -1;         // the last token of an answer that ends by itself; -1: none does
};

struct TokenVersions {  // Tokens [begin, end) of an answer are of policy `version`.
  uint32_t begin = 0;
  uint32_t end = 0;
  int64_t version = 0;
};

struct Answer {
  uint64_t tag = 0;                // as given with Add
  uint32_t index = 0;              // among the answers of that call
  std::vector<int32_t> token_ids;  // with the end token, if it came to it
  std::vector<float> logprobs;     // [token_ids]
  std::vector<TokenVersions> versions;
  bool ended = false;  // by the end token; else by max_answer_tokens
};

class Decoder {
 public:
  // `model` outlives the decoder. At most `rows` answers at once, each with its prompt at most `capacity` tokens.
  Decoder(const Transformer& model, int64_t rows, int64_t capacity, const SamplingOptions& options, uint64_t seed);

  int64_t active() const { return static_cast<int64_t>(rows_.size()); }
  int64_t room() const { return cache_.rows() - active(); }
  // Of what is sampled from now on.
  void SetVersion(int64_t version) { version_ = version; }

  // Starts `count` answers, one or more, to each prompt, or none of all if it throws; needs room for all of them. Prompts of one
  // call are run together. A prompt is not empty, and leaves room for max_answer_tokens in the capacity.
  struct Job {
    std::span<const int32_t> prompt;
    uint32_t count = 1;
    uint64_t tag = 0;
  };
  void Add(const std::vector<Job>& jobs);

  // One token for each row; the answers that are complete with it.
  std::vector<Answer> Step();
  // Steps until nothing is active.
  std::vector<Answer> Finish();

  uint64_t tokens_sampled() const { return tokens_sampled_; }

 private:
  struct Row {
    Answer answer;
    int64_t length = 0;      // tokens whose keys and values are in the cache
    int32_t next_token = 0;  // sampled, not yet run through the model
  };

  // Samples a token for each row of logits [rows, vocab]: ids [rows], log-probabilities [rows].
  std::pair<torch::Tensor, torch::Tensor> Sample(const torch::Tensor& logits);
  std::pair<torch::Tensor, torch::Tensor> SortDown(const torch::Tensor& probabilities) const;
  // Gives each row its token; the answers that are complete are moved out.
  void Take(const torch::Tensor& logits, int64_t first_row, std::vector<Answer>* complete);
  void RemoveRow(size_t row);

  const Transformer& model_;
  const SamplingOptions options_;
  KvCache cache_;
  torch::Generator random_;
  std::vector<Row> rows_;
  std::vector<Answer> complete_at_once_;  // answers of one token, complete with Add
  int64_t version_ = 0;
  uint64_t tokens_sampled_ = 0;
};

}  // namespace replay::model
