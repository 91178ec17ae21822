#pragma once
// Plans: batches that were drawn for a key and are drawn the same when asked for again.
//
//   key = (consumer, step)     a plan = the draws for all ranks of it, dealt in turn: slot i (where groups are drawn:
//                              group i) is rank i mod world_size's; of a buffer with parts the ranks' slots stand one rank behind
//                              the other
//
// The plans of a consumer's kKeptPlans newest steps are kept with their frames, whatever leaves the buffer meanwhile. So a retry, or
// a rank that was started again, gets the batch it would have had, and the ranks get disjoint slots of one draw. An older step is
// refused (PLAN_EXPIRED), the same key with other arguments too (KEY_REUSED). The consumers asked for least recently are forgotten.
// Find O(consumers), Deal O(draws of all ranks), the others O(plans of the consumer). Belongs to its buffer's thread.

#include <cstdint>
#include <deque>
#include <list>
#include <string>

#include "server/archive.h"
#include "server/buffer.h"

namespace replay::server {

class Plans {
 public:
  struct Plan {
    int64_t step = 0;
    SampleRequest arguments;  // as asked for by one rank
    SampleResult batch;       // of all ranks
    bool in_parts = false;    // of a buffer with parts
    void Persist(Archive& archive);
  };

  // Whether the key's plan is kept: kDone and the plan, or kDone and null: it is to be drawn. kError: planExpired, keyReused.
  Verdict Find(const SampleRequest& request, const Plan** plan) const;
  // The consumer has asked: it is forgotten later. False if it was the last to ask, or has no plan.
  bool Touch(const std::string& consumer);
  // Keeps what was drawn for all ranks.
  const Plan* Keep(const SampleRequest& request, SampleResult&& batch, bool in_parts);
  // The part of the request's rank.
  static void Deal(const Plan& plan, uint32_t rank, SampleResult* result);
  // Lets go of the bytes of frames whose number is at most `written`.
  void Spill(uint64_t written);
  uint64_t size() const;
  void Persist(Archive& archive);
  uint64_t memory_bytes() const;

 private:
  // Of one of the lists, const or not, the consumer's place.
  template <typename List>
  static auto Look(List& consumers, const std::string& name);
  struct Consumer {
    std::string name;
    std::deque<Plan> plans;  // by step, at most kKeptPlans
    void Persist(Archive& archive) { archive(name, plans); }
  };
  std::list<Consumer> consumers_;  // most recently asked for first
};

}  // namespace replay::server
