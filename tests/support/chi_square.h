#pragma once
// How likely chance alone is to be as far off as a statistic says.

#include <cmath>

namespace replay::test {

// P(chi-square with so many degrees of freedom >= statistic), exactly:
//
//   Q(degrees / 2, h), h = statistic / 2      Q(a + 1, h) = Q(a, h) + h^a e^-h / Gamma(a + 1)
//                                             Q(1/2, h) = erfc(sqrt h), Q(0, h) = 0
inline double ChiSquareTail(double statistic, int degrees) {
  if (statistic <= 0) return 1;
  const double half = statistic / 2;
  double a = degrees % 2 ? 0.5 : 0, tail = degrees % 2 ? std::erfc(std::sqrt(half)) : 0;
  for (; a < degrees / 2.0; ++a) tail += std::exp(a * std::log(half) - half - std::lgamma(a + 1));
  return tail;
}

}  // namespace replay::test
