#include "client/trajectory.h"

#include <capnp/any.h>

#include <bit>
#include <chrono>
#include <cstring>
#include <random>
#include <type_traits>

#include "client/tag_codec.h"
#include "schema/trajectory.capnp.h"

namespace replay {
namespace {

static_assert(std::endian::native == std::endian::little, "lists are copied as the bytes they are on the wire");
static_assert(static_cast<int>(Correctness::kYes) == static_cast<int>(schema::Correctness::YES));
static_assert(static_cast<int>(FinishStatus::kFailedEnvironment) == static_cast<int>(schema::Status::FAILED_ENVIRONMENT));
static_assert(static_cast<int>(Role::kTool) == static_cast<int>(schema::Role::TOOL));

// --- Size: each function is the words that one kind of field takes behind its pointer. An empty one is left null: no words. ---
template <typename T>
constexpr uint64_t kStructWords = T::_capnpPrivate::dataWordSize + T::_capnpPrivate::pointerCount;

uint64_t BytesWords(uint64_t bytes) { return (bytes + 7) / 8; }
uint64_t TextWords(std::string_view text) { return text.empty() ? 0 : BytesWords(text.size() + 1); }
template <typename T>
uint64_t ListWords(const std::vector<T>& list) {
  return BytesWords(list.size() * sizeof(T));
}
template <typename T>
uint64_t StructListWords(uint64_t count) {
  return count == 0 ? 0 : 1 + count * kStructWords<T>;  // the tag word, then the structs
}

// --- Filling -------------------------------------------------------------------------------------------------------------------
// Copies the bytes, not the values: the payload of a NaN survives.
template <typename T, typename ListBuilder>
void CopyList(const std::vector<T>& from, ListBuilder to) {
  const kj::ArrayPtr<const kj::byte> raw = capnp::toAny(to.asReader()).getRawBytes();
  std::memcpy(const_cast<kj::byte*>(raw.begin()), from.data(), from.size() * sizeof(T));
}

void FillLists(const Trajectory& from, std::string& scratch, schema::Trajectory::Builder to) {
  const auto size = [](const auto& list) { return static_cast<unsigned>(list.size()); };
  if (!from.token_ids.empty()) CopyList(from.token_ids, to.initTokenIds(size(from.token_ids)));
  if (!from.segments.empty()) {
    auto segments = to.initSegments(size(from.segments));
    for (unsigned i = 0; i < segments.size(); ++i) {
      segments[i].setBegin(from.segments[i].begin);
      segments[i].setEnd(from.segments[i].end);
      segments[i].setRole(static_cast<schema::Role>(from.segments[i].role));
      segments[i].setTrainable(from.segments[i].trainable);
    }
  }
  if (!from.loss_mask.empty()) CopyList(from.loss_mask, to.initLossMask(size(from.loss_mask)));
  if (!from.behaviour_logprobs.empty())
    CopyList(from.behaviour_logprobs, to.initBehaviourLogprobs(size(from.behaviour_logprobs)));
  if (!from.version_segments.empty()) {
    auto versions = to.initVersionSegments(size(from.version_segments));
    for (unsigned i = 0; i < versions.size(); ++i) {
      versions[i].setBegin(from.version_segments[i].begin);
      versions[i].setEnd(from.version_segments[i].end);
      versions[i].setVersion(from.version_segments[i].version);
    }
  }
  if (!from.named_rewards.empty()) {
    auto rewards = to.initNamedRewards(size(from.named_rewards));
    for (unsigned i = 0; i < rewards.size(); ++i) {
      const auto& [name, value] = from.named_rewards[i];
      if (!name.empty()) rewards[i].setName(AsText(name, scratch));
      rewards[i].setValue(value);
    }
  }
  if (const auto* per_token = std::get_if<std::vector<float>>(&from.advantage)) {
    CopyList(*per_token, to.getAdvantage().initPerToken(size(*per_token)));
  } else if (const auto* scalar = std::get_if<float>(&from.advantage)) {
    to.getAdvantage().setScalar(*scalar);
  }
  if (!from.tags.empty()) {
    auto tags = to.initTags(size(from.tags));
    for (unsigned i = 0; i < tags.size(); ++i) {
      const auto& [name, value] = from.tags[i];
      if (!name.empty()) tags[i].setName(AsText(name, scratch));
      FillTag(value, scratch, tags[i]);
    }
  }
  if (!from.columns.empty()) {
    auto names = to.initColumnNames(size(from.columns));
    for (unsigned i = 0; i < names.size(); ++i) names.set(i, AsText(from.columns[i].name, scratch));
  }
  if (!from.opaque.empty()) std::memcpy(to.initOpaque(size(from.opaque)).begin(), from.opaque.data(), from.opaque.size());
}

void Fill(const Trajectory& from, std::string_view id, schema::Trajectory::Builder to) {
  std::string scratch;
  to.setTrajectoryId(AsText(id, scratch));
  if (!from.run_id.empty()) to.setRunId(AsText(from.run_id, scratch));
  to.setEpoch(from.epoch);
  if (!from.group_id.empty()) to.setGroupId(AsText(from.group_id, scratch));
  to.setGroupSize(from.group_size);
  to.setIndexInGroup(from.index_in_group);
  if (!from.rollout_id.empty()) to.setRolloutId(AsText(from.rollout_id, scratch));
  to.setPartIndex(from.part_index);
  to.setPartCount(from.part_count);
  to.setPromptLength(from.prompt_length);
  to.setReward(from.reward);
  to.setCorrect(static_cast<schema::Correctness>(from.correct));
  to.setStatus(static_cast<schema::Status>(from.status));
  if (!from.source.empty()) to.setSource(AsText(from.source, scratch));
  to.setDatasetIndex(from.dataset_index);
  to.setTemperature(from.temperature);
  to.setPriority(from.priority);
  to.setCreatedAtUnixNs(from.created_at_unix_ns != 0
                            ? from.created_at_unix_ns
                            : std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count());
  FillLists(from, scratch, to);
}

// --- Reading ---------------------------------------------------------------------------------------------------------------------
std::string_view View(capnp::Text::Reader text) { return {text.begin(), text.size()}; }
std::string String(capnp::Text::Reader text) { return std::string(View(text)); }

template <typename T, typename List>
std::span<const T> Entries(List list) {
  const kj::ArrayPtr<const kj::byte> raw = capnp::toAny(list).getRawBytes();
  KJ_REQUIRE(raw.size() == list.size() * sizeof(T), "a list has entries of another width");
  return {reinterpret_cast<const T*>(raw.begin()), list.size()};
}

template <typename T, typename List>
std::vector<T> Copy(List list) {
  const std::span<const T> entries = Entries<T>(list);
  std::vector<T> copy(entries.size());
  if (!copy.empty()) std::memcpy(copy.data(), entries.data(), entries.size_bytes());
  return copy;
}

std::vector<VersionSegment> CopyVersions(schema::Trajectory::Reader from) {
  std::vector<VersionSegment> versions;
  versions.reserve(from.getVersionSegments().size());
  for (const auto& segment : from.getVersionSegments())
    versions.push_back({segment.getBegin(), segment.getEnd(), segment.getVersion()});
  return versions;
}

std::shared_ptr<const TrajectoryView::Data> Parse(Frame frame, std::vector<ColumnView> columns) {
  auto data = std::make_shared<TrajectoryView::Data>();
  data->frame = std::move(frame);
  data->columns = std::move(columns);
  FrameReader reader(data->frame.bytes());
  const auto from = reader.Root<schema::Trajectory>();
  data->trajectory_id = View(from.getTrajectoryId());
  data->run_id = View(from.getRunId());
  data->group_id = View(from.getGroupId());
  data->epoch = from.getEpoch();
  data->group_size = from.getGroupSize();
  data->index_in_group = from.getIndexInGroup();
  data->prompt_length = from.getPromptLength();
  data->token_ids = Entries<int32_t>(from.getTokenIds());
  data->loss_mask = Entries<uint8_t>(from.getLossMask());
  data->behaviour_logprobs = Entries<float>(from.getBehaviourLogprobs());
  const size_t length = data->token_ids.size();  // whoever trains on it relies on these
  KJ_REQUIRE(data->loss_mask.size() == length, "loss_mask and token_ids differ in length");
  KJ_REQUIRE(data->behaviour_logprobs.empty() || data->behaviour_logprobs.size() == length,
             "behaviour_logprobs and token_ids differ in length");
  KJ_REQUIRE(data->prompt_length <= length, "prompt_length exceeds the tokens");
  data->version_segments = CopyVersions(from);
  for (const VersionSegment& segment : data->version_segments)
    KJ_REQUIRE(segment.begin <= segment.end && segment.end <= length, "version_segments exceed the tokens");
  data->reward = from.getReward();
  for (const auto& reward : from.getNamedRewards()) data->named_rewards.emplace_back(View(reward.getName()), reward.getValue());
  const auto advantage = from.getAdvantage();
  if (advantage.isScalar()) data->advantage = advantage.getScalar();
  if (advantage.isPerToken()) {
    const std::span<const float> per_token = Entries<float>(advantage.getPerToken());
    KJ_REQUIRE(per_token.size() == length, "advantage and token_ids differ in length");
    data->advantage = per_token;
  }
  data->temperature = from.getTemperature();
  data->priority = from.getPriority();
  data->correct = static_cast<Correctness>(from.getCorrect());
  data->status = static_cast<FinishStatus>(from.getStatus());
  return data;
}

}  // namespace

Key128 RandomKey() {
  std::random_device device;
  const auto word = [&] { return (static_cast<uint64_t>(device()) << 32) | device(); };
  return {word(), word() | 1};  // never 0,0, which means "no writer"
}

IdMaker::IdMaker() {
  const Key128 key = RandomKey();
  for (const uint64_t part : {key.high, key.low})
    for (int shift = 60; shift >= 0; shift -= 4) prefix_ += "0123456789abcdef"[(part >> shift) & 15];
}

std::string IdMaker::Next() { return prefix_ + "-" + std::to_string(next_.fetch_add(1, std::memory_order_relaxed)); }

uint64_t TrajectoryWords(const Trajectory& trajectory, std::string_view id) {
  uint64_t words = 1 + kStructWords<schema::Trajectory>;  // root pointer, root
  for (const std::string_view text : {id, std::string_view(trajectory.run_id), std::string_view(trajectory.group_id),
                                      std::string_view(trajectory.rollout_id), std::string_view(trajectory.source)})
    words += TextWords(text);
  words += ListWords(trajectory.token_ids) + ListWords(trajectory.loss_mask) + ListWords(trajectory.behaviour_logprobs);
  words += StructListWords<schema::Segment>(trajectory.segments.size());
  words += StructListWords<schema::VersionSegment>(trajectory.version_segments.size());
  words += StructListWords<schema::NamedReward>(trajectory.named_rewards.size());
  for (const auto& [name, value] : trajectory.named_rewards) words += TextWords(name);
  if (const auto* per_token = std::get_if<std::vector<float>>(&trajectory.advantage)) words += ListWords(*per_token);
  words += StructListWords<schema::Tag>(trajectory.tags.size());
  for (const auto& [name, value] : trajectory.tags) {
    words += TextWords(name);
    if (const auto* text = std::get_if<std::string>(&value)) words += BytesWords(text->size() + 1);  // also when empty
  }
  if (!trajectory.columns.empty()) words += trajectory.columns.size();  // a pointer each
  for (const Column& column : trajectory.columns) words += BytesWords(column.name.size() + 1);
  return words + ListWords(trajectory.opaque);
}

Result<Frame> EncodeTrajectory(const Trajectory& trajectory, IdMaker& ids, std::string* id_of_frame) {
  std::string made_up;
  if (trajectory.trajectory_id.empty()) made_up = ids.Next();
  const std::string_view id = made_up.empty() ? std::string_view(trajectory.trajectory_id) : std::string_view(made_up);
  if (id_of_frame) *id_of_frame = id;
  const uint64_t words = TrajectoryWords(trajectory, id);
  const uint64_t size = kFrameTableBytes + words * 8 + kChecksumBytes;
  if (size > kMaxFrameBytes)
    return Error{ErrorCode::kInvalidArgument, "the trajectory takes " + std::to_string(size) + " bytes: at most " +
                                                  std::to_string(kMaxFrameBytes) + " are allowed"};
  Frame frame = Frame::Allocate(size);
  std::memset(frame.mutable_data(), 0, size);
  const uint32_t table[2] = {0, static_cast<uint32_t>(words)};
  std::memcpy(frame.mutable_data(), table, sizeof table);
  try {
    capnp::FlatMessageBuilder builder(
        kj::arrayPtr(reinterpret_cast<capnp::word*>(frame.mutable_data() + kFrameTableBytes), words));
    Fill(trajectory, id, builder.initRoot<schema::Trajectory>());
    builder.requireFilled();
  } catch (const kj::Exception& exception) {
    return Error{ErrorCode::kInternal, std::string("the trajectory was sized wrongly: ") + exception.getDescription().cStr()};
  }
  SealFrame({frame.mutable_data(), frame.size()});
  return frame;
}

Result<EncodedGroup> EncodeGroup(std::span<const Trajectory> group, IdMaker& ids, bool partial) {
  const auto refuse = [&](size_t index, const std::string& what) {
    return Error{ErrorCode::kInvalidArgument, group.size() == 1 ? what : "trajectory " + std::to_string(index) + ": " + what};
  };
  if (group.empty()) return Error{ErrorCode::kInvalidArgument, "an insert holds at least one trajectory"};
  if (group.size() > kMaxTrajectoriesPerInsert)
    return Error{ErrorCode::kInvalidArgument, "the insert has " + std::to_string(group.size()) + " trajectories: at most " +
                                                  std::to_string(kMaxTrajectoriesPerInsert) + " are allowed"};
  EncodedGroup encoded;
  encoded.frames.reserve(group.size());
  std::vector<TrajectoryFacts> facts(group.size());
  const ValidateOptions options{.check_checksum = false};
  std::string id;
  for (size_t i = 0; i < group.size(); ++i) {
    Result<Frame> frame = EncodeTrajectory(group[i], ids, &id);
    if (!frame) return refuse(i, frame.error().message);
    if (const std::string error = ValidateTrajectory(frame->bytes(), options, &facts[i]); !error.empty())
      return refuse(i, error);
    encoded.bytes += frame->size();
    encoded.frames.push_back(std::move(*frame));
    const size_t before = encoded.columns.size();
    std::string error = EncodeColumns(group[i].columns, id, static_cast<uint32_t>(i), &encoded.columns);
    if (error.empty() && !group[i].columns.empty())
      error = CheckEncoded(encoded.frames[i], facts[i].token_count, std::span(encoded.columns).subspan(before));
    if (!error.empty()) return refuse(i, error);
  }
  for (const EncodedColumn& each : encoded.columns) encoded.bytes += each.column.size();
  if (encoded.columns.size() > kMaxColumnsPerRequest)
    return Error{ErrorCode::kInvalidArgument, "the insert has " + std::to_string(encoded.columns.size()) +
                                                  " columns: at most " + std::to_string(kMaxColumnsPerRequest) +
                                                  " are allowed"};
  if (encoded.bytes > kMaxRequestPayloadBytes)
    return Error{ErrorCode::kInvalidArgument, "the insert has " + std::to_string(encoded.bytes) + " bytes: at most " +
                                                  std::to_string(kMaxRequestPayloadBytes) + " are allowed"};
  GroupScratch scratch;
  if (std::string error = ValidateGroups(facts, &scratch, partial); !error.empty())
    return Error{ErrorCode::kInvalidArgument, std::move(error)};
  return encoded;
}

Result<TrajectoryView> ViewFrame(Frame frame, std::vector<ColumnView> columns) {
  try {
    return TrajectoryView(Parse(std::move(frame), std::move(columns)));
  } catch (const kj::Exception& exception) {
    return Error{ErrorCode::kCorrupted, std::string("a trajectory is not readable: ") + exception.getDescription().cStr()};
  }
}

std::string_view TrajectoryView::trajectory_id() const { return data_->trajectory_id; }
std::string_view TrajectoryView::run_id() const { return data_->run_id; }
uint64_t TrajectoryView::epoch() const { return data_->epoch; }
std::string_view TrajectoryView::group_id() const { return data_->group_id; }
uint32_t TrajectoryView::group_size() const { return data_->group_size; }
uint32_t TrajectoryView::index_in_group() const { return data_->index_in_group; }
std::span<const int32_t> TrajectoryView::token_ids() const { return data_->token_ids; }
uint32_t TrajectoryView::prompt_length() const { return data_->prompt_length; }
std::span<const uint8_t> TrajectoryView::loss_mask() const { return data_->loss_mask; }
std::span<const float> TrajectoryView::behaviour_logprobs() const { return data_->behaviour_logprobs; }
std::span<const VersionSegment> TrajectoryView::version_segments() const { return data_->version_segments; }
float TrajectoryView::reward() const { return data_->reward; }
std::optional<float> TrajectoryView::named_reward(std::string_view name) const {
  for (const auto& [known, value] : data_->named_rewards)
    if (known == name) return value;
  return std::nullopt;
}
std::variant<std::monostate, float, std::span<const float>> TrajectoryView::advantage() const { return data_->advantage; }
float TrajectoryView::temperature() const { return data_->temperature; }
float TrajectoryView::priority() const { return data_->priority; }
Correctness TrajectoryView::correct() const { return data_->correct; }
FinishStatus TrajectoryView::status() const { return data_->status; }
std::span<const ColumnView> TrajectoryView::columns() const { return data_->columns; }
const ColumnView* TrajectoryView::column(std::string_view name) const {
  for (const ColumnView& column : data_->columns)
    if (column.name() == name) return &column;
  return nullptr;
}
std::span<const uint8_t> TrajectoryView::frame_bytes() const { return data_->frame.bytes(); }

Trajectory TrajectoryView::ToTrajectory() const {
  Trajectory to;
  try {
    FrameReader reader(data_->frame.bytes());
    const auto from = reader.Root<schema::Trajectory>();
    to.rollout_id = String(from.getRolloutId());
    to.part_index = from.getPartIndex();
    to.part_count = from.getPartCount();
    for (const auto& segment : from.getSegments())
      to.segments.push_back(
          {segment.getBegin(), segment.getEnd(), static_cast<Role>(segment.getRole()), segment.getTrainable()});
    to.source = String(from.getSource());
    to.dataset_index = from.getDatasetIndex();
    to.created_at_unix_ns = from.getCreatedAtUnixNs();
    for (const auto& tag : from.getTags()) to.tags.emplace_back(String(tag.getName()), ReadTag(tag));
    to.opaque.assign(from.getOpaque().begin(), from.getOpaque().end());
  } catch (const kj::Exception&) {
    // A damaged field that neither the server nor the view looks at: what was read so far stays, the rest is as by default.
  }
  to.trajectory_id = data_->trajectory_id;
  to.run_id = data_->run_id;
  to.epoch = data_->epoch;
  to.group_id = data_->group_id;
  to.group_size = data_->group_size;
  to.index_in_group = data_->index_in_group;
  to.token_ids.assign(data_->token_ids.begin(), data_->token_ids.end());
  to.prompt_length = data_->prompt_length;
  to.loss_mask.assign(data_->loss_mask.begin(), data_->loss_mask.end());
  to.behaviour_logprobs.resize(data_->behaviour_logprobs.size());
  if (!to.behaviour_logprobs.empty())
    std::memcpy(to.behaviour_logprobs.data(), data_->behaviour_logprobs.data(), data_->behaviour_logprobs.size_bytes());
  to.version_segments = data_->version_segments;
  to.reward = data_->reward;
  for (const auto& [name, value] : data_->named_rewards) to.named_rewards.emplace_back(name, value);
  if (const auto* scalar = std::get_if<float>(&data_->advantage)) to.advantage = *scalar;
  if (const auto* per_token = std::get_if<std::span<const float>>(&data_->advantage))
    to.advantage = std::vector<float>(per_token->begin(), per_token->end());
  to.temperature = data_->temperature;
  to.priority = data_->priority;
  to.correct = data_->correct;
  to.status = data_->status;
  for (const ColumnView& column : data_->columns) to.columns.push_back(column.ToColumn());
  return to;
}

}  // namespace replay
