#pragma once
// Which prompts are held out, and tasks that make their prompts up.
//
//   held out = hash of the content divides by 16        the same in every process, whatever was asked for before
//
// Random numbers go through the functions here: the distributions of <random> differ between standard libraries, and with them
// the prompts of a seed would.

#include <set>
#include <string_view>
#include <utility>

#include "generator/task.h"

namespace replay {

uint64_t HashOf(std::string_view content);
bool IsHeldOut(std::string_view content);

// 0 … bound - 1, for bounds so small (at most 2^32) that the remainder's bias of bound / 2^64 is nothing.
int64_t Below(std::mt19937_64& random, int64_t bound);
// In (0, 1): never 0, so that its logarithm is finite.
double Unit(std::mt19937_64& random);

// A Task or TextTask whose prompts are made up: what it derives from needs RandomPrompt only.
template <typename Base>
class MadeUp : public Base {
 public:
  Prompt NextTrainingPrompt(std::mt19937_64& random) const override {
    for (;;) {  // 15 of 16 will do.
      Prompt prompt = RandomPrompt(random);
      if (!IsHeldOut(prompt.id)) return prompt;
    }
  }

  // Those among the first kHeldOutTries prompts of one fixed sequence. The number of tries does not depend on `count`, so fewer
  // are the first of more, and a task with few prompts ends as well.
  std::vector<Prompt> HeldOutPrompts(size_t count) const override {
    std::mt19937_64 random(0);
    std::set<std::string> seen;
    std::vector<Prompt> prompts;
    for (int tries = 0; prompts.size() < count && tries < kHeldOutTries; ++tries) {
      Prompt prompt = RandomPrompt(random);
      if (IsHeldOut(prompt.id) && seen.insert(prompt.id).second) prompts.push_back(std::move(prompt));
    }
    return prompts;
  }

 protected:
  virtual Prompt RandomPrompt(std::mt19937_64& random) const = 0;

 private:
  // 25,000 held-out prompts where there are many more than that; all of them where there are up to 20,000 prompts in all, each
  // of which is then drawn 20 times on average. A fraction of a second.
  static constexpr int kHeldOutTries = 400'000;
};

}  // namespace replay
