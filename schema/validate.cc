#include "schema/validate.h"

#include <capnp/any.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>
#include <tuple>
#include <utility>

#include "schema/flat.h"
#include "schema/trajectory.capnp.h"

namespace replay {
namespace {

using std::to_string;

// Thrown inside this file only, to leave a deep check with its sentence.
struct Violation {
  std::string what;
};

[[noreturn]] void Fail(std::string what) { throw Violation{std::move(what)}; }

void Require(bool holds, const char* what) {
  if (!holds) [[unlikely]]
    Fail(what);
}

std::string_view CheckedText(const char* field, capnp::Text::Reader text, uint32_t max_bytes = kMaxIdBytes) {
  if (text.size() > max_bytes) [[unlikely]]
    Fail(std::string(field) + " has " + to_string(text.size()) + " bytes: at most " + to_string(max_bytes) + " are allowed");
  return {text.begin(), text.size()};
}

// The raw little-endian entries of a primitive list. A list whose wire element is wider than T (legal Cap'n Proto for another
// schema) has more bytes than entries and is refused, so that the bytes can be used as an array.
template <typename T, typename List>
std::span<const T> Entries(const char* field, List list) {
  const kj::ArrayPtr<const kj::byte> raw = capnp::toAny(list).getRawBytes();
  if (raw.size() != list.size() * sizeof(T)) [[unlikely]]
    Fail(std::string(field) + " is not a list of " + to_string(sizeof(T)) + "-byte entries");
  return {reinterpret_cast<const T*>(raw.begin()), list.size()};
}

void RequireLength(const char* field, uint64_t count, uint64_t token_count) {
  if (count != token_count) [[unlikely]]
    Fail(std::string(field) + " has " + to_string(count) + " entries, token_ids has " + to_string(token_count) +
         ": they must agree");
}

void RequireFinite(const char* field, double value) {
  if (!std::isfinite(value)) [[unlikely]]
    Fail(std::string(field) + " is " + to_string(value) + ": it must be finite");
}

void RequireCount(const char* field, uint64_t count, uint64_t most) {
  if (count > most) [[unlikely]]
    Fail(std::string(field) + " has " + to_string(count) + " entries: at most " + to_string(most) + " are allowed");
}

// Segments are in order, do not overlap, and lie within the tokens.
template <typename Segments>
void CheckRanges(const char* field, Segments segments, uint32_t token_count) {
  RequireCount(field, segments.size(), kMaxSegments);
  uint32_t previous_end = 0;
  for (const auto& segment : segments) {
    const uint32_t begin = segment.getBegin(), end = segment.getEnd();
    if (begin < previous_end || begin >= end || end > token_count) [[unlikely]]
      Fail(std::string(field) + " has [" + to_string(begin) + ", " + to_string(end) + ") after " + to_string(previous_end) +
           ": segments must be ordered, non-empty, not overlap and end by " + to_string(token_count));
    previous_end = end;
  }
}

void CheckTokens(const schema::Trajectory::Reader& trajectory, uint32_t token_count, std::span<const int32_t> ids) {
  int32_t signs = 0;  // Branch-free so that the compiler vectorises it.
  for (int32_t id : ids) signs |= id;
  if (signs < 0) [[unlikely]] {
    const auto bad = std::find_if(ids.begin(), ids.end(), [](int32_t id) { return id < 0; });
    Fail("token_ids[" + to_string(bad - ids.begin()) + "] is " + to_string(*bad) + ": token ids are not negative");
  }
  const auto mask = Entries<uint8_t>("loss_mask", trajectory.getLossMask());
  RequireLength("loss_mask", mask.size(), token_count);
  uint8_t bits = 0;
  for (uint8_t entry : mask) bits |= entry;
  if (bits > 1) [[unlikely]] {
    const auto bad = std::find_if(mask.begin(), mask.end(), [](uint8_t entry) { return entry > 1; });
    Fail("loss_mask[" + to_string(bad - mask.begin()) + "] is " + to_string(*bad) + ": entries are 0 or 1");
  }
  const auto logprobs = Entries<float>("behaviour_logprobs", trajectory.getBehaviourLogprobs());
  if (!logprobs.empty()) RequireLength("behaviour_logprobs", logprobs.size(), token_count);
}

void CheckAdvantage(const schema::Trajectory::Advantage::Reader& advantage, uint32_t token_count) {
  if (advantage.isScalar()) {
    RequireFinite("advantage", advantage.getScalar());
  } else if (advantage.isPerToken()) {
    RequireLength("advantage", Entries<float>("advantage", advantage.getPerToken()).size(), token_count);
  }
}

void CheckSmallFields(const schema::Trajectory::Reader& trajectory, TrajectoryFacts* facts) {
  CheckedText("rollout_id", trajectory.getRolloutId());
  const uint32_t part_index = trajectory.getPartIndex(), part_count = trajectory.getPartCount();
  if (part_index >= std::max(1u, part_count)) [[unlikely]]
    Fail("part_index is " + to_string(part_index) + ": it must be below part_count, " + to_string(part_count));
  RequireFinite("reward", trajectory.getReward());
  if (!(trajectory.getTemperature() >= 0) || !std::isfinite(trajectory.getTemperature())) [[unlikely]]
    Fail("temperature is " + to_string(trajectory.getTemperature()) + ": it must be finite and not negative");
  if (!(trajectory.getPriority() >= 0 && trajectory.getPriority() <= kMaxPriority)) [[unlikely]]
    Fail("priority is " + to_string(trajectory.getPriority()) + ": it must be from 0 to 1e9");
  const auto rewards = trajectory.getNamedRewards();
  RequireCount("named_rewards", rewards.size(), kMaxNamedRewards);
  for (const auto& reward : rewards) {
    Require(!CheckedText("named_rewards.name", reward.getName()).empty(), "named_rewards.name is empty");
    RequireFinite("named_rewards.value", reward.getValue());
  }
  const auto tags = trajectory.getTags();
  RequireCount("tags", tags.size(), kMaxTags);
  facts->has_tags = tags.size() > 0;
  for (const auto& tag : tags) {
    Require(!CheckedText("tags.name", tag.getName()).empty(), "tags.name is empty");
    if (tag.isText()) CheckedText("tags.text", tag.getText(), kMaxTagBytes);
  }
  const uint64_t opaque_bytes = trajectory.getOpaque().size();  // Once: each pass over a field counts.
  if (opaque_bytes > kMaxOpaqueBytes) [[unlikely]]
    Fail("opaque has " + to_string(opaque_bytes) + " bytes: at most " + to_string(kMaxOpaqueBytes) + " are allowed");
  const auto columns = trajectory.getColumnNames();
  RequireCount("column_names", columns.size(), kMaxColumns);
  facts->column_count = static_cast<uint16_t>(columns.size());
  for (const auto& name : columns) CheckedText("column_names", name);
  // Enumerators beyond the known ones come from a newer client; what they mean cannot be decided here.
  Require(trajectory.getCorrect() <= schema::Correctness::YES, "correct is not one of unknown, no, yes");
  Require(trajectory.getStatus() <= schema::Status::FAILED_ENVIRONMENT, "status is not a known value");
}

FrameText Locate(std::span<const uint8_t> frame, std::string_view text) {
  if (text.empty()) return {};
  return {static_cast<uint32_t>(reinterpret_cast<const uint8_t*>(text.data()) - frame.data()),
          static_cast<uint32_t>(text.size())};
}

void ReadFacts(std::span<const uint8_t> frame, TrajectoryFacts* facts) {
  FrameReader reader(frame, /*passes=*/1);
  const schema::Trajectory::Reader trajectory = reader.Root<schema::Trajectory>();

  const std::string_view id = CheckedText("trajectory_id", trajectory.getTrajectoryId());
  Require(!id.empty(), "trajectory_id is empty: it must have 1 to 128 bytes");
  facts->id = HashId(id);

  const auto ids = Entries<int32_t>("token_ids", trajectory.getTokenIds());
  Require(!ids.empty(), "token_ids is empty: a trajectory has at least one token");
  RequireCount("token_ids", ids.size(), kMaxTokens);
  facts->token_count = static_cast<uint32_t>(ids.size());
  CheckTokens(trajectory, facts->token_count, ids);
  CheckAdvantage(trajectory.getAdvantage(), facts->token_count);
  const auto segments = trajectory.getSegments();
  CheckRanges("segments", segments, facts->token_count);
  for (const auto& segment : segments) Require(segment.getRole() <= schema::Role::TOOL, "segments.role is not a known value");
  if (trajectory.getPromptLength() > facts->token_count) [[unlikely]]
    Fail("prompt_length is " + to_string(trajectory.getPromptLength()) + ": it must not exceed the " +
         to_string(facts->token_count) + " tokens");
  const auto versions = trajectory.getVersionSegments();
  CheckRanges("version_segments", versions, facts->token_count);
  facts->min_version = facts->max_version = versions.size() > 0 ? versions[0].getVersion() : 0;
  for (const auto& segment : versions) {
    facts->min_version = std::min(facts->min_version, segment.getVersion());
    facts->max_version = std::max(facts->max_version, segment.getVersion());
  }

  const std::string_view group = CheckedText("group_id", trajectory.getGroupId());
  facts->group = group.empty() ? Key128{} : HashId(group);
  facts->group_size = trajectory.getGroupSize();
  facts->index_in_group = trajectory.getIndexInGroup();
  if (!group.empty()) {
    if (facts->group_size == 0 || facts->group_size > kMaxGroupSize) [[unlikely]]
      Fail("group_size is " + to_string(facts->group_size) + ": a group has 1 to " + to_string(kMaxGroupSize) + " members");
    if (facts->index_in_group >= facts->group_size) [[unlikely]]
      Fail("index_in_group is " + to_string(facts->index_in_group) + ": it must be below group_size, " +
           to_string(facts->group_size));
  }
  if (group.empty() && (facts->group_size != 0 || facts->index_in_group != 0)) [[unlikely]]
    Fail("group_size is " + to_string(facts->group_size) + " and index_in_group " + to_string(facts->index_in_group) +
         " without a group_id: only members of a group have them");

  facts->run = HashId(CheckedText("run_id", trajectory.getRunId()));
  facts->epoch = trajectory.getEpoch();
  facts->reward = trajectory.getReward();
  facts->priority = trajectory.getPriority();
  facts->dataset_index = trajectory.getDatasetIndex();
  facts->source = Locate(frame, CheckedText("source", trajectory.getSource()));
  CheckSmallFields(trajectory, facts);
  facts->correct = static_cast<Outcome>(trajectory.getCorrect());
}

// --- The short way -----------------------------------------------------------------------------------------------------------
// The same rules for the plain trajectory: no tags, named rewards or columns. True: it keeps them all, and `facts` is filled.
// False: something is unusual or wrong, and ReadFacts decides. (About 900 instructions at 450 tokens, against 3,900.)

bool RangesAreOrdered(const FlatStruct::Structs& segments, uint32_t token_count) {
  uint32_t previous_end = 0;
  for (uint32_t i = 0; i < segments.count; ++i) {
    const uint64_t range = segments.words[size_t{i} * segments.step];
    const uint32_t begin = static_cast<uint32_t>(range), end = static_cast<uint32_t>(range >> 32);
    if (begin < previous_end || begin >= end || end > token_count) return false;
    previous_end = end;
  }
  return segments.count <= kMaxSegments;
}

// The bits set in any entry, as if all entries lay side by side over one word. By vectors, the last of which may overlap the
// one before.
template <typename T>
[[gnu::always_inline]] inline uint64_t UnionOfBits(std::span<const T> entries) {
  using Block [[gnu::vector_size(32), gnu::aligned(1), gnu::may_alias]] = uint64_t;
  T few[sizeof(Block) / sizeof(T)];
  const T* begin = few;
  const T* last = few;
  if (entries.size() >= std::size(few)) {
    begin = entries.data();
    last = begin + (entries.size() - std::size(few));
  } else {
    std::fill(std::copy(entries.begin(), entries.end(), few), std::end(few), T{0});
  }
  Block bits = *reinterpret_cast<const Block*>(last);
#pragma GCC unroll 4
  for (; begin < last; begin += std::size(few)) bits |= *reinterpret_cast<const Block*>(begin);
  return bits[0] | bits[1] | bits[2] | bits[3];
}

// No id has its sign bit set, and no mask entry any but its lowest.
[[gnu::always_inline]] inline bool ScanTokens(std::span<const int32_t> ids, std::span<const uint8_t> mask) {
  return (UnionOfBits(ids) & 0x8000'0000'8000'0000) == 0 && (UnionOfBits(mask) & ~uint64_t{0x0101'0101'0101'0101}) == 0;
}

#if defined(__x86_64__)
[[gnu::target("avx2")]] bool ScanTokensAvx2(std::span<const int32_t> ids, std::span<const uint8_t> mask) {
  return ScanTokens(ids, mask);
}
const bool has_avx2 = __builtin_cpu_supports("avx2");
#endif

bool TokensAreValid(std::span<const int32_t> ids, std::span<const uint8_t> mask) {
#if defined(__x86_64__)
  if (has_avx2) return ScanTokensAvx2(ids, mask);
#endif
  return ScanTokens(ids, mask);
}

bool ReadPlainFacts(std::span<const uint8_t> frame, LastRun* last_run, TrajectoryFacts* facts) {
  const auto* segment = reinterpret_cast<const uint64_t*>(frame.data() + kFrameTableBytes);
  FlatMessage message({segment, (frame.size() - kFrameTableBytes - kChecksumBytes) / 8});
  if (message.Claim(0, 1) == nullptr) return false;
  const FlatStruct root(message, segment, 8, 15);
  if (!root.ok()) return false;

  const auto ids = root.List<int32_t>(4);
  const auto mask = root.List<uint8_t>(6);
  const auto logprobs = root.List<float>(7);
  const auto advantages = root.List<float>(10);
  const auto segments = root.StructList(5, 2), versions = root.StructList(8, 2);
  const auto opaque = root.List<uint8_t>(13);
  const std::string_view id = root.Text(0), run = root.Text(1), group = root.Text(2), rollout = root.Text(3),
                         source = root.Text(11);
  // named_rewards, tags: an empty list of structs, or none; column_names: none.
  const bool plain = root.StructList(9, 0).count == 0 && root.StructList(12, 0).count == 0 && *root.pointer(14) == 0;
  if (message.declined || !plain) return false;

  const auto token_count = static_cast<uint32_t>(ids.size());
  const auto group_size = root.Get<uint32_t>(8), index_in_group = root.Get<uint32_t>(12);
  const auto part_index = root.Get<uint32_t>(16), part_count = root.Get<uint32_t>(20), prompt_length = root.Get<uint32_t>(24);
  const auto correct = root.Get<uint16_t>(32), advantage_kind = root.Get<uint16_t>(34), status = root.Get<uint16_t>(40);
  const auto reward = root.Get<float>(28), advantage = root.Get<float>(36);
  const auto with_default_1 = [&](uint32_t byte) {
    return std::bit_cast<float>(root.Get<uint32_t>(byte) ^ std::bit_cast<uint32_t>(1.0f));
  };
  const float temperature = with_default_1(44), priority = root.data_words() > 8 ? with_default_1(64) : 1;
  const bool lengths_agree = !ids.empty() && ids.size() <= kMaxTokens && mask.size() == ids.size() &&
                             (logprobs.empty() || logprobs.size() == ids.size()) &&
                             (advantage_kind == 2 ? advantages.size() == ids.size() : advantages.empty()) &&
                             prompt_length <= token_count && opaque.size() <= kMaxOpaqueBytes;
  const bool ids_fit = !id.empty() && id.size() <= kMaxIdBytes && run.size() <= kMaxIdBytes && group.size() <= kMaxIdBytes &&
                       rollout.size() <= kMaxIdBytes && source.size() <= kMaxIdBytes;
  const bool group_agrees =
      group.empty() ? group_size == 0 && index_in_group == 0 : group_size - 1u < kMaxGroupSize && index_in_group < group_size;
  const bool values_fit = std::isfinite(reward) && temperature >= 0 && std::isfinite(temperature) && priority >= 0 &&
                          priority <= kMaxPriority && part_index < std::max(1u, part_count) && correct <= 2 && status <= 6 &&
                          (advantage_kind != 1 || std::isfinite(advantage)) && advantage_kind <= 2;
  if (!lengths_agree || !ids_fit || !group_agrees || !values_fit || !RangesAreOrdered(segments, token_count) ||
      !RangesAreOrdered(versions, token_count) || !TokensAreValid(ids, mask))
    return false;
  for (uint32_t i = 0; i < segments.count; ++i) {  // role
    if ((segments.words[size_t{i} * segments.step + 1] & 0xffff) > 3) return false;
  }

  facts->id = HashId(id);
  facts->group = group.empty() ? Key128{} : HashId(group);
  if (last_run == nullptr) {
    facts->run = HashId(run);
  } else {
    if (run != last_run->id) *last_run = {std::string(run), HashId(run)};
    facts->run = last_run->hash;
  }
  facts->epoch = root.Get<uint64_t>(0);
  facts->min_version = facts->max_version = versions.count > 0 ? static_cast<int64_t>(versions.words[1]) : 0;
  for (uint32_t i = 0; i < versions.count; ++i) {
    const auto version = static_cast<int64_t>(versions.words[size_t{i} * versions.step + 1]);
    facts->min_version = std::min(facts->min_version, version);
    facts->max_version = std::max(facts->max_version, version);
  }
  facts->token_count = token_count;
  facts->group_size = group_size;
  facts->index_in_group = index_in_group;
  facts->reward = reward;
  facts->priority = priority;
  facts->dataset_index = ~root.Get<int64_t>(48);  // its default is -1
  facts->correct = static_cast<Outcome>(correct);
  facts->has_tags = false;
  facts->column_count = 0;
  facts->source = Locate(frame, source);
  return true;
}

}  // namespace

