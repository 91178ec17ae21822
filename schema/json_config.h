#pragma once
// Strict reading of JSON configuration: an unknown or duplicate key, a value of the wrong type or out of range is an error that
// names the path, the value and the rule, and for an unknown key the nearest known one. (A typo that silently leaves a default
// in place has left authentication off elsewhere.)
//
//   JsonConfig file = JsonConfig::Parse(text);             // throws ConfigError
//   JsonConfig server = file.Object("server");             // {} if absent
//   options.listen = server.Text("listen", "127.0.0.1:7070");
//   server.RefuseUnknown();                                // after the last key was asked for
//
// Sizes: 4096 or "64MiB"; times: "30s", "200ms".

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <limits>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace replay {

class ConfigError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The content of the file, for Parse; throws ConfigError.
inline std::string ReadConfigFile(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw ConfigError("cannot read " + path + ": " + std::strerror(errno));
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// "64MiB", "1.5GB", "4096" → bytes; throws ConfigError.
inline uint64_t ParseSize(const std::string& path, std::string_view text) {
  static constexpr std::pair<std::string_view, uint64_t> kUnits[] = {
      {"KiB", 1ull << 10},  {"MiB", 1ull << 20},      {"GiB", 1ull << 30},          {"TiB", 1ull << 40}, {"KB", 1'000ull},
      {"MB", 1'000'000ull}, {"GB", 1'000'000'000ull}, {"TB", 1'000'000'000'000ull}, {"B", 1ull},         {"", 1ull}};
  size_t end = 0;
  while (end < text.size() && (std::isdigit(static_cast<unsigned char>(text[end])) || text[end] == '.')) ++end;
  const std::string number(text.substr(0, end));
  const auto points = std::count(number.begin(), number.end(), '.');
  for (const auto& [unit, factor] : kUnits) {
    if (number.empty() || number.front() == '.' || number.size() > 18 || points > 1 || text.substr(end) != unit) continue;
    const double bytes = std::stod(number) * static_cast<double>(factor);
    if (bytes >= 9e18) continue;
    return points == 0 ? std::stoull(number) * factor : static_cast<uint64_t>(bytes);  // Whole numbers exactly.
  }
  throw ConfigError(path + " is \"" + std::string(text) +
                    "\": a size is a number with B, KiB, MiB, GiB, TiB, KB, MB, GB or TB");
}

// "30s", "200ms", "5m", "1h" → milliseconds; throws ConfigError.
inline int64_t ParseDurationMs(const std::string& path, std::string_view text) {
  static constexpr std::pair<std::string_view, int64_t> kUnits[] = {{"ms", 1}, {"s", 1'000}, {"m", 60'000}, {"h", 3'600'000}};
  size_t digits = 0;
  while (digits < text.size() && std::isdigit(static_cast<unsigned char>(text[digits]))) ++digits;
  for (const auto& [unit, factor] : kUnits) {
    if (digits == 0 || digits > 9 || text.substr(digits) != unit) continue;
    return std::stoll(std::string(text.substr(0, digits))) * factor;
  }
  throw ConfigError(path + " is \"" + std::string(text) + "\": a time is a whole number with ms, s, m or h");
}

class JsonConfig {
 public:
  static JsonConfig Parse(const std::string& text) {
    // nlohmann keeps the last of two equal keys without a word, so keys are counted while parsing.
    std::vector<std::set<std::string>> open;
    std::string duplicate;
    const auto watch = [&](int depth, nlohmann::json::parse_event_t event, nlohmann::json& parsed) {
      // Printing and copying a value are recursive; parsing is not.
      if (depth > kMaxDepth) throw ConfigError("nested more than " + std::to_string(kMaxDepth) + " deep");
      if (event == nlohmann::json::parse_event_t::object_start) open.emplace_back();
      if (event == nlohmann::json::parse_event_t::object_end) open.pop_back();
      if (event == nlohmann::json::parse_event_t::key && !open.back().insert(parsed.get<std::string>()).second &&
          duplicate.empty())
        duplicate = parsed.get<std::string>();
      return true;
    };
    nlohmann::json root;
    try {
      root = nlohmann::json::parse(text, watch, /*allow_exceptions=*/true, /*ignore_comments=*/true);
    } catch (const nlohmann::json::exception& error) {
      throw ConfigError(std::string("not valid JSON: ") + error.what());
    }
    if (!duplicate.empty()) throw ConfigError("key \"" + duplicate + "\" stands twice in one object");
    if (!root.is_object()) throw ConfigError("the configuration is not a JSON object");
    return JsonConfig(std::move(root), "");
  }

  JsonConfig(nlohmann::json object, std::string path) : object_(std::move(object)), path_(std::move(path)) {}

  bool Has(const std::string& key) {
    asked_.insert(key);
    return object_.contains(key);
  }

  std::string Text(const std::string& key, std::string fallback) {
    const nlohmann::json* value = Find(key);
    if (!value) return fallback;
    if (!value->is_string()) Fail(key, "must be a string");
    return value->get<std::string>();
  }

  bool Flag(const std::string& key, bool fallback) {
    const nlohmann::json* value = Find(key);
    if (!value) return fallback;
    if (!value->is_boolean()) Fail(key, "must be true or false");
    return value->get<bool>();
  }

  int64_t Integer(const std::string& key, int64_t fallback, int64_t least = std::numeric_limits<int64_t>::min(),
                  int64_t most = std::numeric_limits<int64_t>::max()) {
    const nlohmann::json* value = Find(key);
    if (!value) return fallback;
    const bool fits = value->is_number_integer() &&
                      !(value->is_number_unsigned() && value->get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()});
    if (!fits) Fail(key, "must be a whole number");
    const int64_t number = value->get<int64_t>();
    if (number < least || number > most) Fail(key, "must be from " + std::to_string(least) + " to " + std::to_string(most));
    return number;
  }

  double Number(const std::string& key, double fallback, double least, double most) {
    const nlohmann::json* value = Find(key);
    if (!value) return fallback;
    if (!value->is_number()) Fail(key, "must be a number");
    const double number = value->get<double>();
    if (!(number >= least && number <= most))
      Fail(key, "must be from " + nlohmann::json(least).dump() + " to " + nlohmann::json(most).dump());
    return number;
  }

  // A number as written in the file, e.g. delta = 0.29, for arithmetic that must not round.
  std::string Decimal(const std::string& key, std::string fallback) {
    const nlohmann::json* value = Find(key);
    if (!value) return fallback;
    if (value->is_string()) return value->get<std::string>();
    if (!value->is_number()) Fail(key, "must be a number");
    return value->dump();  // The shortest text that reads back as the same double: what was written, for up to 15 digits.
  }

  uint64_t SizeBytes(const std::string& key, uint64_t fallback) {
    const nlohmann::json* value = Find(key);
    if (!value) return fallback;
    if (value->is_number_unsigned()) return value->get<uint64_t>();
    if (!value->is_string()) Fail(key, "must be a size such as 4096 or \"64MiB\"");
    return ParseSize(Path(key), value->get<std::string>());
  }

  int64_t DurationMs(const std::string& key, int64_t fallback_ms) {
    const nlohmann::json* value = Find(key);
    if (!value) return fallback_ms;
    if (!value->is_string()) Fail(key, "must be a time such as \"30s\" or \"200ms\"");
    return ParseDurationMs(Path(key), value->get<std::string>());
  }

  std::vector<std::string> Texts(const std::string& key) {
    std::vector<std::string> texts;
    const nlohmann::json* value = Find(key);
    if (!value) return texts;
    if (!value->is_array()) Fail(key, "must be a list of strings");
    for (const auto& entry : *value) {
      if (!entry.is_string()) Fail(key, "must be a list of strings");
      texts.push_back(entry.get<std::string>());
    }
    return texts;
  }

  JsonConfig Object(const std::string& key) {
    const nlohmann::json* value = Find(key);
    if (!value) return JsonConfig(nlohmann::json::object(), Path(key));
    if (!value->is_object()) Fail(key, "must be an object");
    return JsonConfig(*value, Path(key));
  }

  std::vector<JsonConfig> Objects(const std::string& key) {
    std::vector<JsonConfig> objects;
    const nlohmann::json* value = Find(key);
    if (!value) return objects;
    if (!value->is_array()) Fail(key, "must be a list");
    for (const auto& entry : *value) {
      const std::string path = Path(key) + "[" + std::to_string(objects.size()) + "]";
      if (!entry.is_object()) throw ConfigError(path + " is " + entry.dump() + ": must be an object");
      objects.emplace_back(entry, path);
    }
    return objects;
  }

  [[noreturn]] void Fail(const std::string& key, const std::string& rule) const {
    throw ConfigError(Path(key) + " is " + (object_.contains(key) ? object_.at(key).dump() : "absent") + ": " + rule);
  }

  void RefuseUnknown() const {
    for (const auto& [key, value] : object_.items()) {
      if (asked_.contains(key)) continue;
      std::string nearest;
      size_t best = 4;  // Further away is no help.
      for (const std::string& known : asked_) {
        const size_t distance = EditDistance(key, known);
        if (distance < best) {
          best = distance;
          nearest = known;
        }
      }
      throw ConfigError("unknown key " + Path(key) + (nearest.empty() ? "" : ": did you mean \"" + nearest + "\"?"));
    }
  }

  std::string Path(const std::string& key) const { return path_.empty() ? key : path_ + "." + key; }

 private:
  static constexpr int kMaxDepth = 32;

  const nlohmann::json* Find(const std::string& key) {
    asked_.insert(key);
    const auto found = object_.find(key);
    return found == object_.end() ? nullptr : &*found;
  }

  static size_t EditDistance(std::string_view a, std::string_view b) {
    std::vector<size_t> row(b.size() + 1);
    for (size_t j = 0; j < row.size(); ++j) row[j] = j;
    for (size_t i = 1; i <= a.size(); ++i) {
      size_t diagonal = std::exchange(row[0], i);
      for (size_t j = 1; j <= b.size(); ++j) {
        const size_t replace = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
        diagonal = row[j];
        row[j] = std::min({replace, row[j] + 1, row[j - 1] + 1});
      }
    }
    return row.back();
  }

  nlohmann::json object_;
  std::string path_;
  std::set<std::string> asked_;
};

}  // namespace replay
