#pragma once
// Folders that are told apart by a number: "version-12", "checkpoint-300".

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace replay::trainer {

// The numbers behind `prefix` of the names in `folder`, lowest first; none where the folder is not there. Other names, as of
// what is not complete yet, are passed over.
std::vector<int64_t> NumberedFolders(const std::string& folder, std::string_view prefix);

}  // namespace replay::trainer