std::string ValidateTrajectory(std::span<const uint8_t> frame, const ValidateOptions& options, TrajectoryFacts* facts,
                               bool* checksum_error) {
  if (checksum_error) *checksum_error = false;
  if (!HasFrameShape(frame)) return CheckFrameShape(frame);
  if (options.check_checksum && !FrameChecksumMatches(frame)) {
    if (checksum_error) *checksum_error = true;
    return "the frame's checksum does not match its bytes";
  }
  if (!options.only_generated_code && ReadPlainFacts(frame, options.last_run, facts)) return {};
  try {
    ReadFacts(frame, facts);
    return {};
  } catch (const Violation& violation) {
    return violation.what;
  } catch (const kj::Exception& exception) {
    return std::string("the frame is not a readable trajectory: ") + exception.getDescription().cStr();
  }
}

std::string ValidateGroups(std::span<const TrajectoryFacts> facts, GroupScratch* scratch, bool partial) {
  if (IsOneOfItsOwn(facts)) return "";
  auto& order = scratch->order;
  order.resize(facts.size());
  for (uint32_t i = 0; i < order.size(); ++i) order[i] = i;

  const auto by_id = [&](uint32_t a, uint32_t b) {
    return std::pair(facts[a].id.high, facts[a].id.low) < std::pair(facts[b].id.high, facts[b].id.low);
  };
  std::sort(order.begin(), order.end(), by_id);
  for (size_t i = 1; i < order.size(); ++i) {
    if (facts[order[i - 1]].id == facts[order[i]].id)
      return "trajectory_id: trajectories " + to_string(std::min(order[i - 1], order[i])) + " and " +
             to_string(std::max(order[i - 1], order[i])) + " of the request have the same one";
  }

  const auto key = [&](uint32_t i) { return std::tuple(facts[i].group.high, facts[i].group.low, facts[i].index_in_group); };
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return key(a) < key(b); });
  for (size_t begin = 0; begin < order.size();) {
    const TrajectoryFacts& first = facts[order[begin]];
    size_t end = begin + 1;
    while (end < order.size() && facts[order[end]].group == first.group) ++end;
    if (!(first.group == Key128{})) {
      for (size_t i = begin; i < end; ++i) {
        const TrajectoryFacts& member = facts[order[i]];
        if (member.group_size != first.group_size)
          return "group_size: trajectories " + to_string(order[begin]) + " and " + to_string(order[i]) + " of one group say " +
                 to_string(first.group_size) + " and " + to_string(member.group_size);
        if (i > begin && member.index_in_group == facts[order[i - 1]].index_in_group)
          return "index_in_group: trajectories " + to_string(order[i - 1]) + " and " + to_string(order[i]) +
                 " of one group both say " + to_string(member.index_in_group);
      }
      if (!partial && end - begin != first.group_size)
        return "group_size: the group of trajectory " + to_string(order[begin]) + " has " + to_string(first.group_size) +
               " members, the request holds " + to_string(end - begin) + ": a group is inserted whole";
    }
    begin = end;
  }
  return "";
}

std::string ValidateBufferName(std::string_view name) {
  if (name.empty() || name.size() > kMaxBufferNameBytes)
    return "buffer name has " + to_string(name.size()) + " bytes: it must have 1 to " + to_string(kMaxBufferNameBytes);
  for (char c : name) {
    const bool allowed =
        (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.' || c == '-';
    if (!allowed) return "buffer name has a character other than A-Z a-z 0-9 _ . -";
  }
  return "";
}

}  // namespace replay
