#include "client/cli/json.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <set>
#include <utility>
#include <variant>
#include <vector>

#include "client/cli/column_json.h"
#include "client/cli/json_reader.h"
#include "client/cli/json_text.h"
#include "client/cli/json_value.h"

namespace replay::cli {
namespace {

constexpr std::array<std::string_view, 3> kCorrectness = {"unknown", "no", "yes"};
constexpr std::array<std::string_view, 7> kStatus = {"completed",    "truncated_length", "truncated_turns",   "aborted",
                                                     "failed_parse", "failed_timeout",   "failed_environment"};
constexpr std::array<std::string_view, 4> kRole = {"system", "user", "assistant", "tool"};

// --- Writing ---------------------------------------------------------------------------------------------------------------

template <typename Entry, typename AppendValue>
void AppendNamed(const std::vector<std::pair<std::string, Entry>>& list, AppendValue append_value, std::string* out) {
  std::set<std::string_view> names;
  bool is_object = true;
  for (const auto& [name, value] : list) is_object = is_object && IsUtf8(name) && names.insert(name).second;
  const auto append_entry = [&](const std::pair<std::string, Entry>& entry) {
    if (!is_object) *out += '[';
    AppendText(entry.first, out);
    *out += is_object ? ':' : ',';
    append_value(entry.second);
    if (!is_object) *out += ']';
  };
  AppendList(list, append_entry, out, is_object ? "{}" : "[]");
}

void AppendTagValue(const TagValue& value, std::string* out) {
  if (const auto* text = std::get_if<std::string>(&value)) {
    AppendText(*text, out);
  } else if (const auto* integer = std::get_if<int64_t>(&value)) {
    AppendInteger(*integer, out);
  } else if (const auto* flag = std::get_if<bool>(&value)) {
    out->append(*flag ? "true" : "false");
  } else if (const double real = std::get<double>(value); std::isfinite(real)) {
    AppendFinite(real, out);
  } else {
    out->append("{\"real_bits\":");
    AppendBits(std::bit_cast<uint64_t>(real), out);
    *out += '}';
  }
}

// --- Reading ---------------------------------------------------------------------------------------------------------------

int32_t ReadTokenId(const std::string& field, const Value& value) { return ReadInteger<int32_t>(field, value, 0); }
uint8_t ReadMaskBit(const std::string& field, const Value& value) { return ReadInteger<uint8_t>(field, value, 0, 1); }
float ReadNumber(const std::string& field, const Value& value) { return ReadFloat(field, value); }

std::vector<float> ReadFloats(const std::string& field, const Value& value) {
  return ReadEntries<float>(field, value, "a list of numbers",
                            [](const std::string& at, const Value& entry) { return ReadFloat(at, entry, true); });
}

Correctness ReadCorrectness(const std::string& field, const Value& value) {
  if (std::holds_alternative<std::nullptr_t>(value.is)) return Correctness::kUnknown;
  if (const bool* flag = std::get_if<bool>(&value.is)) return *flag ? Correctness::kYes : Correctness::kNo;
  return static_cast<Correctness>(ReadName(field, value, kCorrectness));
}

Segment ReadSegment(const std::string& field, const Value& value) {
  constexpr std::string_view kRule = "[begin, end, role, trainable]";
  const Value::List& parts = ReadList(field, value, kRule);
  if (parts.size() != 4) Fail(field, value, kRule);
  const bool* trainable = std::get_if<bool>(&parts[3].is);
  if (!trainable) Fail(field + "[3]", parts[3], "true or false");
  return {.begin = ReadInteger<uint32_t>(field + "[0]", parts[0]),
          .end = ReadInteger<uint32_t>(field + "[1]", parts[1]),
          .role = static_cast<Role>(ReadName(field + "[2]", parts[2], kRole)),
          .trainable = *trainable};
}

VersionSegment ReadVersionSegment(const std::string& field, const Value& value) {
  constexpr std::string_view kRule = "[begin, end, version]";
  const Value::List& parts = ReadList(field, value, kRule);
  if (parts.size() != 3) Fail(field, value, kRule);
  return {.begin = ReadInteger<uint32_t>(field + "[0]", parts[0]),
          .end = ReadInteger<uint32_t>(field + "[1]", parts[1]),
          .version = ReadInteger<int64_t>(field + "[2]", parts[2])};
}

// An object, or a list of [name, value].
template <typename Entry, typename ReadEntry>
std::vector<std::pair<std::string, Entry>> ReadNamed(const std::string& field, const Value& value, ReadEntry read_entry) {
  std::vector<std::pair<std::string, Entry>> entries;
  if (const auto* object = std::get_if<Value::Object>(&value.is)) {
    for (const auto& [name, member] : *object) entries.emplace_back(name, read_entry(field + "." + name, member));
    return entries;
  }
  constexpr std::string_view kRule = "an object, or a list of [name, value]";
  for (const Value& pair : ReadList(field, value, kRule)) {
    const std::string at = field + "[" + std::to_string(entries.size()) + "]";
    const Value::List& parts = ReadList(at, pair, "[name, value]");
    if (parts.size() != 2) Fail(at, pair, "[name, value]");
    entries.emplace_back(ReadText(at + "[0]", parts[0]), read_entry(at + "[1]", parts[1]));
  }
  return entries;
}

TagValue ReadTagValue(const std::string& field, const Value& value) {
  if (const bool* flag = std::get_if<bool>(&value.is)) return *flag;
  if (std::holds_alternative<uint64_t>(value.is) || std::holds_alternative<int64_t>(value.is))
    return ReadInteger<int64_t>(field, value);
  if (const auto* real = std::get_if<Value::Real>(&value.is)) {
    double number = 0;
    if (ParseReal(real->text, &number)) return number;
  }
  if (const auto* object = std::get_if<Value::Object>(&value.is); object && object->size() == 1) {
    const auto& [name, member] = (*object)[0];
    const auto* text = std::get_if<std::string>(&member.is);
    uint64_t bits = 0;
    if (name == "real_bits" && text && ParseBits(*text, &bits)) return std::bit_cast<double>(bits);
    if (name == "base64") return ReadText(field, value);
  }
  if (std::holds_alternative<std::string>(value.is)) return ReadText(field, value);
  Fail(field, value, "a string, an integer, a real, true or false");
}

void ReadAdvantage(const std::string& field, const Value& value, Trajectory* trajectory) {
  if (std::holds_alternative<Value::List>(value.is)) {
    trajectory->advantage = ReadFloats(field, value);
  } else if (!std::holds_alternative<std::nullptr_t>(value.is)) {
    trajectory->advantage = ReadFloat(field, value);
  }
}

void ReadField(const std::string& key, const Value& value, Trajectory* trajectory) {
  Trajectory& t = *trajectory;
  if (key == "trajectory_id") {
    t.trajectory_id = ReadText(key, value);
  } else if (key == "run_id") {
    t.run_id = ReadText(key, value);
  } else if (key == "epoch") {
    t.epoch = ReadInteger<uint64_t>(key, value);
  } else if (key == "group_id") {
    t.group_id = ReadText(key, value);
  } else if (key == "group_size") {
    t.group_size = ReadInteger<uint32_t>(key, value);
  } else if (key == "index_in_group") {
    t.index_in_group = ReadInteger<uint32_t>(key, value);
  } else if (key == "rollout_id") {
    t.rollout_id = ReadText(key, value);
  } else if (key == "part_index") {
    t.part_index = ReadInteger<uint32_t>(key, value);
  } else if (key == "part_count") {
    t.part_count = ReadInteger<uint32_t>(key, value);
  } else if (key == "token_ids") {
    t.token_ids = ReadEntries<int32_t>(key, value, "a list of integers", ReadTokenId);
  } else if (key == "prompt_length") {
    t.prompt_length = ReadInteger<uint32_t>(key, value);
  } else if (key == "segments") {
    t.segments = ReadEntries<Segment>(key, value, "a list of [begin, end, role, trainable]", ReadSegment);
  } else if (key == "loss_mask") {
    t.loss_mask = ReadEntries<uint8_t>(key, value, "a list of 0 and 1", ReadMaskBit);
  } else if (key == "behaviour_logprobs") {
    t.behaviour_logprobs = ReadFloats(key, value);
  } else if (key == "version_segments") {
    t.version_segments = ReadEntries<VersionSegment>(key, value, "a list of [begin, end, version]", ReadVersionSegment);
  } else if (key == "reward") {
    t.reward = ReadFloat(key, value);
  } else if (key == "named_rewards") {
    t.named_rewards = ReadNamed<float>(key, value, ReadNumber);
  } else if (key == "correct") {
    t.correct = ReadCorrectness(key, value);
  } else if (key == "advantage") {
    ReadAdvantage(key, value, &t);
  } else if (key == "status") {
    t.status = static_cast<FinishStatus>(ReadName(key, value, kStatus));
  } else if (key == "source") {
    t.source = ReadText(key, value);
  } else if (key == "dataset_index") {
    t.dataset_index = ReadInteger<int64_t>(key, value);
  } else if (key == "temperature") {
    t.temperature = ReadFloat(key, value);
  } else if (key == "priority") {
    t.priority = ReadFloat(key, value);
  } else if (key == "created_at_unix_ns") {
    t.created_at_unix_ns = ReadInteger<int64_t>(key, value);
  } else if (key == "tags") {
    t.tags = ReadNamed<TagValue>(key, value, ReadTagValue);
  } else if (key == "opaque_base64") {
    t.opaque = ReadBytes(key, value);
  } else if (key == "columns") {
    t.columns = ReadColumns(key, value);
  } else {
    throw Violation{"unknown key " + Describe(Value{key})};
  }
}

void RequireLength(std::string_view field, size_t count, size_t token_count) {
  if (count != token_count)
    throw Violation{std::string(field) + " has " + std::to_string(count) + " entries, token_ids has " +
                    std::to_string(token_count) + ": they must agree"};
}

Trajectory ReadTrajectory(const Value& value) {
  const auto* object = std::get_if<Value::Object>(&value.is);
  if (!object) Fail("the line", value, "an object");
  Trajectory trajectory;
  for (const auto& [key, member] : *object) ReadField(key, member, &trajectory);
  if (trajectory.token_ids.empty()) throw Violation{"token_ids is missing or empty: a trajectory has at least one token"};
  // The library checks these lengths as well, but there a line is only one of a batch.
  const size_t length = trajectory.token_ids.size();
  RequireLength("loss_mask", trajectory.loss_mask.size(), length);
  if (!trajectory.behaviour_logprobs.empty()) RequireLength("behaviour_logprobs", trajectory.behaviour_logprobs.size(), length);
  if (const auto* per_token = std::get_if<std::vector<float>>(&trajectory.advantage))
    RequireLength("advantage", per_token->size(), length);
  return trajectory;
}

}  // namespace

std::string_view ToString(Correctness correct) { return kCorrectness.at(static_cast<size_t>(correct)); }
std::string_view ToString(FinishStatus status) { return kStatus.at(static_cast<size_t>(status)); }

void AppendJson(const Trajectory& t, std::string* line) {
  const auto text = [line](std::string_view key, std::string_view value) {
    line->append(key);
    AppendText(value, line);
  };
  const auto integer = [line](std::string_view key, auto value) {
    line->append(key);
    AppendInteger(value, line);
  };
  const auto list = [line](std::string_view key, const auto& entries, auto append_entry) {
    line->append(key);
    AppendList(entries, append_entry, line);
  };
  const auto append_logprob = [line](float value) { AppendFloat(value, true, line); };

  text("{\"trajectory_id\":", t.trajectory_id);
  text(",\"run_id\":", t.run_id);
  integer(",\"epoch\":", t.epoch);
  text(",\"group_id\":", t.group_id);
  integer(",\"group_size\":", t.group_size);
  integer(",\"index_in_group\":", t.index_in_group);
  text(",\"rollout_id\":", t.rollout_id);
  integer(",\"part_index\":", t.part_index);
  integer(",\"part_count\":", t.part_count);
  list(",\"token_ids\":", t.token_ids, [line](int32_t id) { AppendInteger(id, line); });
  integer(",\"prompt_length\":", t.prompt_length);
  list(",\"segments\":", t.segments, [&](const Segment& segment) {
    integer("[", segment.begin);
    integer(",", segment.end);
    line->append(",\"").append(kRole.at(static_cast<size_t>(segment.role)));
    line->append(segment.trainable ? "\",true]" : "\",false]");
  });
  list(",\"loss_mask\":", t.loss_mask, [line](uint8_t bit) { AppendInteger(static_cast<uint32_t>(bit), line); });
  list(",\"behaviour_logprobs\":", t.behaviour_logprobs, append_logprob);
  list(",\"version_segments\":", t.version_segments, [&](const VersionSegment& segment) {
    integer("[", segment.begin);
    integer(",", segment.end);
    integer(",", segment.version);
    *line += ']';
  });
  line->append(",\"reward\":");
  AppendFloat(t.reward, false, line);
  line->append(",\"named_rewards\":");
  AppendNamed(
      t.named_rewards, [line](float value) { AppendFloat(value, false, line); }, line);
  text(",\"correct\":", ToString(t.correct));
  line->append(",\"advantage\":");
  if (const auto* scalar = std::get_if<float>(&t.advantage)) {
    AppendFloat(*scalar, false, line);
  } else if (const auto* per_token = std::get_if<std::vector<float>>(&t.advantage)) {
    AppendList(*per_token, append_logprob, line);
  } else {
    line->append("null");
  }
  text(",\"status\":", ToString(t.status));
  text(",\"source\":", t.source);
  integer(",\"dataset_index\":", t.dataset_index);
  line->append(",\"temperature\":");
  AppendFloat(t.temperature, false, line);
  line->append(",\"priority\":");
  AppendFloat(t.priority, false, line);
  integer(",\"created_at_unix_ns\":", t.created_at_unix_ns);
  line->append(",\"tags\":");
  AppendNamed(
      t.tags, [line](const TagValue& value) { AppendTagValue(value, line); }, line);
  text(",\"opaque_base64\":", EncodeBase64(t.opaque));
  if (!t.columns.empty()) {  // Only those that were asked for are here: none would not mean that it has none.
    line->append(",\"columns\":");
    AppendColumns(t.columns, line);
  }
  *line += '}';
}

Result<Trajectory> TrajectoryFromJson(std::string_view line) {
  Value value;
  if (std::string error = ParseValue(line, &value); !error.empty())
    return Error{.code = ErrorCode::kInvalidArgument, .message = std::move(error)};
  try {
    return ReadTrajectory(value);
  } catch (const Violation& violation) {
    return Error{.code = ErrorCode::kInvalidArgument, .message = violation.what};
  }
}

}  // namespace replay::cli
