#include <cmath>
#include <limits>

#include "replay/client.h"

namespace replay {

double Batch::importance_weight(const Draw& draw, double beta) const {
  if (draw.part >= candidates.size() || candidates[draw.part] == 0) return std::numeric_limits<double>::quiet_NaN();
  const auto n = static_cast<double>(candidates[draw.part]);
  if (draw.probability == 1 / n) return 1;  // exactly, which 49 * (1.0 / 49) is not
  return std::pow(n * draw.probability, -beta);
}

}  // namespace replay
