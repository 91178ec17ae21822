#pragma once
// The leaves of JSON: strings, numbers, bytes. Appending, because a trajectory's line is one long string.

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <vector>

namespace replay::cli {

// Length of the UTF-8 sequence that begins here, 0 if there is none (overlong, surrogate, beyond U+10FFFF, truncated).
inline size_t Utf8Length(std::string_view text) {
  const auto byte = [text](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  const size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i)
    if ((byte(i) & 0xc0) != 0x80) return 0;
  if ((first == 0xe0 && byte(1) < 0xa0) || (first == 0xed && byte(1) > 0x9f) || (first == 0xf0 && byte(1) < 0x90) ||
      (first == 0xf4 && byte(1) > 0x8f))
    return 0;
  return length;
}

inline bool IsUtf8(std::string_view text) {
  while (!text.empty()) {
    const size_t length = Utf8Length(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

// A JSON string; a byte that is not UTF-8 becomes U+FFFD.
inline void AppendQuoted(std::string_view text, std::string* out) {
  constexpr std::string_view kHex = "0123456789abcdef";
  *out += '"';
  while (!text.empty()) {
    const size_t length = Utf8Length(text);
    const unsigned char c = static_cast<unsigned char>(text[0]);
    if (length == 0) {
      out->append("\xef\xbf\xbd");
    } else if (c == '"' || c == '\\') {
      *out += '\\';
      *out += text[0];
    } else if (c == '\n') {
      out->append("\\n");
    } else if (c < 0x20 || c == 0x7f) {
      out->append("\\u00");
      *out += kHex[c >> 4];
      *out += kHex[c & 15];
    } else {
      out->append(text.substr(0, length));
    }
    text.remove_prefix(std::max<size_t>(length, 1));
  }
  *out += '"';
}

template <typename Integer>
void AppendInteger(Integer value, std::string* out) {
  char digits[24];
  out->append(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
}

// Shortest decimal that reads back as `value`; never looks like an integer.
template <typename Real>
void AppendFinite(Real value, std::string* out) {
  char digits[40];
  const char* end = std::to_chars(digits, digits + sizeof digits, value).ptr;
  const std::string_view text(digits, static_cast<size_t>(end - digits));
  out->append(text);
  if (text.find_first_of(".e") == std::string_view::npos) out->append(".0");
}

// "0x7fc00001", with the quotes.
template <typename Bits>
void AppendBits(Bits bits, std::string* out) {
  out->append("\"0x");
  for (int shift = static_cast<int>(sizeof(Bits)) * 8 - 4; shift >= 0; shift -= 4)
    *out += "0123456789abcdef"[bits >> shift & 15];
  *out += '"';
}

template <typename Bits>
bool ParseBits(std::string_view text, Bits* bits) {
  if (text.size() != 2 + 2 * sizeof(Bits) || !text.starts_with("0x")) return false;
  const auto [end, code] = std::from_chars(text.data() + 2, text.data() + text.size(), *bits, 16);
  return code == std::errc() && end == text.data() + text.size();
}

// Correctly rounded from the decimal text. False: beyond the largest finite value.
template <typename Real>
bool ParseReal(const std::string& text, Real* number) {
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), *number);
  if (code == std::errc()) return true;
  const double magnitude = std::strtod(text.c_str(), nullptr);  // Out of range: too large, or too small and therefore 0.
  *number = static_cast<Real>(std::fabs(magnitude) < 1 ? magnitude : 0);
  return std::fabs(magnitude) < 1;
}

template <typename Real>
using BitsOf = std::conditional_t<sizeof(Real) == 4, uint32_t, uint64_t>;
template <typename Real>
inline constexpr BitsOf<Real> kCanonicalNan = sizeof(Real) == 4 ? 0x7fc00000 : 0x7ff8000000000000;
inline constexpr std::string_view kBase64 = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

inline std::string EncodeBase64(std::span<const uint8_t> bytes) {
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t i = 0; i < bytes.size(); i += 3) {
    const size_t count = std::min<size_t>(3, bytes.size() - i);
    uint32_t bits = 0;
    for (size_t k = 0; k < 3; ++k) bits = bits << 8 | (k < count ? bytes[i + k] : 0u);
    for (size_t k = 0; k < 4; ++k) text += k <= count ? kBase64[bits >> (18 - 6 * k) & 63] : '=';
  }
  return text;
}

// Only the one text that EncodeBase64 makes of the bytes.
inline std::optional<std::vector<uint8_t>> DecodeBase64(std::string_view text) {
  if (text.size() % 4 != 0) return std::nullopt;
  for (int padding = 0; padding < 2 && text.ends_with('='); ++padding) text.remove_suffix(1);
  std::vector<uint8_t> bytes;
  bytes.reserve(text.size() / 4 * 3 + 2);
  uint32_t bits = 0;
  int bit_count = 0;
  for (const char c : text) {
    const size_t digit = kBase64.find(c);
    if (digit == std::string_view::npos) return std::nullopt;
    bits = bits << 6 | static_cast<uint32_t>(digit);
    bit_count += 6;
    if (bit_count < 8) continue;
    bit_count -= 8;
    bytes.push_back(static_cast<uint8_t>(bits >> bit_count));
    bits &= (1u << bit_count) - 1;
  }
  if (bits != 0) return std::nullopt;  // Bits beyond the last byte.
  return bytes;
}

// null_is_nan: the canonical NaN is null. Any other value that JSON has no number for is a string.
template <typename Real>
void AppendFloat(Real value, bool null_is_nan, std::string* out) {
  if (std::isfinite(value)) {
    AppendFinite(value, out);
  } else if (std::isinf(value)) {
    out->append(value > 0 ? "\"Infinity\"" : "\"-Infinity\"");
  } else if (const auto bits = std::bit_cast<BitsOf<Real>>(value); bits == kCanonicalNan<Real> && null_is_nan) {
    out->append("null");
  } else {
    AppendBits(bits, out);
  }
}

// A string, or {"base64":"..."} for what is not UTF-8.
inline void AppendText(std::string_view text, std::string* out) {
  if (IsUtf8(text)) return AppendQuoted(text, out);
  out->append("{\"base64\":\"");
  out->append(EncodeBase64({reinterpret_cast<const uint8_t*>(text.data()), text.size()}));
  out->append("\"}");
}

// [a,b,c] or, with braces, {a,b,c}.
template <typename List, typename AppendEntry>
void AppendList(const List& list, AppendEntry append_entry, std::string* out, const char* brackets = "[]") {
  *out += brackets[0];
  bool first = true;
  for (const auto& entry : list) {
    if (!first) *out += ',';
    first = false;
    append_entry(entry);
  }
  *out += brackets[1];
}

}  // namespace replay::cli
