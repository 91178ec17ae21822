#include "server/buffer_options.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "schema/limits.h"
#include "schema/names.h"
#include "schema/validate.h"
#include "server/filter.h"

namespace replay::server {
namespace {

using std::to_string;

constexpr int kMaxDecimalDigits = 18;  // 10^18 fits 64 bits

constexpr double kMaxExponent = 10;

// One row for each option: its name in the configuration file, and how it is copied.
struct Option {
  std::string_view name;
  void (*copy)(const BufferOptions& source, BufferOptions* target);
};
#define REPLAY_OPTION(field)                                                                         \
  Option {                                                                                           \
#field, [](const BufferOptions& source, BufferOptions* target) { target->field = source.field; } \
  }
constexpr Option kOptions[] = {
    REPLAY_OPTION(capacity_items),
    REPLAY_OPTION(capacity_bytes),
    REPLAY_OPTION(retention),
    REPLAY_OPTION(delta),
    REPLAY_OPTION(selector),
    REPLAY_OPTION(priority_exponent),
    REPLAY_OPTION(staleness_decay),
    REPLAY_OPTION(max_staleness),
    REPLAY_OPTION(max_draws),
    Option{"max_age", [](const BufferOptions& source, BufferOptions* target) { target->max_age_ms = source.max_age_ms; }},
    REPLAY_OPTION(evict_staleness),
    REPLAY_OPTION(correct_threshold),
    REPLAY_OPTION(views),
    REPLAY_OPTION(replay_ratio),
    Option{"tolerance",
           [](const BufferOptions& source, BufferOptions* target) {
             target->tolerance = source.tolerance;
             target->tolerance_chosen = source.tolerance_chosen;
           }},
    REPLAY_OPTION(min_size),
    REPLAY_OPTION(max_draws_per_sample),
    REPLAY_OPTION(max_insert),
    REPLAY_OPTION(pace_draws),
    REPLAY_OPTION(pace_inserts),
    REPLAY_OPTION(seed),
    REPLAY_OPTION(unit),
    REPLAY_OPTION(closed),
    Option{"lease", [](const BufferOptions& source, BufferOptions* target) { target->lease_ms = source.lease_ms; }},
    REPLAY_OPTION(zero_spread),
    REPLAY_OPTION(parts),
    REPLAY_OPTION(prompt_history),
    REPLAY_OPTION(level),
};
#undef REPLAY_OPTION

template <typename Enum>
std::optional<Enum> ParseName(std::string_view text, std::span<const std::string_view> names) {
  const auto found = std::find(names.begin(), names.end(), text);
  if (found == names.end()) return std::nullopt;
  return static_cast<Enum>(found - names.begin());
}

std::string CheckSelector(SelectorKind selector, double priority_exponent, double staleness_decay) {
  if (!(priority_exponent >= 0 && priority_exponent <= kMaxExponent))
    return "priority_exponent is " + NumberText(priority_exponent) + ": it must be from 0 to " + NumberText(kMaxExponent);
  if (!(staleness_decay >= 0 && std::isfinite(staleness_decay)))
    return "staleness_decay is " + NumberText(staleness_decay) + ": it must be finite and not negative";
  if (selector == SelectorKind::kRecency && staleness_decay == 0)
    return "staleness_decay is missing: selector recency draws in proportion to exp(-staleness / staleness_decay)";
  return "";
}

std::string CheckViews(const std::vector<ViewOptions>& views, uint32_t prompt_history) {
  if (views.size() > kMaxViews)
    return "views has " + to_string(views.size()) + " entries: at most " + to_string(kMaxViews) + " are allowed";
  for (size_t i = 0; i < views.size(); ++i) {
    const ViewOptions& view = views[i];
    const std::string at = "views[" + to_string(i) + "]";
    if (std::string error = ValidateBufferName(view.name); !error.empty()) return at + ".name: " + error;
    for (size_t j = 0; j < i; ++j)
      if (views[j].name == view.name) return at + ".name is \"" + view.name + "\", as that of views[" + to_string(j) + "]";
    Filter filter;
    if (std::string error = Filter::Parse(view.filter, &filter); !error.empty()) return at + ".filter " + error;
    if (std::string error = CheckSelector(view.selector, view.priority_exponent, view.staleness_decay); !error.empty())
      return at + "." + error;
    if (filter.LooksAtPrompts() && prompt_history == 0)
      return at + ".filter is \"" + view.filter + "\", but prompt_history is 0: success and attempts are of prompts remembered";
  }
  return "";
}

// A lease is of different items: one that is held is not drawn again.
std::string CheckLease(const BufferOptions& options) {
  if (options.lease_ms == 0) return "";
  if (options.lease_ms < 100 || options.lease_ms > kMaxLeaseMs)
    return "lease is " + to_string(options.lease_ms) + " ms: it must be 0 (none) or 100 to " + to_string(kMaxLeaseMs);
  if (!IsDistinct(options.selector))
    return "lease: selector " + std::string(ToString(options.selector)) +
           " may draw an item twice in a batch; with leases it must be uniform_distinct, lifo or fifo";
  for (size_t i = 0; i < options.views.size(); ++i)
    if (!IsDistinct(options.views[i].selector))
      return "lease: views[" + to_string(i) + "].selector " + std::string(ToString(options.views[i].selector)) +
             " may draw an item twice in a batch; with leases it must be uniform_distinct, lifo or fifo";
  return "";
}

std::string CheckParts(const BufferOptions& options) {
  if (options.parts == 0 || options.parts > kMaxPartViews || options.parts > options.capacity_items)
    return "parts is " + to_string(options.parts) + ": it must be 1 to " + to_string(kMaxPartViews) +
           " and at most capacity_items, " + to_string(options.capacity_items);
  if (options.parts == 1) return "";
  const uint64_t views = options.parts * (1 + options.views.size());
  if (views > kMaxPartViews)
    return "parts is " + to_string(options.parts) + ": with " + to_string(options.views.size()) +
           " views parts * (1 + views) is " + to_string(views) + ": at most " + to_string(kMaxPartViews) + " are allowed";
  return "";
}

std::string CheckPacing(BufferOptions* options) {
  const double y = options->replay_ratio;
  if (!std::isfinite(y) || y < 0) return "replay_ratio is " + NumberText(y) + ": it must be finite and not negative";
  if (!std::isfinite(options->tolerance) || options->tolerance < 0)
    return "tolerance is " + NumberText(options->tolerance) + ": it must be finite and not negative";
  if (options->max_draws_per_sample > kMaxSampleCount)
    return "max_draws_per_sample is " + to_string(options->max_draws_per_sample) + ": at most " + to_string(kMaxSampleCount) +
           " are allowed";
  if (options->max_insert > kMaxTrajectoriesPerInsert)
    return "max_insert is " + to_string(options->max_insert) + ": at most " + to_string(kMaxTrajectoriesPerInsert) +
           " are allowed";
  if (y == 0) return "";

  if (options->max_draws_per_sample == 0)
    return "max_draws_per_sample is missing: with replay_ratio the largest count of a Sample must be declared";
  if (options->max_insert == 0)
    return "max_insert is missing: with replay_ratio the most trajectories of an Insert must be declared";
  const double sum = options->max_draws_per_sample + options->max_insert * y;
  if (options->tolerance == 0 || options->tolerance_chosen) {
    options->tolerance = sum / 2;
    options->tolerance_chosen = true;
  }
  if (options->pace_draws && options->pace_inserts && sum > 2 * options->tolerance)
    return "pacing: max_draws_per_sample + max_insert * replay_ratio = " + to_string(options->max_draws_per_sample) + " + " +
           to_string(options->max_insert) + " * " + NumberText(y) + " = " + NumberText(sum) +
           " exceeds 2 * tolerance = " + NumberText(2 * options->tolerance) +
           ": draws and inserts could wait for each other for ever";
  if (options->pace_inserts && IsDistinct(options->selector) && options->min_size < options->max_draws_per_sample)
    return "pacing: selector " + std::string(ToString(options->selector)) +
           " needs as many different items as a Sample draws, " + "so min_size = " + to_string(options->min_size) +
           " must be at least max_draws_per_sample = " + to_string(options->max_draws_per_sample) +
           ": draws and inserts could wait for each other for ever";
  return "";
}

}  // namespace

std::string NumberText(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.10g", value);
  return text;
}

std::string_view ToString(RetentionKind kind) { return kRetentionNames[static_cast<size_t>(kind)]; }
std::string_view ToString(SelectorKind kind) { return kSelectorNames[static_cast<size_t>(kind)]; }

std::string_view ToString(Unit unit) { return kUnitNames[static_cast<size_t>(unit)]; }
std::string_view ToString(ZeroSpread what) { return kZeroSpreadNames[static_cast<size_t>(what)]; }
std::string_view ToString(AcknowledgementLevel level) { return kLevelNames[static_cast<size_t>(level)]; }

bool IsDistinct(SelectorKind kind) {
  return kind == SelectorKind::kUniformDistinct || kind == SelectorKind::kLifo || kind == SelectorKind::kFifo;
}

std::optional<RetentionKind> ParseRetention(std::string_view text) { return ParseName<RetentionKind>(text, kRetentionNames); }

std::optional<SelectorKind> ParseSelector(std::string_view text) { return ParseName<SelectorKind>(text, kSelectorNames); }

std::optional<Unit> ParseUnit(std::string_view text) { return ParseName<Unit>(text, kUnitNames); }

std::optional<ZeroSpread> ParseZeroSpread(std::string_view text) { return ParseName<ZeroSpread>(text, kZeroSpreadNames); }

std::optional<AcknowledgementLevel> ParseLevel(std::string_view text) {
  return ParseName<AcknowledgementLevel>(text, kLevelNames);
}

uint64_t Decimal::FloorOf(uint64_t n) const {
  __extension__ using Wide = unsigned __int128;
  return static_cast<uint64_t>(static_cast<Wide>(numerator) * n / denominator);
}

std::string Decimal::ToString() const {
  if (numerator == 0) return "0";
  std::string digits = to_string(numerator);
  const size_t places = to_string(denominator).size() - 1;
  return "0." + std::string(places - digits.size(), '0') + digits;
}

std::string ParseDecimal(std::string_view text, Decimal* decimal) {
  const std::string quoted = "\"" + std::string(text.substr(0, 64)) + "\"";
  const std::string malformed = quoted + " is not a decimal number such as 0.25";
  uint64_t numerator = 0;
  int64_t places = 0;  // value = numerator / 10^places
  bool any_digit = false, after_point = false;
  size_t at = 0;
  for (; at < text.size() && text[at] != 'e' && text[at] != 'E'; ++at) {
    const char c = text[at];
    if (c == '.' && !after_point) {
      after_point = true;
      continue;
    }
    if (c < '0' || c > '9') return malformed;
    any_digit = true;
    if (numerator >= 100'000'000'000'000'000) return quoted + " has more than " + to_string(kMaxDecimalDigits) + " digits";
    numerator = numerator * 10 + static_cast<uint64_t>(c - '0');
    if (after_point) ++places;
  }
  if (!any_digit) return malformed;
  if (at < text.size()) {
    ++at;
    const bool negative = at < text.size() && text[at] == '-';
    if (at < text.size() && (text[at] == '-' || text[at] == '+')) ++at;
    if (at == text.size() || text.size() - at > 3) return malformed;
    int64_t exponent = 0;
    for (; at < text.size(); ++at) {
      if (text[at] < '0' || text[at] > '9') return malformed;
      exponent = exponent * 10 + (text[at] - '0');
    }
    places += negative ? exponent : -exponent;
  }
  if (numerator == 0) {
    *decimal = Decimal{};
    return "";
  }
  for (; numerator % 10 == 0; numerator /= 10) --places;
  if (places > kMaxDecimalDigits) return quoted + " has more than " + to_string(kMaxDecimalDigits) + " digits";
  uint64_t denominator = 1;
  for (int64_t i = 0; i < places; ++i) denominator *= 10;
  if (numerator >= denominator) return quoted + " is not in [0, 1)";
  *decimal = {numerator, denominator};
  return "";
}

std::string CheckOptions(BufferOptions* options) {
  if (options->capacity_items == 0 || options->capacity_items > kMaxItemsPerBuffer)
    return "capacity_items is " + to_string(options->capacity_items) + ": it must be 1 to " + to_string(kMaxItemsPerBuffer);
  if (options->delta.denominator == 0 || options->delta.numerator >= options->delta.denominator)
    return "delta is " + to_string(options->delta.numerator) + "/" + to_string(options->delta.denominator) +
           ": it must be in [0, 1)";
  if (options->correct_threshold && !std::isfinite(*options->correct_threshold))
    return "correct_threshold is " + NumberText(*options->correct_threshold) + ": it must be finite";
  if (std::string error = CheckSelector(options->selector, options->priority_exponent, options->staleness_decay);
      !error.empty())
    return error;
  if (std::string error = CheckViews(options->views, options->prompt_history); !error.empty()) return error;
  if (options->max_staleness && *options->max_staleness < 0)
    return "max_staleness is " + to_string(*options->max_staleness) + ": it must not be negative";
  if (options->max_age_ms > 0 && options->max_age_ms < 1'000)
    return "max_age is " + to_string(options->max_age_ms) + " ms: it must be 0 (never) or at least 1000";
  if (options->evict_staleness && *options->evict_staleness < 0)
    return "evict_staleness is " + to_string(*options->evict_staleness) + ": it must not be negative";
  if (options->min_size == 0) return "min_size is 0: it must be at least 1";
  if (options->min_size > options->fresh_capacity())
    return "min_size is " + to_string(options->min_size) + ": it must not exceed the " + to_string(options->fresh_capacity()) +
           " fresh items of capacity_items " + to_string(options->capacity_items) +
           (options->positive_capacity() ? " with delta " + options->delta.ToString() : "");
  if (std::string error = CheckLease(*options); !error.empty()) return error;
  if (std::string error = CheckParts(*options); !error.empty()) return error;
  if (options->prompt_history > kMaxPrompts)
    return "prompt_history is " + to_string(options->prompt_history) + ": at most " + to_string(kMaxPrompts) + " are allowed";
  return CheckPacing(options);
}

std::span<const std::string_view> OptionNames() {
  static const auto names = [] {
    std::array<std::string_view, std::size(kOptions)> all;
    for (size_t i = 0; i < all.size(); ++i) all[i] = kOptions[i].name;
    return all;
  }();
  return names;
}

bool CopyOption(std::string_view name, const BufferOptions& source, BufferOptions* target) {
  for (const Option& option : kOptions) {
    if (option.name != name) continue;
    option.copy(source, target);
    return true;
  }
  return false;
}

bool ApplyPolicy(std::string_view policy, BufferOptions* options) {
  if (policy != "uniform" && policy != "positive_bias") return false;
  options->retention = policy == "uniform" ? RetentionKind::kFifo : RetentionKind::kPositiveBias;
  options->selector = SelectorKind::kUniform;
  return true;
}

}  // namespace replay::server
