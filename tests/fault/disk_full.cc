#include "tests/fault/injections.h"
namespace replay::fault {
int RunDiskFull(const Options&) { return kSkipped; }
}  // namespace replay::fault
