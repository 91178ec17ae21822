#include "server/filter.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>

#include "schema/column.h"
#include "schema/limits.h"
#include "server/check.h"

namespace replay::server {
namespace {

using Field = FilterTerm::Field;
using Operator = FilterTerm::Operator;

// Longer ones first, since one is the beginning of another.
constexpr std::array<std::pair<std::string_view, Operator>, 6> kOperators = {{{"!=", Operator::kNotEqual},
                                                                              {"<=", Operator::kAtMost},
                                                                              {">=", Operator::kAtLeast},
                                                                              {"=", Operator::kEqual},
                                                                              {"<", Operator::kLess},
                                                                              {">", Operator::kMore}}};
constexpr std::array<std::pair<std::string_view, Field>, 9> kFields = {{{"correct", Field::kCorrect},
                                                                        {"reward", Field::kReward},
                                                                        {"priority", Field::kPriority},
                                                                        {"draws", Field::kDraws},
                                                                        {"tokens", Field::kTokens},
                                                                        {"source", Field::kSource},
                                                                        {"zero_spread", Field::kZeroSpread},
                                                                        {"success", Field::kSuccess},
                                                                        {"attempts", Field::kAttempts}}};
constexpr std::string_view kTagPrefix = "tag.";
constexpr std::string_view kColumnPrefix = "column.";

std::string_view Trim(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

bool IsOrder(Operator op) { return op != Operator::kEqual && op != Operator::kNotEqual; }

bool Compares(double value, Operator op, double with) {
  switch (op) {
    case Operator::kEqual:
      return value == with;
    case Operator::kNotEqual:
      return value != with;
    case Operator::kLess:
      return value < with;
    case Operator::kAtMost:
      return value <= with;
    case Operator::kMore:
      return value > with;
    case Operator::kAtLeast:
      return value >= with;
  }
  return false;
}

bool ReadNumber(const std::string& text, double* number) {
  char* end = nullptr;
  *number = std::strtod(text.c_str(), &end);
  return !text.empty() && end == text.c_str() + text.size() && std::isfinite(*number);
}

std::string ParseTerm(std::string_view text, FilterTerm* term) {
  const std::string quoted = "\"" + std::string(text) + "\"";
  const size_t at = text.find_first_of("=!<>");
  if (at == std::string_view::npos) return quoted + " has no operator: one of = != < <= > >=";
  const std::string_view rest = text.substr(at);
  const auto op =
      std::find_if(kOperators.begin(), kOperators.end(), [&](const auto& each) { return rest.starts_with(each.first); });
  if (op == kOperators.end()) return quoted + " has no operator: one of = != < <= > >=";
  term->op = op->second;
  term->text = Trim(rest.substr(op->first.size()));
  const std::string_view name = Trim(text.substr(0, at));
  const auto field = std::find_if(kFields.begin(), kFields.end(), [&](const auto& each) { return each.first == name; });
  if (field != kFields.end()) {
    term->field = field->second;
  } else if (name.starts_with(kTagPrefix) && name.size() > kTagPrefix.size()) {
    term->field = Field::kTag;
    term->name = name.substr(kTagPrefix.size());
  } else if (name.starts_with(kColumnPrefix)) {
    term->field = Field::kColumn;
    term->name = name.substr(kColumnPrefix.size());
    if (std::string error = ValidateColumnName(term->name); !error.empty()) return quoted + ": " + error;
  } else {
    return quoted +
           " does not begin with a field: one of correct, reward, priority, draws, tokens, source, zero_spread, success, "
           "attempts, tag.NAME, column.NAME";
  }
  if (term->text.empty()) return quoted + " has no value";
  term->is_number = ReadNumber(term->text, &term->number);

  const auto one_of = [&](std::initializer_list<std::pair<std::string_view, double>> values, const char* which) {
    const auto value = std::find_if(values.begin(), values.end(), [&](const auto& each) { return each.first == term->text; });
    if (value == values.end() || IsOrder(term->op))
      return quoted + ": " + std::string(name) + " is compared by = or != with " + which;
    term->number = value->second;
    return std::string();
  };
  switch (term->field) {
    case Field::kCorrect:
      return one_of({{"unknown", 0}, {"no", 1}, {"yes", 2}}, "yes, no or unknown");
    case Field::kZeroSpread:
    case Field::kColumn:
      return one_of({{"no", 0}, {"yes", 1}}, "yes or no");
    case Field::kSource:
      return IsOrder(term->op) ? quoted + ": source is compared by = or !=" : "";
    case Field::kTag:
      return IsOrder(term->op) && !term->is_number ? quoted + " compares with a value that is no number" : "";
    default:
      return term->is_number ? "" : quoted + " compares with a value that is no finite number";
  }
}

bool HoldsForTag(const FilterTerm& term, const FrameTag& tag) {
  switch (tag.kind) {
    case FrameTag::Kind::kNone:
      return false;
    case FrameTag::Kind::kNumber:
      return term.is_number ? Compares(tag.number, term.op, term.number) : term.op == Operator::kNotEqual;
    case FrameTag::Kind::kFlag:
      return !IsOrder(term.op) && ((term.text == (tag.number != 0 ? "yes" : "no")) == (term.op == Operator::kEqual));
    case FrameTag::Kind::kText:
      return !IsOrder(term.op) && ((term.text == tag.text) == (term.op == Operator::kEqual));
  }
  return false;
}

}  // namespace

std::string Filter::Parse(std::string_view text, Filter* filter) {
  filter->terms_.clear();
  if (text.size() > kMaxFilterBytes)
    return "has " + std::to_string(text.size()) + " bytes: at most " + std::to_string(kMaxFilterBytes) + " are allowed";
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view term = Trim(text.substr(begin, end - begin));
    if (term.empty()) return text.empty() ? "is empty: it needs at least one term" : "has an empty term";
    if (std::string error = ParseTerm(term, &filter->terms_.emplace_back()); !error.empty()) return error;
    begin = end + 1;
  }
  return "";
}

bool Filter::Holds(const FilterValues& values) const {
  return std::all_of(terms_.begin(), terms_.end(), [&](const FilterTerm& term) {
    switch (term.field) {
      case Field::kCorrect:
        return Compares(static_cast<double>(values.outcome), term.op, term.number);
      case Field::kReward:
        return Compares(values.reward, term.op, term.number);
      case Field::kPriority:
        return Compares(values.priority, term.op, term.number);
      case Field::kDraws:
        return Compares(values.draws, term.op, term.number);
      case Field::kTokens:
        return Compares(values.tokens, term.op, term.number);
      case Field::kSource:
        return (values.source == term.text) == (term.op == Operator::kEqual);
      case Field::kZeroSpread:
        return Compares(values.zero_spread ? 1 : 0, term.op, term.number);
      case Field::kSuccess:
        return values.attempts > 0 &&
               Compares(static_cast<double>(values.successes) / static_cast<double>(values.attempts), term.op, term.number);
      case Field::kAttempts:
        return Compares(static_cast<double>(values.attempts), term.op, term.number);
      case Field::kTag:
      case Field::kColumn:
        return true;
    }
    return false;
  });
}

bool Filter::HoldsForTags(const std::function<FrameTag(std::string_view)>& tag_of) const {
  return std::all_of(terms_.begin(), terms_.end(),
                     [&](const FilterTerm& term) { return term.field != Field::kTag || HoldsForTag(term, tag_of(term.name)); });
}

bool Filter::HoldsForColumns(const std::function<bool(std::string_view)>& has) const {
  return std::all_of(terms_.begin(), terms_.end(), [&](const FilterTerm& term) {
    return term.field != Field::kColumn || Compares(has(term.name) ? 1 : 0, term.op, term.number);
  });
}

bool Filter::LooksAt(Field field) const {
  return std::any_of(terms_.begin(), terms_.end(), [field](const FilterTerm& term) { return term.field == field; });
}

}  // namespace replay::server
