#include "tests/fault/injections.h"
namespace replay::fault {
int RunPowerCuts(const Options&) { return kSkipped; }
}  // namespace replay::fault
