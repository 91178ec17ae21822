#include "tests/fault/injections.h"
namespace replay::fault {
int RunCutReplies(const Options&) { return kSkipped; }
}  // namespace replay::fault
