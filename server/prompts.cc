#include "server/prompts.h"

#include <utility>

#include "server/check.h"
#include "server/requests_archive.h"

namespace replay::server {

void Prompts::SetMost(uint64_t most) {
  most_ = most;
  while (size() > most_) ForgetOldest();
}

void Prompts::SetLinked(bool linked) {
  if (linked == linked_) return;
  linked_ = linked;
  changed_.clear();
  forgotten_slots_.clear();
  for (uint32_t prompt = 0; prompt < prompts_size_; ++prompt) {
    prompts_[prompt].newest_item = kNoSlot;
    prompts_[prompt].changed = false;
  }
  if (!linked) return;
  links_.Reserve(slots_);
  for (uint32_t slot = 0; slot < slots_; ++slot) links_[slot] = Link();
  for (uint32_t slot = items_->oldest(); slot != kNoSlot; slot = (*items_)[slot].newer)
    if (const uint32_t prompt = PromptOf(slot); prompt != kNoPrompt) LinkItem(slot, prompt);
}

void Prompts::OnInsert(uint32_t slot, uint16_t source, int64_t index) {
  if (slot >= slots_) {
    slots_ = slot + 1;
    prompt_of_.Reserve(slots_);
    if (linked_) links_.Reserve(slots_);
  }
  prompt_of_[slot] = 0;
  if (index < 0) return;
  const Item& item = (*items_)[slot];
  const uint32_t prompt = FindOrAdd({source, index}, item.number);
  prompt_of_[slot] = prompt + 1;
  PromptOutcomes& outcomes = prompts_[prompt].outcomes;
  ++outcomes.rollouts;
  outcomes.scored += item.outcome() != Outcome::kUnknown;
  outcomes.correct += item.outcome() == Outcome::kCorrect;
  outcomes.reward_sum += static_cast<double>(item.reward);
  if (!linked_) return;
  LinkItem(slot, prompt);
  MarkChanged(prompt);
}

void Prompts::OnRemove(uint32_t slot) {
  if (!linked_) return;
  if (const uint32_t prompt = PromptOf(slot); prompt != kNoPrompt) UnlinkItem(slot, prompt);
}

void Prompts::OnRescore(uint32_t slot, Outcome before) {
  const uint32_t prompt = PromptOf(slot);
  const Outcome now = (*items_)[slot].outcome();
  if (prompt == kNoPrompt || now == before) return;
  PromptOutcomes& outcomes = prompts_[prompt].outcomes;
  outcomes.scored += now != Outcome::kUnknown;
  outcomes.scored -= before != Outcome::kUnknown;
  outcomes.correct += now == Outcome::kCorrect;
  outcomes.correct -= before == Outcome::kCorrect;
  if (linked_) MarkChanged(prompt);
}

const PromptOutcomes& Prompts::Of(uint32_t slot) const {
  static const PromptOutcomes kNothing;
  const uint32_t prompt = PromptOf(slot);
  return prompt == kNoPrompt ? kNothing : prompts_[prompt].outcomes;
}

// A slot that is used again, and a prompt that is, may leave an old number behind: the item is then older than the prompt.
uint32_t Prompts::PromptOf(uint32_t slot) const {
  if (slot >= slots_ || prompt_of_[slot] == 0) return kNoPrompt;
  const uint32_t prompt = prompt_of_[slot] - 1;
  return (*items_)[slot].number >= prompts_[prompt].first_number ? prompt : kNoPrompt;
}

uint32_t Prompts::FindOrAdd(const Key& key, uint64_t number) {
  if (const auto found = by_key_.find(key); found != by_key_.end()) {
    if (found->second != newest_) {
      Detach(found->second);
      Attach(found->second);
    }
    return found->second;
  }
  if (size() >= most_) ForgetOldest();
  uint32_t prompt = free_;
  if (prompt == kNoPrompt) {
    prompt = prompts_size_++;
    prompts_.Reserve(prompts_size_);
  } else {
    free_ = prompts_[prompt].older;
  }
  prompts_[prompt] = Prompt{};
  prompts_[prompt].outcomes.dataset_index = key.second;
  prompts_[prompt].source = key.first;
  prompts_[prompt].first_number = number;
  Attach(prompt);
  by_key_.emplace(key, prompt);
  return prompt;
}

void Prompts::ForgetOldest() {
  const uint32_t prompt = oldest_;
  Prompt& entry = prompts_[prompt];
  for (uint32_t slot = entry.newest_item; slot != kNoSlot; slot = links_[slot].older) {
    prompt_of_[slot] = 0;
    forgotten_slots_.push_back(slot);
  }
  by_key_.erase({entry.source, entry.outcomes.dataset_index});
  Detach(prompt);
  entry = Prompt{};
  entry.older = free_;
  free_ = prompt;
}

void Prompts::Detach(uint32_t prompt) {
  const Prompt& entry = prompts_[prompt];
  (entry.older == kNoPrompt ? oldest_ : prompts_[entry.older].newer) = entry.newer;
  (entry.newer == kNoPrompt ? newest_ : prompts_[entry.newer].older) = entry.older;
}

void Prompts::Attach(uint32_t prompt) {
  prompts_[prompt].older = newest_;
  prompts_[prompt].newer = kNoPrompt;
  (newest_ == kNoPrompt ? oldest_ : prompts_[newest_].newer) = prompt;
  newest_ = prompt;
}

void Prompts::LinkItem(uint32_t slot, uint32_t prompt) {
  uint32_t& newest = prompts_[prompt].newest_item;
  links_[slot] = {.older = newest, .newer = kNoSlot};
  if (newest != kNoSlot) links_[newest].newer = slot;
  newest = slot;
}

void Prompts::UnlinkItem(uint32_t slot, uint32_t prompt) {
  const Link link = links_[slot];
  (link.newer == kNoSlot ? prompts_[prompt].newest_item : links_[link.newer].older) = link.older;
  if (link.older != kNoSlot) links_[link.older].newer = link.newer;
}

void Prompts::MarkChanged(uint32_t prompt) {
  if (!std::exchange(prompts_[prompt].changed, true)) changed_.push_back(prompt);
}

bool Prompts::List(uint16_t source, int64_t after, uint32_t limit, std::vector<PromptOutcomes>* page) const {
  page->clear();
  auto at = by_key_.upper_bound({source, after});
  for (; at != by_key_.end() && at->first.first == source && page->size() < limit; ++at)
    page->push_back(prompts_[at->second].outcomes);
  return at != by_key_.end() && at->first.first == source;
}

uint64_t Prompts::memory_bytes() const {
  constexpr uint64_t kNodeBytes = 32 + sizeof(std::pair<const Key, uint32_t>) + 8;  // of the map, and malloc's header
  return prompts_.memory_bytes() + prompt_of_.memory_bytes() + links_.memory_bytes() + by_key_.size() * kNodeBytes +
         (changed_.capacity() + forgotten_slots_.capacity()) * sizeof(uint32_t);
}

void Prompts::Prompt::Persist(Archive& archive) { archive(outcomes, first_number, source, changed, older, newer, newest_item); }

void Prompts::Persist(Archive& archive) {
  archive(prompts_size_, free_, oldest_, newest_, slots_, changed_, forgotten_slots_);
  archive.Entries(prompts_, prompts_size_);
  archive.Entries(prompt_of_, slots_);
  if (linked_) archive.Entries(links_, slots_);
  if (!archive.loading() || archive.failed()) return;
  for (uint32_t prompt = oldest_; prompt != kNoPrompt; prompt = prompts_[prompt].newer)
    by_key_.emplace(Key{prompts_[prompt].source, prompts_[prompt].outcomes.dataset_index}, prompt);
}

void Prompts::CheckInvariants() const {
  CHECK(size() <= most_) << size() << " prompts of " << most_;
  uint64_t in_order = 0, linked = 0, of_a_prompt = 0;
  for (uint32_t prompt = oldest_; prompt != kNoPrompt; prompt = prompts_[prompt].newer, ++in_order) {
    const Prompt& entry = prompts_[prompt];
    const PromptOutcomes& outcomes = entry.outcomes;
    const auto found = by_key_.find({entry.source, outcomes.dataset_index});
    CHECK(found != by_key_.end() && found->second == prompt) << "prompt " << outcomes.dataset_index;
    CHECK(outcomes.correct <= outcomes.scored && outcomes.scored <= outcomes.rollouts && outcomes.rollouts > 0)
        << outcomes.correct << " of " << outcomes.scored << " of " << outcomes.rollouts;
    for (uint32_t slot = entry.newest_item; slot != kNoSlot; slot = links_[slot].older, ++linked)
      CHECK(PromptOf(slot) == prompt && (*items_)[slot].number != 0) << "slot " << slot;
  }
  CHECK(in_order == size()) << in_order << " prompts in order, " << size() << " by key";
  for (uint32_t slot = items_->oldest(); slot != kNoSlot; slot = (*items_)[slot].newer)
    of_a_prompt += PromptOf(slot) != kNoPrompt;
  CHECK(linked == (linked_ ? of_a_prompt : 0)) << linked << " linked of " << of_a_prompt;
}

}  // namespace replay::server
