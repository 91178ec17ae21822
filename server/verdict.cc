#include "server/verdict.h"

#include "schema/names.h"

namespace replay::server {

static_assert(kErrorCodeNames.size() == static_cast<size_t>(ErrorCode::kCount), "each code has its name");
static_assert(kWaitReasonNames.size() == static_cast<size_t>(WaitReason::kCount), "each reason has its name");

std::string_view ToString(ErrorCode code) {
  return code < ErrorCode::kCount ? kErrorCodeNames[static_cast<size_t>(code)] : "unknown";
}

std::string_view ToString(WaitReason reason) {
  return reason < WaitReason::kCount ? kWaitReasonNames[static_cast<size_t>(reason)] : "unknown";
}

}  // namespace replay::server
