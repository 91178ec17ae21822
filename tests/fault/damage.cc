#include "tests/fault/injections.h"
namespace replay::fault {
int RunDamage(const Options&) { return kSkipped; }
}  // namespace replay::fault
