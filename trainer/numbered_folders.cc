#include "trainer/numbered_folders.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

namespace replay::trainer {

std::vector<int64_t> NumberedFolders(const std::string& folder, std::string_view prefix) {
  std::vector<int64_t> numbers;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    const std::string number = name.starts_with(prefix) ? name.substr(prefix.size()) : "";
    if (number.empty() || number.size() > 18 || number.find_first_not_of("0123456789") != std::string::npos) continue;
    const int64_t found = std::stoll(number);
    if (number == std::to_string(found)) numbers.push_back(found);  // "007" is nobody's
  }
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

}  // namespace replay::trainer
