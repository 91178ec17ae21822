#pragma once
// Prompts: what became of the rollouts of each prompt, also of those that have left the buffer.
//
//   prompt = (source, dataset index >= 0)       success = correct / scored       attempts = scored
//
// At most so many prompts are remembered; beyond, the one that was inserted into least recently is forgotten, and counts from 0
// when it comes again. Its live items are of no prompt then, as are those that were live before there was a history. Sources
// beyond those that have a number (sources.h) count as one.
//
// Costs: an insert O(log prompts). About 150 bytes a prompt, 4 bytes an item of the buffer. Linked (a view looks at success or
// attempts) 8 bytes an item more, and whoever changes a prompt looks at each live item of it: at each Insert into it once, however
// many trajectories that has, at an Update of correctness, and when it is forgotten. List: O(log prompts + page). Belongs to its
// buffer's thread.

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "server/archive.h"
#include "server/buffer.h"
#include "server/item_table.h"

namespace replay::server {

class Prompts {
 public:
  // `most` >= 1 are remembered. `items` outlives this.
  Prompts(uint64_t most, bool linked, const ItemTable* items) : most_(most), linked_(linked), items_(items) {}
  void SetMost(uint64_t most);
  void SetLinked(bool linked);  // O(items) when it becomes so

  // An item arrives. A negative `index`: it is of no prompt.
  void OnInsert(uint32_t slot, uint16_t source, int64_t index);
  void OnRemove(uint32_t slot);
  // The outcome of an item was another one until now.
  void OnRescore(uint32_t slot, Outcome before);

  // Of the item's prompt; all 0 if it is of none.
  const PromptOutcomes& Of(uint32_t slot) const;
  // Calls visit(slot) for each live item whose prompt has changed since the last call. Linked only.
  template <typename Visit>
  void VisitChanged(Visit visit) {
    for (const uint32_t slot : forgotten_slots_) visit(slot);
    forgotten_slots_.clear();
    for (const uint32_t prompt : changed_) {
      prompts_[prompt].changed = false;
      for (uint32_t slot = prompts_[prompt].newest_item; slot != kNoSlot; slot = links_[slot].older) visit(slot);
    }
    changed_.clear();
  }

  // The prompts of a source with an index above `after`, in order, at most `limit`; true if there are more.
  bool List(uint16_t source, int64_t after, uint32_t limit, std::vector<PromptOutcomes>* page) const;
  uint64_t size() const { return by_key_.size(); }
  uint64_t memory_bytes() const;
  void Persist(Archive& archive);
  // Dies with a message if a count or a link contradicts another. O(items + prompts).
  void CheckInvariants() const;

 private:
  static constexpr uint32_t kNoPrompt = UINT32_MAX;
  using Key = std::pair<uint16_t, int64_t>;
  struct Prompt {
    PromptOutcomes outcomes;
    uint64_t first_number = UINT64_MAX;  // Items before it are not counted here; UINT64_MAX: free.
    uint16_t source = 0;
    bool changed = false;
    uint32_t older = kNoPrompt, newer = kNoPrompt;  // by their last insert; of a free one: the next free one
    uint32_t newest_item = kNoSlot;                 // linked only
    void Persist(Archive& archive);
  };
  struct Link {
    uint32_t older = kNoSlot, newer = kNoSlot;
    void Persist(Archive& archive) { archive(older, newer); }
  };

  uint32_t PromptOf(uint32_t slot) const;
  uint32_t FindOrAdd(const Key& key, uint64_t number);
  void ForgetOldest();
  void Detach(uint32_t prompt);  // from the order of inserts
  void Attach(uint32_t prompt);  // as the newest
  void LinkItem(uint32_t slot, uint32_t prompt);
  void UnlinkItem(uint32_t slot, uint32_t prompt);
  void MarkChanged(uint32_t prompt);

  uint64_t most_;
  bool linked_;
  const ItemTable* const items_;
  std::map<Key, uint32_t> by_key_;
  SegmentedArray<Prompt, 1024> prompts_;
  uint32_t prompts_size_ = 0;
  uint32_t free_ = kNoPrompt, oldest_ = kNoPrompt, newest_ = kNoPrompt;
  SegmentedArray<uint32_t, 4096, 1u << 20> prompt_of_;  // by slot: prompt + 1; 0: none
  SegmentedArray<Link, 4096, 1u << 20> links_;          // by slot, linked only
  uint32_t slots_ = 0;
  std::vector<uint32_t> changed_;          // prompts
  std::vector<uint32_t> forgotten_slots_;  // live items that were of a forgotten one
};

}  // namespace replay::server
