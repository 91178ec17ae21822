#pragma once
// What was asked of a buffer and what was answered, and whether what it holds afterwards can have come of that.
//
//   offered ──► acknowledged ──► there, once, under the number of its receipt, with the bytes that were sent
//           └─► unanswered   ──► there or not, whole; sent again with the same (writer, sequence): a duplicate if it was there
//   an Update or Delete that was answered holds; one that was not holds or not, and what is found is then the truth
//
// One Writing for each writer, of its thread while there is load; the Oracle looks at them once the load has ended.

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "replay/client.h"
#include "schema/message.h"
#include "tests/fault/harness.h"

namespace replay::fault {

struct OfferedItem {
  std::string id;
  uint64_t checksum = 0;  // of the frame
  float reward = 0;
  uint32_t revision = 0;
  std::optional<float> pending_reward{};  // of an Update that is not answered
  enum class State : uint8_t { kThere, kDeleting, kDeleted } state = State::kThere;
};

struct OfferedRequest {
  uint64_t sequence = 0;
  std::string level;  // asked for; "": the buffer's
  std::vector<OfferedItem> items;
  std::vector<Frame> frames;  // kept while it may be sent again
  bool acknowledged = false;
  uint64_t first_item = 0;  // with acknowledged
  bool seen = false;        // by the last Compare
};

// The requests of one writer, for one buffer.
struct Writing {
  std::string name;  // of its items: "w0-17"
  std::string buffer;
  uint64_t writer = 0;
  bool evicts = false;  // the buffer: what was stored may be gone
  uint64_t next_sequence = 1;
  std::vector<OfferedRequest> requests;  // by sequence, from 1
};

struct FoundItem {
  uint64_t number = 0;
  uint64_t checksum = 0;
  float reward = 0;
  uint32_t revision = 0;
};
struct Found {
  std::map<std::string, FoundItem> items;
  std::vector<uint64_t> numbers;  // as scanned
};
// All of a buffer; an item that comes twice is a violation.
Found ScanAll(Client& client, const std::string& buffer, Report* report);

class Oracle {
 public:
  // `durable`: the levels that what was injected is to be survived at; `level`: of the buffers.
  Oracle(Report* report, std::string level, std::vector<std::string> durable)
      : report_(*report), level_(std::move(level)), durable_(std::move(durable)) {}

  // A buffer that evicts nothing. Takes what it finds for the truth where that is open.
  void Compare(std::vector<Writing>& writings, const std::string& buffer, const Found& found);
  // A fifo buffer of `capacity` items: the newest are there, and nothing else is.
  void CompareNewest(std::vector<Writing>& writings, const std::string& buffer, const Found& found, uint64_t capacity);

 private:
  bool Survives(const OfferedRequest& request) const;
  void CompareItem(OfferedRequest& request, size_t index, const FoundItem* found);

  Report& report_;
  const std::string level_;
  const std::vector<std::string> durable_;
};

}  // namespace replay::fault
