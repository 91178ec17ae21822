#include "trainer/numbered_folders.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "tests/support/temporary_folder.h"

namespace replay::trainer {
namespace {

TEST(NumberedFolders, AreInOrderOfTheirNumbersAndPassOverOtherNames) {
  const test::TemporaryFolder folder;
  for (const char* name : {"step-10", "step-9", "step-100", "step-", "step-1x", "step-10.incomplete", "other-5", "step--1",
                           "step-99999999999999999999", "step-007"})
    std::filesystem::create_directory(folder / name);
  EXPECT_EQ(NumberedFolders(folder / "", "step-"), (std::vector<int64_t>{9, 10, 100}));
  EXPECT_TRUE(NumberedFolders(folder / "nowhere", "step-").empty());
}

}  // namespace
}  // namespace replay::trainer
