#include "tests/fault/load.h"

#include <algorithm>

#include "tests/support/make_trajectory.h"
#include "tests/support/raw_client.h"

namespace replay::fault {
namespace {

using test::Bytes;
using test::NoReply;
using test::RawClient;
using test::RawReply;

constexpr milliseconds kPatience{10'000};  // with a daemon that lives

Bytes BytesOf(const Writing& writing, const OfferedRequest& request) {
  return test::RequestBytes(
      request.sequence + 1, 0,
      [&](schema::Request::Builder message) {
        auto insert = message.initInsert();
        insert.setBuffer(writing.buffer);
        insert.setWriterHigh(1);
        insert.setWriterLow(writing.writer);
        insert.setSequence(request.sequence);
        insert.setAcknowledgedThrough(request.sequence - std::min(request.sequence, kRepeatable));
        insert.setHasLevel(!request.level.empty());
        if (request.level == "memory") insert.setLevel(schema::AcknowledgementLevel::MEMORY);
        if (request.level == "process") insert.setLevel(schema::AcknowledgementLevel::PROCESS);
        if (request.level == "disk") insert.setLevel(schema::AcknowledgementLevel::DISK);
        auto sizes = insert.initFrameBytes(static_cast<uint32_t>(request.frames.size()));
        for (uint32_t i = 0; i < sizes.size(); ++i) sizes.set(i, static_cast<uint32_t>(request.frames[i].size()));
      },
      request.frames);
}

constexpr size_t kKeptFrames = 512;  // requests: more than a power cut takes of what was acknowledged at a lower level

void DropOldFrames(Writing* writing) {
  const size_t count = writing->requests.size();
  for (size_t i = count - std::min(count, 2 * kKeptFrames); i + kKeptFrames < count; ++i)
    if (writing->requests[i].acknowledged) writing->requests[i].frames.clear();
}

}  // namespace

OfferedRequest& Offer(Writing* writing, uint32_t size, uint32_t length, const std::string& level) {
  OfferedRequest& request = writing->requests.emplace_back();
  request.sequence = writing->next_sequence++;
  request.level = level;
  const std::string id = writing->name + "-" + std::to_string(request.sequence);
  const float reward = static_cast<float>(request.sequence % 8) / 8;
  if (size == 1)
    request.frames.push_back(test::MakeTrajectory({.id = id, .length = length, .reward = reward}));
  else
    request.frames = test::MakeGroup(size, {.id = id, .length = length, .reward = reward});
  for (uint32_t i = 0; i < size; ++i)
    request.items.push_back({size == 1 ? id : id + "-" + std::to_string(i), Checksum(request.frames[i].bytes()), reward, 0});
  return request;
}

Load::Load(const LoadOptions& options, std::vector<Writing>* writings, Sampling* sampling, Report* report)
    : options_(options), report_(*report) {
  std::vector<RawClient> connections;
  for (size_t i = 0; i < writings->size(); ++i) connections.emplace_back(options.address, /*hello=*/true);
  uint64_t seed = options.seed;
  for (size_t i = 0; i < writings->size(); ++i)
    threads_.emplace_back(&Load::Write, this, &(*writings)[i], std::move(connections[i]), ++seed * 0x9E3779B97F4A7C15u);
  if (!sampling->buffer.empty()) threads_.emplace_back([this, sampling] { Sample(sampling); });
}

void Load::Stop() {
  stop_ = true;
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void Load::Write(Writing* writing, RawClient connection, uint64_t seed) {
  std::mt19937_64 chance(seed);
  try {
    Client client({.address = options_.address, .connect_timeout = kPatience, .call_timeout = kPatience});
    while (!stop_) {
      if (!WriteBurst(writing, &connection, &chance)) return;
      if (options_.changes && !writing->evicts && chance() % 3 == 0 && !Change(writing, &client, &chance)) return;
      SleepMs(options_.pause_ms * static_cast<double>(chance() % 1000) / 1000);
    }
  } catch (const NoReply&) {  // It was killed.
  } catch (const std::exception& error) {
    report_.Violation("wrong_replies", writing->name + ": " + error.what());
  }
}

// False: what it says is not an answer, whether it was done shows later.
bool Load::TakeReply(Writing* writing, OfferedRequest* request, RawClient* connection) {
  const RawReply reply = connection->Receive(kPatience);
  if (ignore_) return false;
  if (!reply.ok()) {
    const bool may = reply.code() == schema::ErrorCode::UNAVAILABLE || options_.may_refuse;
    report_.Require(may, "inserts_refused", writing->name + ": " + reply.ToString());
    return false;
  }
  if (reply.id() != request->sequence + 1) Fail("sequence " + std::to_string(request->sequence) + " got " + reply.ToString());
  const auto insert = reply.get().getInsert();
  report_.Require(!insert.getDuplicate(), "false_duplicates", writing->name + " sequence " + std::to_string(request->sequence));
  request->acknowledged = true;
  request->first_item = insert.getFirstItem();
  acknowledged_ += static_cast<int64_t>(request->items.size());
  return true;
}

bool Load::WriteBurst(Writing* writing, RawClient* connection, std::mt19937_64* chance) {
  const size_t first = writing->requests.size(), count = 1 + (*chance)() % 8;
  Bytes bytes;
  for (size_t i = 0; i < count; ++i) {
    const uint32_t size = !writing->evicts && (*chance)() % 10 < 3 ? 2 + (*chance)() % 3 : 1;
    const std::string& level = options_.levels[(*chance)() % options_.levels.size()];
    const OfferedRequest& request = Offer(writing, size, 8 + (*chance)() % 64, level);
    const Bytes more = BytesOf(*writing, request);
    bytes.insert(bytes.end(), more.begin(), more.end());
  }
  if (!connection->Send(bytes)) return false;
  for (size_t i = first; i < first + count; ++i)
    if (!TakeReply(writing, &writing->requests[i], connection)) return false;
  DropOldFrames(writing);
  return true;
}

// A few Updates or a Delete of what was acknowledged. False: no answer came.
bool Load::Change(Writing* writing, Client* client, std::mt19937_64* chance) {
  const bool remove = (*chance)() % 4 == 0;
  std::vector<OfferedItem*> chosen;
  for (size_t i = 0; i < (remove ? 1 : 4); ++i) {
    OfferedRequest& request = writing->requests[(*chance)() % writing->requests.size()];
    OfferedItem& item = request.items[(*chance)() % request.items.size()];
    if (!request.acknowledged || item.state != OfferedItem::State::kThere) continue;
    if (std::find(chosen.begin(), chosen.end(), &item) == chosen.end()) chosen.push_back(&item);
  }
  if (chosen.empty()) return true;
  if (remove) {
    chosen[0]->state = OfferedItem::State::kDeleting;
    const auto deleted = client->Delete(writing->buffer, {&chosen[0]->id, 1});
    if (!deleted || ignore_) return false;
    chosen[0]->state = OfferedItem::State::kDeleted;
    return true;
  }
  std::vector<ItemUpdate> updates;
  for (OfferedItem* item : chosen) {
    item->pending_reward = static_cast<float>((*chance)() % 1000) / 1000;
    updates.push_back({.trajectory_id = item->id, .priority = *item->pending_reward + 1, .reward = item->pending_reward});
  }
  const auto done = client->Update(writing->buffer, updates);
  if (!done || ignore_) return false;
  for (size_t i = 0; i < chosen.size(); ++i) {
    if ((*done)[i].outcome != UpdateResult::Outcome::kDone) Fail("an Update of " + chosen[i]->id + " found nothing");
    chosen[i]->revision = (*done)[i].revision;
    chosen[i]->reward = *chosen[i]->pending_reward;
    chosen[i]->pending_reward.reset();
  }
  return true;
}

SampleOptions PlanOf(int64_t step) { return {.count = 8, .step = step, .consumer = "trainer"}; }

void Load::Sample(Sampling* sampling) {
  Client client({.address = options_.address, .connect_timeout = kPatience, .call_timeout = kPatience});
  while (!stop_) {
    const int64_t step = sampling->step + 1;
    const auto batch = client.Sample(sampling->buffer, PlanOf(step), milliseconds(20));
    if (!batch) {
      if (batch.error().code == ErrorCode::kTimedOut) continue;  // Nothing is there yet.
      return;
    }
    if (ignore_) return;
    sampling->step = step;
    sampling->drawn.clear();
    for (const Draw& draw : batch->draws) sampling->drawn.push_back(draw.item);
    ++sampling->batches;
    SleepMs(1);
  }
}

void CheckPlan(Client& client, const Sampling& sampling, Report* report) {
  if (sampling.step == 0 || sampling.drawn.empty()) return;
  const auto batch = client.Sample(sampling.buffer, PlanOf(sampling.step), milliseconds(1'000));
  if (!batch)
    return report->Violation("plans_changed", "step " + std::to_string(sampling.step) + ": " + batch.error().ToString());
  std::vector<uint64_t> drawn;
  for (const Draw& draw : batch->draws) drawn.push_back(draw.item);
  report->Require(batch->planned && drawn == sampling.drawn, "plans_changed",
                  "step " + std::to_string(sampling.step) + " has another batch than before");
}

void SendRequests(const std::string& address, Writing* writing, std::span<OfferedRequest*> requests, Report* report) {
  RawClient client(address, /*hello=*/true);
  for (OfferedRequest* request : requests) client.Send(BytesOf(*writing, *request));
  for (OfferedRequest* request : requests) {
    const RawReply reply = client.Receive(kPatience);
    const std::string what = writing->name + " sequence " + std::to_string(request->sequence);
    if (!reply.ok()) {
      report->Violation("resends_refused", what + ": " + reply.ToString());
      continue;
    }
    const auto insert = reply.get().getInsert();
    report->Add(insert.getDuplicate() ? "resent_duplicate" : "resent_new");
    const bool known = request->acknowledged || request->seen;
    report->Require(!known || insert.getDuplicate(), "stored_twice", what + " was there and is not taken for a duplicate");
    report->Require(known || writing->evicts || !insert.getDuplicate(), "receipt_without_item",
                    what + " is taken for a duplicate of what is not there");
    report->Require(!request->acknowledged || insert.getFirstItem() == request->first_item, "wrong_receipt",
                    what + " had the receipt " + std::to_string(request->first_item) + " and now has " +
                        std::to_string(insert.getFirstItem()));
    request->acknowledged = true;
    request->first_item = insert.getFirstItem();
  }
}

void Resend(const std::string& address, std::vector<Writing>* writings, Report* report) {
  for (Writing& writing : *writings) {
    std::vector<OfferedRequest*> requests;
    const size_t count = writing.requests.size();
    size_t answered = 0;
    for (size_t i = count; i > 0 && answered < 2; --i) {
      OfferedRequest& request = writing.requests[i - 1];
      answered += request.acknowledged;
      if (request.frames.empty()) {
        if (!request.acknowledged) Fail("a request that was not answered has no frames");
        break;
      }
      requests.insert(requests.begin(), &request);
    }
    SendRequests(address, &writing, requests, report);
    DropOldFrames(&writing);
  }
}

}  // namespace replay::fault
