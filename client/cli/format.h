#pragma once
// Numbers, names and tables for people. Nothing here is read by programs: they use --json.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "client/cli/json_text.h"

namespace replay::cli {

// snprintf into a string.
template <typename... Arguments>
std::string Format(const char* format, Arguments... arguments) {
  const int length = std::snprintf(nullptr, 0, format, arguments...);
  std::string text(static_cast<size_t>(std::max(length, 0)), '\0');
  std::snprintf(text.data(), text.size() + 1, format, arguments...);
  return text;
}

inline std::string Count(uint64_t number) {  // "1,234,567"
  std::string text = std::to_string(number);
  for (size_t i = text.size(); i > 3; i -= 3) text.insert(i - 3, ",");
  return text;
}

inline std::string Bytes(double bytes) {  // "12.3 MiB"
  static const char* const kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  int unit = 0;
  for (; bytes >= 1024 && unit < 5; ++unit) bytes /= 1024;
  return Format(unit == 0 ? "%.0f %s" : "%.1f %s", bytes, kUnits[unit]);
}
inline std::string Bytes(uint64_t bytes) { return Bytes(static_cast<double>(bytes)); }

inline std::string Seconds(double seconds) {  // "85 ms", "12.3 s", "2 h 3 min"
  if (seconds < 1) return Format("%.0f ms", seconds * 1e3);
  if (seconds < 100) return Format("%.1f s", seconds);
  const auto minutes = static_cast<uint64_t>(seconds / 60);
  if (minutes < 60)
    return Format("%d min %d s", static_cast<int>(minutes), static_cast<int>(seconds - 60.0 * static_cast<double>(minutes)));
  if (minutes < 48 * 60) return Format("%d h %d min", static_cast<int>(minutes / 60), static_cast<int>(minutes % 60));
  return Format("%d d %d h", static_cast<int>(minutes / 1440), static_cast<int>(minutes / 60 % 24));
}

inline std::string Rate(double per_second) { return Format(per_second < 100 ? "%.1f/s" : "%.0f/s", per_second); }

// Text of others on a terminal: control characters and what is not UTF-8 become "?", a long text ends in "...".
inline std::string Printable(std::string_view text, size_t most = 60) {
  std::string out;
  size_t count = 0;
  while (!text.empty()) {
    if (++count > most) return out + "...";
    const size_t length = Utf8Length(text);
    const unsigned char c = static_cast<unsigned char>(text[0]);
    const bool is_c1 = c == 0xc2 && length == 2 && static_cast<unsigned char>(text[1]) < 0xa0;
    if (length == 0 || c < 0x20 || c == 0x7f || is_c1) {
      out += '?';
    } else {
      out.append(text.substr(0, length));
    }
    text.remove_prefix(std::max<size_t>(length, 1));
  }
  return out;
}

// Columns as wide as their widest cell; those whose header begins with '>' are right-aligned.
class Table {
 public:
  explicit Table(std::vector<std::string> header) {
    for (std::string& name : header) {
      right_.push_back(name.starts_with('>'));
      if (right_.back()) name.erase(0, 1);
    }
    rows_.push_back(std::move(header));
  }
  void Add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  std::string ToString() const {
    std::vector<size_t> widths(right_.size(), 0);
    for (const auto& row : rows_)
      for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], Width(row[i]));
    std::string out;
    for (const auto& row : rows_) {
      std::string line;
      for (size_t i = 0; i < row.size(); ++i) {
        const std::string padding(widths[i] - Width(row[i]), ' ');
        line += (i > 0 ? "  " : "") + (right_[i] ? padding + row[i] : row[i] + padding);
      }
      line.erase(line.find_last_not_of(' ') + 1);
      out += line + "\n";
    }
    return out;
  }

 private:
  static size_t Width(const std::string& cell) {  // in code points
    return static_cast<size_t>(std::count_if(cell.begin(), cell.end(), [](char c) { return (c & 0xc0) != 0x80; }));
  }
  std::vector<bool> right_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace replay::cli
