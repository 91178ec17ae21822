// The state of a Buffer as bytes, and the journal of what it decides: Save and Load, BeginNote and Replay.

#include <utility>

#include "server/buffer_state.h"
#include "server/frame_note.h"
#include "server/requests_archive.h"

namespace replay::server {

using std::to_string;

// --- State ---------------------------------------------------------------------------------------------------------------

void Buffer::State::Persist(Archive& archive) {
  archive(now_ms, last_frame, starving, last_window, held, largest_group, random, pacing, sources, items);
  // The frames, in the order of the items: so their numbers mostly follow each other.
  for (uint32_t slot = items.oldest(); slot != kNoSlot && !archive.failed(); slot = items[slot].newer) {
    Frame frame = store.Find(items[slot].place);
    PersistTags(archive, frame, items[slot].has_tags);
    if (archive.loading()) store.Put(&items[slot].place, std::move(frame));
  }
  archive(cohorts);
  if (by_group()) archive(group_rows, group_cohorts, groups);
  archive(ranking, columns, late_tags, breakdown);
  if (prompts) archive(*prompts);
  selector->Persist(archive);
  for (const auto& view : views) view->Persist(archive);
  archive(leases, reservations, plans, receipts, marks);
  archive(tokens, stored, inserted, sampled, removed_outcomes, became, ceased, offered, accepted, duplicate, rejected,
          zero_spread_items, zero_spread_refused, removed, drawn, samples, tokens_inserted, tokens_drawn, withheld,
          withheld_total, expired_groups, dropped_members, expired_leases, staleness, reuse_gap, item_draws, consumer_step,
          cost);
}

void Buffer::Save(std::string* bytes, std::vector<uint64_t>* frames) const {
  State& s = *state_;
  const PolicyVersions& versions = *s.unit_cohorts.versions();
  Archive archive(bytes, frames);
  archive.Save(kArchiveFormat, s.name, s.options, versions.published(), versions.List("", SIZE_MAX));
  s.Persist(archive);
}

std::unique_ptr<Buffer> Buffer::Load(std::string_view bytes, FrameSource* frames, std::string* error) {
  Archive archive(bytes, frames);
  uint32_t format = 0;
  std::string name;
  BufferOptions options;
  uint64_t published = 0;
  std::vector<PolicyVersion> versions;
  archive(format);
  if (format != kArchiveFormat) {
    *error = "has format " + to_string(format) + ", this version reads " + to_string(kArchiveFormat);
    return nullptr;
  }
  archive(name, options, published, versions);
  *error = archive.failed() ? "ends early" : CheckOptions(&options);
  if (!error->empty()) return nullptr;
  auto buffer = std::make_unique<Buffer>(std::move(name), options, PolicyVersions::Restore(versions, published));
  buffer->state_->Persist(archive);
  if (archive.failed())
    *error = "ends early, or a frame that it names is not there";
  else if (!archive.at_end())
    *error = "has more in it than a buffer";
  return error->empty() ? std::move(buffer) : nullptr;
}

// --- Journal -------------------------------------------------------------------------------------------------------------

void Buffer::SetJournal(Journal* journal) { state_->journal = journal; }

void Buffer::State::Number(const Frame& frame) {
  if (frame.number() != 0) {  // kept already
    last_frame = std::max(last_frame, frame.number());
    return;
  }
  frame.SetNumber(++last_frame);
  if (journal) journal->Bring(frame);
}

void Buffer::State::BeginNote(const InsertRequest& request) {
  for (const Frame& frame : request.frames) Number(frame);
  for (const ColumnOf& each : request.columns) Number(each.column);
  if (journal == nullptr) return;
  Archive archive = journal->Begin(Operation::kInsert, now_ms);
  archive.Save(request.writer, request.sequence, request.acknowledged_through, request.partial);
  archive.Count(request.facts.size());
  for (const TrajectoryFacts& facts : request.facts) archive.Save(facts);
  for (size_t i = 0; i < request.frames.size(); ++i) PersistCore(archive, request.frames[i], request.facts[i]);
  archive.Count(request.columns.size());
  for (ColumnOf& each : request.columns) {
    archive(each.frame);
    PersistColumn(archive, each.column);
  }
}

namespace {

// What a record says was done. "" or why it came to something else.
class Replayer {
 public:
  Replayer(Buffer* buffer, Archive* archive) : buffer_(*buffer), archive_(*archive) {}

