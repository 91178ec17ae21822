#pragma once
// A view: the items of a buffer for which a filter holds, with a selector of its own. Declared on the buffer, so that a draw
// never scans: membership is decided when an item arrives and when something changes that the filter looks at.
//
// Costs, for each view: an evaluation of the filter (some 20 ns a term, a tag some 200 ns) at each insert and Update, and at each
// draw if it looks at draws; of all live items of a prompt at each change of its history if it looks at that (prompts.h); its
// selector's OnInsert and OnRemove; 1 byte an item of the buffer and the selector's memory.
// CountInWindow: O(cohorts). Belongs to its buffer's thread.

#include <cstdint>
#include <memory>
#include <vector>

#include "server/buffer_options.h"
#include "server/cohorts.h"
#include "server/columns.h"
#include "server/filter.h"
#include "server/groups.h"
#include "server/item_table.h"
#include "server/late_tags.h"
#include "server/prompts.h"
#include "server/selectors.h"
#include "server/sources.h"

namespace replay::server {

class View {
 public:
  // Whose items they are; outlives the view.
  struct Of {
    const ItemTable* items;
    const Sources* sources;
    const Columns* columns;
    const LateTags* late_tags;
    // Where groups are the unit: a group has the columns that all members have, and the tags and the prompt of its first.
    const Groups* groups;
    const Prompts* prompts;  // Null: none are remembered, and the filter does not look at them.
  };
  // `options` has passed CheckOptions, or has an empty filter, which always holds. Existing items are not in it yet.
  View(const ViewOptions& options, const Of& of);

  const ViewOptions& options() const { return options_; }
  // An item of a current epoch arrives, with this frame.
  void OnInsert(uint32_t slot, const Frame& frame);
  void OnRemove(uint32_t slot);  // likewise when its epoch becomes an older one
  // Its tags changed: OnChange is next. Only of an item of a current epoch.
  void OnTags(uint32_t slot, const Frame& frame);
  // Something changed that Update or a draw changes.
  void OnChange(uint32_t slot);
  // Its prompt changed.
  void OnPromptChange(uint32_t slot) {
    if (looks_at_prompts_) OnChange(slot);
  }
  void OnDrawn(std::span<const uint32_t> slots);  // distinct
  uint64_t members() const { return members_; }
  uint64_t CountInWindow(const Cohorts& cohorts, const StepWindow& window) const;
  Selector& selector() { return *selector_; }
  void Persist(Archive& archive);  // once the items have been read
  uint64_t memory_bytes() const;
  // Dies with a message if its members are not those it should have. O(items).
  void CheckInvariants(const Cohorts& cohorts) const;

 private:
  enum : uint8_t { kCandidate = 1, kMember = 2 };  // of a current epoch and with the right tags; and what changes is right too
  bool Holds(uint32_t slot) const;
  bool HasColumn(uint32_t slot, std::string_view name) const;
  bool HoldsForTags(uint32_t slot, const Frame& frame) const;
  void Join(uint32_t slot);
  void Leave(uint32_t slot);

  const ViewOptions options_;
  Filter filter_;
  const Of of_;
  bool looks_at_prompts_;
  std::unique_ptr<Selector> selector_;
  SegmentedArray<uint8_t, 4096, 1u << 20> states_;  // by slot
  uint32_t states_size_ = 0;
  std::vector<uint32_t> members_of_;  // by cohort
  uint64_t members_ = 0;
};

}  // namespace replay::server
