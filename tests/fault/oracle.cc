#include "tests/fault/oracle.h"

#include <algorithm>

namespace replay::fault {
namespace {

std::string Describe(const OfferedRequest& request, const std::string& id) {
  return id + " (sequence " + std::to_string(request.sequence) + ", level " +
         (request.level.empty() ? "of the buffer" : request.level) +
         (request.acknowledged ? ", acknowledged as " + std::to_string(request.first_item) : ", unanswered") + ")";
}

}  // namespace

Found ScanAll(Client& client, const std::string& buffer, Report* report) {
  constexpr uint32_t kPage = 512;
  Found found;
  for (uint64_t after = 0;;) {
    const auto page = client.Scan(buffer, after, kPage);
    if (!page) Fail("cannot scan " + buffer + ": " + page.error().ToString());
    for (const StoredTrajectory& each : *page) {
      const bool fresh = found.items
                             .emplace(each.trajectory.trajectory_id(),
                                      FoundItem{each.item, Checksum(each.trajectory.frame_bytes()), each.reward, each.revision})
                             .second;
      report->Require(fresh, "duplicates", std::string(each.trajectory.trajectory_id()) + " is there twice");
      found.numbers.push_back(each.item);
      after = each.item;
    }
    // A page may be cut short by its bytes: only an empty one is the end.
    if (page->empty()) return found;
  }
}

bool Oracle::Survives(const OfferedRequest& request) const {
  return std::find(durable_.begin(), durable_.end(), request.level.empty() ? level_ : request.level) != durable_.end();
}

void Oracle::CompareItem(OfferedRequest& request, size_t index, const FoundItem* found) {
  OfferedItem& item = request.items[index];
  using State = OfferedItem::State;
  if (!found) {
    if (item.state == State::kThere && request.acknowledged) {
      if (Survives(request))
        report_.Violation("lost", Describe(request, item.id) + " is not there");
      else
        report_.Add("lost_at_lower_level");
    }
    if (item.state == State::kDeleting) item.state = State::kDeleted;
    return;
  }
  report_.Require(item.state != State::kDeleted, "deleted_came_back", Describe(request, item.id));
  item.state = State::kThere;
  report_.Require(found->checksum == item.checksum, "wrong_data", Describe(request, item.id) + " has other bytes");
  if (request.acknowledged)
    report_.Require(found->number == request.first_item + index, "wrong_number",
                    Describe(request, item.id) + " is there as " + std::to_string(found->number));
  const bool as_answered = found->revision == item.revision && found->reward == item.reward;
  const bool as_asked = item.pending_reward && found->revision == item.revision + 1 && found->reward == *item.pending_reward;
  report_.Require(as_answered || as_asked, "updates_lost",
                  Describe(request, item.id) + " has revision " + std::to_string(found->revision) + " and reward " +
                      std::to_string(found->reward) + ", the last answer was " + std::to_string(item.revision) + " and " +
                      std::to_string(item.reward));
  item.revision = found->revision;
  item.reward = found->reward;
  item.pending_reward.reset();
}

void Oracle::Compare(std::vector<Writing>& writings, const std::string& buffer, const Found& found) {
  size_t explained = 0;
  for (Writing& writing : writings) {
    if (writing.buffer != buffer) continue;
    for (OfferedRequest& request : writing.requests) {
      size_t there = 0, gone = 0;
      for (size_t i = 0; i < request.items.size(); ++i) {
        const auto at = found.items.find(request.items[i].id);
        CompareItem(request, i, at == found.items.end() ? nullptr : &at->second);
        there += at != found.items.end();
        gone += request.items[i].state == OfferedItem::State::kDeleted;
      }
      explained += there;
      request.seen = there > 0;
      report_.Require(there == 0 || there + gone == request.items.size(), "torn_groups",
                      Describe(request, request.items[0].id) + ": " + std::to_string(there) + " of " +
                          std::to_string(request.items.size()) + " are there");
      // What was lost at a lower level is as if it had never been answered.
      if (request.acknowledged && there + gone == 0) request.acknowledged = false;
    }
  }
  report_.Require(explained == found.items.size(), "never_offered",
                  std::to_string(found.items.size() - explained) + " items are there that nobody offered");
}

void Oracle::CompareNewest(std::vector<Writing>& writings, const std::string& buffer, const Found& found, uint64_t capacity) {
  const std::vector<uint64_t>& numbers = found.numbers;
  const uint64_t last = numbers.empty() ? 0 : numbers.back();
  const uint64_t first = last - std::min(last, capacity) + 1;
  report_.Require(numbers.size() == last - first + 1 && (numbers.empty() || numbers.front() == first), "wrong_eviction",
                  std::to_string(numbers.size()) + " items up to number " + std::to_string(last) + " are there, from " +
                      std::to_string(numbers.empty() ? 0 : numbers.front()));
  for (Writing& writing : writings) {
    if (writing.buffer != buffer) continue;
    for (OfferedRequest& request : writing.requests) {
      for (size_t i = 0; i < request.items.size(); ++i) {
        const auto at = found.items.find(request.items[i].id);
        request.seen = at != found.items.end();
        if (request.seen)
          CompareItem(request, i, &at->second);
        else if (request.acknowledged && request.first_item + i >= first)
          CompareItem(request, i, nullptr);
      }
      if (request.acknowledged && !request.seen && request.first_item > last) request.acknowledged = false;
    }
  }
}

}  // namespace replay::fault
