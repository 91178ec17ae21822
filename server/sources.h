#pragma once
// The sources (environments, datasets) that the items of a buffer come from, by a short number. The first kMaxSources - 1
// different ones have a number each; what comes after them counts as "(other)", number 0. Number 1 is the empty source. Never
// forgets one. Find is O(1) for the source of the call before, else a hash.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "schema/limits.h"
#include "server/archive.h"

namespace replay::server {

class Sources {
 public:
  Sources() : names_{"(other)", ""} { numbers_.emplace("", 1); }

  uint16_t NumberOf(std::string_view source) {
    if (source == names_[last_]) [[likely]]
      return last_;
    return Look(source);
  }
  // Of one that has a number.
  std::optional<uint16_t> Find(const std::string& source) const {
    const auto found = numbers_.find(source);
    return found == numbers_.end() ? std::nullopt : std::optional(found->second);
  }
  const std::string& name(uint16_t number) const { return names_[number]; }
  uint16_t size() const { return static_cast<uint16_t>(names_.size()); }
  void Persist(Archive& archive) {
    archive(names_);
    for (uint16_t number = 1; archive.loading() && number < size(); ++number) numbers_.emplace(names_[number], number);
  }

 private:
  uint16_t Look(std::string_view source) {
    const auto found = numbers_.find(std::string(source));
    if (found != numbers_.end()) return last_ = found->second;
    if (names_.size() == kMaxSources) return 0;
    names_.emplace_back(source);
    last_ = static_cast<uint16_t>(names_.size() - 1);
    numbers_.emplace(source, last_);
    return last_;
  }

  std::vector<std::string> names_;
  std::unordered_map<std::string, uint16_t> numbers_;
  uint16_t last_ = 1;
};

}  // namespace replay::server
