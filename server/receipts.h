#pragma once
// Exactly-once insert: what each writer has already had inserted into one buffer.
//
// A writer numbers its requests 1, 2, 3 … and says with each up to where it has the answers (acknowledged_through). A request
// is decided when it is executed, not when it arrives, so a repeat that overtakes its first attempt is stored once as well.
//
//   sequence    :  … acknowledged_through ] [ window of max_receipts_per_writer ] beyond
//   Look answers :        kExpired             kDuplicate or kNew                  kTooMany
//
// Requests may come in any order within the window: one that timed out is retried after later ones were stored.
//
// A writer is known from the first look at its sequence 1 on, whatever becomes of that request (stored, refused, timed out).
// Receipts outlive the items. At most max_writers writers and kMaxReceipts receipts are remembered; over either, the writer
// that was not heard of for the longest time is forgotten whole, and told so when it comes back instead of being taken for new.
//
// A plain value on the buffer's thread. Look and Record: O(1), out of order O(window). 24 bytes a receipt, about 100 a writer.

#include <cstdint>
#include <memory>

#include "schema/message.h"
#include "server/archive.h"

namespace replay::server {

// Of all writers of one buffer: 24 MiB. 100,000 writers with 10 requests each in flight.
inline constexpr uint64_t kMaxReceipts = 1u << 20;
static_assert(kMaxReceipts >= kMaxReceiptsPerWriter);

struct Receipt {
  uint64_t first_item = 0;
  uint32_t count = 0;        // stored
  uint32_t fingerprint = 0;  // of the whole request, so that another request of that number is no repeat
};

class Receipts {
 public:
  explicit Receipts(uint32_t max_writers, uint32_t max_receipts_per_writer, uint64_t max_receipts = kMaxReceipts);
  ~Receipts();

  enum class Answer {
    kNew,        // Execute it, then Record it once it is stored. (Refused for good: no receipt, and a repeat is kNew again.)
    kDuplicate,  // *receipt is the first one.
    kExpired,    // An unknown writer beyond its first sequence, or a sequence the writer said it had the answer for.
    kTooMany,    // More than max_receipts_per_writer unacknowledged.
  };
  // `changed`, if given, is set when the look itself changed something: a new writer, what it has the answers for, whom to
  // forget first.
  Answer Look(Key128 writer, uint64_t sequence, uint64_t acknowledged_through, Receipt* receipt, bool* changed = nullptr);
  // Whether it has been recorded and the receipt is still there. Changes nothing.
  bool Has(Key128 writer, uint64_t sequence) const;
  // Right after Look answered kNew for it, in the same decision.
  void Record(Key128 writer, uint64_t sequence, const Receipt& receipt);

  uint64_t writer_count() const;
  uint64_t receipt_count() const;
  void Persist(Archive& archive);
  uint64_t memory_bytes() const;

 private:
  struct Tables;
  std::unique_ptr<Tables> tables_;
};

}  // namespace replay::server
