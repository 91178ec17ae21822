#pragma once
// A filter says which items belong to a view: terms that must all hold.
//
//   "correct = yes, reward >= 0.5"        "source = gsm8k, tokens < 2048"        "draws < 4, zero_spread = no, tag.level > 2"
//
//   field        values                                              changes by
//   correct      yes | no | unknown                                  Update
//   reward       number, as updated last                             Update
//   priority     number                                              Update
//   draws        number, so far                                      Sample
//   tokens       number                                              -
//   source       text up to the next comma                           -
//   success      number, correct / scored of its prompt; false    Insert and Update of the same prompt
//                while nothing of it is scored
//   attempts     number, scored rollouts of its prompt           likewise
//   zero_spread  yes: all members of its group have one reward, as   -
//                inserted; no: they do not, or it has no group
//   tag.NAME     number, yes | no, or text; false without the tag    Update
//   column.NAME  yes: it has the column; no                          Update
//
// Operators: = != < <= > >=, the last four for numbers only. A comma separates terms; text is compared to the letter, without the
// blanks around it. A plain value.

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "schema/tags.h"
#include "schema/validate.h"

namespace replay::server {

struct FilterTerm {
  enum class Field : uint8_t {
    kCorrect,
    kReward,
    kPriority,
    kDraws,
    kTokens,
    kSource,
    kZeroSpread,
    kSuccess,
    kAttempts,
    kTag,
    kColumn
  };
  enum class Operator : uint8_t { kEqual, kNotEqual, kLess, kAtMost, kMore, kAtLeast };
  Field field = Field::kCorrect;
  Operator op = Operator::kEqual;
  std::string name;   // of the tag or column
  std::string text;   // the value as written
  double number = 0;  // the value, of terms that compare numbers; of correct an Outcome, of zero_spread and column 0 or 1
  bool is_number = false;
};

// What the terms look at, but for tags and columns.
struct FilterValues {
  Outcome outcome = Outcome::kUnknown;
  bool zero_spread = false;
  float reward = 0;
  float priority = 1;
  uint32_t draws = 0;
  uint32_t tokens = 0;
  std::string_view source;
  uint64_t attempts = 0, successes = 0;  // of its prompt: scored, and of these correct
};

class Filter {
 public:
  // "" or the error, which names the term and the rule. An empty text is refused: a view of everything is the buffer.
  static std::string Parse(std::string_view text, Filter* filter);

  // Whether all terms but those about tags and columns hold.
  bool Holds(const FilterValues& values) const;
  // Whether all terms about tags hold; `tag_of` finds a tag by its name.
  bool HoldsForTags(const std::function<FrameTag(std::string_view)>& tag_of) const;
  // Whether all terms about columns hold; `has` tells by its name whether there is one.
  bool HoldsForColumns(const std::function<bool(std::string_view)>& has) const;
  bool LooksAt(FilterTerm::Field field) const;
  bool LooksAtPrompts() const { return LooksAt(FilterTerm::Field::kSuccess) || LooksAt(FilterTerm::Field::kAttempts); }

 private:
  std::vector<FilterTerm> terms_;
};

}  // namespace replay::server
