#pragma once
// How what a Buffer is asked, told and made of goes through an Archive: the plain structs that know nothing of it.

#include <algorithm>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "schema/tags.h"
#include "schema/validate.h"
#include "server/archive.h"
#include "server/buffer.h"
#include "server/cohorts.h"
#include "server/policy_versions.h"

namespace replay::server {

void Persist(Archive& archive, FrameText& text);
void Persist(Archive& archive, TrajectoryFacts& facts);
void Persist(Archive& archive, NamedTag& tag);
void Persist(Archive& archive, Decimal& decimal);
void Persist(Archive& archive, ViewOptions& options);
void Persist(Archive& archive, BufferOptions& options);
void Persist(Archive& archive, PolicyVersion& version);
void Persist(Archive& archive, SamplePart& part);
void Persist(Archive& archive, SampleRequest& request);
void Persist(Archive& archive, DrawnItem& draw);
void Persist(Archive& archive, SampleResult& result);
void Persist(Archive& archive, ItemUpdate& update);
void Persist(Archive& archive, ReserveRequest& request);
void Persist(Archive& archive, AcknowledgeRequest& request);
void Persist(Archive& archive, CostReport& cost);
void Persist(Archive& archive, OutcomeCounts& counts);
void Persist(Archive& archive, PromptOutcomes& outcomes);
void Persist(Archive& archive, StepWindow& window);

// Lists by slot, in the order of the slots: the same state gives the same bytes.
template <typename Entry>
void PersistBySlot(Archive& archive, std::unordered_map<uint32_t, std::vector<Entry>>& by_slot) {
  if (archive.loading()) {
    for (uint64_t left = archive.Count(0); left > 0 && !archive.failed(); --left) {
      uint32_t slot = 0;
      archive(slot);
      archive(by_slot[slot]);
    }
    return;
  }
  std::vector<uint32_t> slots;
  slots.reserve(by_slot.size());
  for (const auto& [slot, entries] : by_slot) slots.push_back(slot);
  std::sort(slots.begin(), slots.end());
  archive.Count(slots.size());
  for (uint32_t slot : slots) archive(slot, by_slot[slot]);
}

}  // namespace replay::server
