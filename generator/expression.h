#pragma once
// An arithmetic expression, worked out exactly.
//
//   sum     = product { ("+" | "-") product }
//   product = factor { ("*" | "/") factor }            all from left to right
//   factor  = number | "(" sum ")"                     brackets at most 16 deep
//   number  = "0" | a digit 1 … 9 and up to 8 digits more
//
// Nothing else: no blanks, no sign in front, no leading zero.

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace replay {

// over / under, not reduced; under is not 0, but may be negative.
struct Fraction {
  int64_t over = 0, under = 1;
  bool operator==(int64_t whole) const;
};

struct Expression {
  Fraction value;
  std::vector<int64_t> numbers;  // as they stand in it, from left to right
};

// Nothing if `text` is not an expression, divides by zero, or does not fit into 64 bits on the way.
std::optional<Expression> ParseExpression(std::string_view text);

}  // namespace replay
