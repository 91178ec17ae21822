#pragma once
// The number that a text gives as its answer, and whether two such numbers are the same.
//
//   "… = $<<9*2=18>>18 a day.\n#### 18"      -> "18"
//   "so it is \boxed{-\frac{3}{4}}."         -> "-3/4"
//   "She pays $1,234.50"                     -> "1234.50"
//   "I do not know"                          -> ""

#include <string>
#include <string_view>

namespace replay {

// The last number of: what stands in the last \boxed{}, else what stands behind the last "####", else the text. A number is
//   [-] digits [. digits] [/ digits]         commas between thousands, as in 1,234,567, are left out of the result
//   [-] . digits                             not behind a letter or a digit
//   [-] \frac{[-] digits}{digits}            also \dfrac, \tfrac and \frac12, as digits/digits
// A "-" behind a letter, a digit or a closing bracket is none of its: "10-15" ends in 15. Units, "$" and "%" are passed over. No
// exponents and no mixed numbers.
std::string FinalNumber(std::string_view text);

// True if both are numbers in the form above and at most 1e-9 apart: "18" and "18.0", "1/3" and "0.3333333333".
bool SameNumber(std::string_view a, std::string_view b);

}  // namespace replay
