#include "tests/fault/injections.h"
namespace replay::fault {
int RunLocks(const Options&) { return kSkipped; }
}  // namespace replay::fault
