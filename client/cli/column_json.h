#pragma once
// Columns as JSON: in a trajectory's line (json.h), and by itself in the file of `update --column`.
//
//   "columns":{"ref_logprobs":{"type":"f32","alignment":"token","shape":[3],"values":[null,-0.1,-2.3]},
//              "candidates":{"type":"i32","alignment":"ragged","shape":[3],"offsets":[0,0,2,3],"values":[7,9,15]},
//              "hidden":{"type":"bf16","alignment":"token","shape":[3,2],"base64":"gD8AQIA/AECAPwBA"}}
//
//   values      all of them in one list, row by row. Floats as in behaviour_logprobs, of f64 as 64 bits; true and false of bool
//   base64      in place of values: their bytes, little-endian. Of f16 and bf16 always: JSON would tell them by other numbers
//
// Reading: type and one of values and base64 are required. Without alignment it is "token", without shape one dimension of all
// values; offsets belong to "ragged". Whether shape, offsets and number of tokens agree is checked by the library.

#include <string>
#include <string_view>
#include <vector>

#include "client/cli/json_value.h"
#include "replay/client.h"

namespace replay::cli {

void AppendColumns(const std::vector<Column>& columns, std::string* out);
// Throws Violation (json_reader.h).
std::vector<Column> ReadColumns(const std::string& field, const Value& value);
// "type is \"f31\": it must be one of ..."
Result<Column> ColumnFromJson(const std::string& name, std::string_view text);

}  // namespace replay::cli
