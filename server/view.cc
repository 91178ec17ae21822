#include "server/view.h"

#include "server/check.h"

namespace replay::server {

View::View(const ViewOptions& options, const Of& of)
    : options_(options),
      of_(of),
      selector_(MakeSelector({.kind = options.selector,
                              .priority_exponent = options.priority_exponent,
                              .staleness_decay = options.staleness_decay,
                              .of_view = true},
                             of.items)) {
  const std::string error = options.filter.empty() ? "" : Filter::Parse(options.filter, &filter_);
  CHECK(error.empty()) << "view " << options.name << ": " << error;
  looks_at_prompts_ = filter_.LooksAtPrompts();
  CHECK(of.prompts != nullptr || !looks_at_prompts_) << "view " << options.name << " looks at prompts that are not remembered";
}

bool View::Holds(uint32_t slot) const {
  if (filter_.LooksAt(FilterTerm::Field::kColumn) &&
      !filter_.HoldsForColumns([&](std::string_view name) { return HasColumn(slot, name); }))
    return false;
  const Item& item = (*of_.items)[slot];
  const PromptOutcomes prompt =
      looks_at_prompts_ ? of_.prompts->Of(of_.groups ? of_.groups->first(slot) : slot) : PromptOutcomes{};
  return filter_.Holds({.outcome = item.outcome(),
                        .zero_spread = item.zero_spread != 0,
                        .reward = item.reward,
                        .priority = of_.items->priority(slot),
                        .draws = item.draws,
                        .tokens = item.token_count,
                        .source = of_.sources->name(item.source),
                        .attempts = prompt.scored,
                        .successes = prompt.correct});
}

bool View::HasColumn(uint32_t slot, std::string_view name) const {
  if (of_.groups == nullptr) return of_.columns->Has(slot, name);
  bool all = true;
  of_.groups->ForEach(slot, [&](uint32_t member) { all &= of_.columns->Has(member, name); });
  return all;
}

bool View::HoldsForTags(uint32_t slot, const Frame& frame) const {
  if (!filter_.LooksAt(FilterTerm::Field::kTag)) return true;
  const uint32_t trajectory = of_.groups ? of_.groups->first(slot) : slot;
  return filter_.HoldsForTags([&](std::string_view name) { return of_.late_tags->Read(trajectory, frame, name); });
}

void View::Join(uint32_t slot) {
  const uint32_t cohort = (*of_.items)[slot].cohort;
  if (cohort >= members_of_.size()) members_of_.resize(cohort + 1);
  ++members_of_[cohort];
  ++members_;
  states_[slot] |= kMember;
  selector_->OnInsert(slot);
}

void View::Leave(uint32_t slot) {
  selector_->OnRemove(slot);
  --members_of_[(*of_.items)[slot].cohort];
  --members_;
  states_[slot] &= static_cast<uint8_t>(~kMember);
}

void View::OnInsert(uint32_t slot, const Frame& frame) {
  if (slot >= states_size_) {
    states_size_ = slot + 1;
    states_.Reserve(states_size_);
  }
  const bool tags = HoldsForTags(slot, frame);
  states_[slot] = tags ? kCandidate : 0;
  if (tags && Holds(slot)) Join(slot);
}

void View::OnRemove(uint32_t slot) {
  if (slot >= states_size_) return;
  if (states_[slot] & kMember) Leave(slot);
  states_[slot] = 0;
}

void View::OnTags(uint32_t slot, const Frame& frame) {
  if (slot >= states_size_) return;
  if (HoldsForTags(slot, frame)) {
    states_[slot] |= kCandidate;
    return;
  }
  if (states_[slot] & kMember) Leave(slot);
  states_[slot] = 0;
}

void View::OnChange(uint32_t slot) {
  if (slot >= states_size_ || !(states_[slot] & kCandidate)) return;
  const bool was = states_[slot] & kMember, is = Holds(slot);
  if (was && is) selector_->OnPriority(slot);
  if (was && !is) Leave(slot);
  if (!was && is) Join(slot);
}

void View::OnDrawn(std::span<const uint32_t> slots) {
  if (filter_.LooksAt(FilterTerm::Field::kDraws))
    for (const uint32_t slot : slots) OnChange(slot);
  selector_->OnDrawn(slots);
}

uint64_t View::CountInWindow(const Cohorts& cohorts, const StepWindow& window) const {
  uint64_t count = 0;
  for (uint32_t cohort = 0; cohort < members_of_.size(); ++cohort)
    if (members_of_[cohort] > 0 && cohorts.MayDraw(cohort, window)) count += members_of_[cohort];
  return count;
}

void View::Persist(Archive& archive) {
  archive(states_size_, members_of_, members_);
  archive.Entries(states_, states_size_);
  selector_->Persist(archive);
}

uint64_t View::memory_bytes() const {
  return states_.memory_bytes() + members_of_.capacity() * sizeof(uint32_t) + selector_->memory_bytes();
}

void View::CheckInvariants(const Cohorts& cohorts) const {
  uint64_t members = 0;
  std::vector<uint32_t> by_cohort(members_of_.size());
  for (uint32_t slot = of_.items->oldest(); slot != kNoSlot; slot = (*of_.items)[slot].newer) {
    const uint8_t state = slot < states_size_ ? states_[slot] : 0;
    const Item& item = (*of_.items)[slot];
    CHECK(((state & kCandidate) && Holds(slot)) == ((state & kMember) != 0)) << "item " << item.number;
    if (!(state & kMember)) continue;
    CHECK(cohorts.OfCurrentEpoch(item.cohort)) << "item " << item.number;
    ++by_cohort[item.cohort];
    ++members;
  }
  CHECK(members == members_ && by_cohort == members_of_) << members << " members of view " << options_.name;
  selector_->CheckInvariants(cohorts, members);
}

}  // namespace replay::server
