#pragma once
// Trajectories as JSON Lines: one object a line, and back without losing a bit.
//
//   {"trajectory_id":"step12-2","group_id":"g7","group_size":4,"index_in_group":2,"token_ids":[1,15,9,204,2],"prompt_length":2,
//    "loss_mask":[0,0,1,1,1],"behaviour_logprobs":[null,null,-0.1,-2.3,-0.7],"version_segments":[[2,5,12]],"reward":1.0,
//    "correct":"yes","segments":[[0,2,"user",false],[2,5,"assistant",true]],"tags":{"level":3,"easy":true}, ...}
//
// What JSON cannot say by itself:
//   float       shortest decimal that reads back as the same 32-bit float; always with "." or "e", so that -0.0 keeps its sign
//   NaN         null in behaviour_logprobs and advantage lists (the canonical one, 0x7fc00000); another bit pattern, or a NaN
//               elsewhere, is the string of its bits: "0x7fc00001"
//   infinity    "Infinity", "-Infinity"
//   tags        text, integer (no "."), real (with "." or "e"; if not finite {"real_bits":"0x7ff0000000000000"}), true/false
//   names       named_rewards and tags are objects; a list of [name, value] where a name stands twice or is not UTF-8
//   text        {"base64":"..."} in place of a string that is not UTF-8
//   bytes       opaque_base64
//   columns     {"name":{"type":"f32","alignment":"token","shape":[5],"values":[...]}}, see column_json.h; only those that were
//               fetched are written, and no key where none was
//
// Reading: token_ids and loss_mask are required, every other key may be left out (the defaults are those of replay::Trajectory).
// An unknown key, a key that stands twice, and a value of another type or range are errors that name the key, the value and the
// rule. Whether a trajectory makes sense beyond that (segments in order, ...) is checked by the library at insert.

#include <string>
#include <string_view>

#include "replay/client.h"

namespace replay::cli {

void AppendJson(const Trajectory& trajectory, std::string* line);  // without a newline
Result<Trajectory> TrajectoryFromJson(std::string_view line);      // "reward is \"high\": it must be a number"

std::string_view ToString(Correctness correct);  // "yes"
std::string_view ToString(FinishStatus status);  // "truncated_length"

}  // namespace replay::cli