  std::string Insert() {
    InsertRequest request;
    std::vector<TrajectoryFacts> facts;
    std::vector<Frame> frames;
    std::vector<ColumnOf> columns;
    archive_(request.writer, request.sequence, request.acknowledged_through, request.partial, facts);
    frames.resize(facts.size());
    for (size_t i = 0; i < frames.size(); ++i) PersistCore(archive_, frames[i], facts[i]);
    columns.resize(archive_.Count(0));
    for (ColumnOf& each : columns) {
      archive_(each.frame);
      PersistColumn(archive_, each.column);
    }
    if (archive_.failed()) return "";
    request.facts = facts;
    request.frames = frames;
    request.columns = columns;
    InsertResult result;
    const Verdict verdict = buffer_.Insert(request, &result);
    return verdict.done() && !result.duplicate ? "" : "an insert is " + Text(verdict);
  }
  std::string Sample() {
    SampleRequest request;
    archive_(request);
    SampleResult result;
    if (archive_.failed()) return "";
    const Verdict verdict = buffer_.Sample(request, &result);
    return verdict.done() || verdict.code == ErrorCode::kResourceExhausted ? "" : "a sample is " + Text(verdict);
  }
  std::string Delete() {
    std::string id;
    archive_(id);
    return archive_.failed() || buffer_.Delete(id) > 0 ? "" : "there is no item to delete";
  }
  std::string Update() {
    ItemUpdate update;
    archive_(update);
    uint32_t revision = 0;
    return archive_.failed() || buffer_.Update(update, &revision) == UpdateOutcome::kDone ? "" : "there is no item to update";
  }
  std::string Acknowledge() {
    AcknowledgeRequest request;
    archive_(request);
    uint32_t count = 0;
    if (archive_.failed()) return "";
    const Verdict verdict = buffer_.Acknowledge(request, &count);
    return verdict.done() ? "" : "an acknowledgement is " + Text(verdict);
  }
  std::string Reserve() {
    ReserveRequest request;
    archive_(request);
    ReserveResult result;
    if (archive_.failed()) return "";
    const Verdict verdict = buffer_.Reserve(request, &result);
    return verdict.done() ? "" : "a reservation is " + Text(verdict);
  }
  std::string Alter() {
    BufferOptions options;
    archive_(options);
    return archive_.failed() ? "" : buffer_.Alter(std::move(options));
  }
  std::string Publish(const PolicyVersions& before) {
    PolicyVersion version;
    archive_(version);
    std::string error;
    if (archive_.failed()) return "";
    PolicyVersions::Snapshot next = before.Publish(version, &error);
    if (next) buffer_.OnPublish(std::move(next));
    return error;
  }
  std::string Versions() {
    uint64_t published = 0;
    std::vector<PolicyVersion> versions;
    archive_(published, versions);
    if (!archive_.failed()) buffer_.OnPublish(PolicyVersions::Restore(versions, published));
    return "";
  }
  std::string AddCost() {
    CostReport cost;
    archive_(cost);
    if (!archive_.failed()) buffer_.AddCost(cost);
    return "";
  }

 private:
  static std::string Text(const Verdict& verdict) {
    return verdict.done()
               ? "a repeat"
               : std::string(verdict.waits() ? ToString(verdict.reason) : ToString(verdict.code)) + " now: " + verdict.message;
  }
  Buffer& buffer_;
  Archive& archive_;
};

}  // namespace

std::string Buffer::State::ReplayLook(Archive& archive) {
  InsertRequest request;
  uint64_t count = 0;
  bool is_duplicate = false;
  archive(request.writer, request.sequence, request.acknowledged_through, count, is_duplicate);
  if (!archive.failed()) CountLook(request, count, is_duplicate);
  return "";
}

std::string Buffer::Replay(std::string_view* records, FrameSource* frames) {
  State& s = *state_;
  uint32_t size = 0;
  Archive(*records, nullptr)(size);
  if (records->size() < sizeof size || records->size() - sizeof size < size) return "ends in the middle";
  Archive archive(records->substr(sizeof size, size), frames);
  records->remove_prefix(sizeof size + size);
  Operation operation{};
  uint64_t time_ms = 0, holder = 0, draws = 0, given_back = 0, digest = 0;
  archive(operation, time_ms);
  s.now_ms = std::max(s.now_ms, time_ms);
  Replayer replay(this, &archive);
  std::string error;
  switch (operation) {
    case Operation::kInsert:
      error = replay.Insert();
      break;
    case Operation::kLook:
      error = s.ReplayLook(archive);
      break;
    case Operation::kSample:
      error = replay.Sample();
      break;
    case Operation::kSampleWaits:
      archive(s.withheld, s.last_window, s.starving);
      s.Note(Operation::kSampleWaits, s.withheld, s.last_window, s.starving);
      break;
    case Operation::kAskForPlan: {
      std::string consumer;
      archive(consumer);
      if (!s.plans.Touch(consumer)) error = "there is no plan of a consumer \"" + consumer + "\"";
      s.Note(Operation::kAskForPlan, consumer);
      break;
    }
    case Operation::kCredit:
      archive(draws, given_back);
      s.CreditDraws(draws, given_back);
      break;
    case Operation::kDelete:
      error = replay.Delete();
      break;
    case Operation::kUpdate:
      error = replay.Update();
      break;
    case Operation::kAcknowledge:
      error = replay.Acknowledge();
      break;
    case Operation::kEndLeases:
      archive(holder);
      if (!EndLeasesOf(holder)) error = "nothing is held";
      break;
    case Operation::kEndAllLeases:
      EndAllLeases();
      break;
    case Operation::kReserve:
      error = replay.Reserve();
      break;
    case Operation::kAlter:
      error = replay.Alter();
      break;
    case Operation::kPublish:
      error = replay.Publish(*s.unit_cohorts.versions());
      break;
    case Operation::kVersions:
      error = replay.Versions();
      break;
    case Operation::kTime:
      OnTime(time_ms);
      break;
    case Operation::kCost:
      error = replay.AddCost();
      break;
    default:
      return "has an operation " + to_string(static_cast<int>(operation)) + ", which this version does not know";
  }
  archive(digest);
  if (archive.failed()) return "ends early, or a frame that it names is not there";
  if (!archive.at_end()) return "has more in it than its operation";
  if (error.empty() && digest != s.Digest()) error = "it came to another state";
  if (error.empty()) return "";
  return "has operation " + to_string(static_cast<int>(operation)) +
         ", which does not come to what it came to when it was written: " + error;
}

}  // namespace replay::server
