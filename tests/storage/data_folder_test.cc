#include "storage/data_folder.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include <filesystem>

#include "tests/support/temporary_folder.h"

namespace replay {
namespace {

constexpr uint64_t kReserve = 1 << 20;

TEST(DataFolder, IsMadeForItsOwnerAloneAndOpensAgain) {
  const test::TemporaryFolder around;
  const std::string path = around / "data";
  for (int i = 0; i < 2; ++i) {
    DataFolder folder;
    const StorageError error = folder.Open(path, kReserve);
    ASSERT_FALSE(error.failed()) << error.message;
    EXPECT_EQ(path, folder.path());
    EXPECT_EQ(kReserve, folder.reserve_bytes());
  }
  struct stat status {};
  ASSERT_EQ(0, stat(path.c_str(), &status));
  EXPECT_EQ(0700u, status.st_mode & 0777);
  EXPECT_EQ("replayd data 1\n", test::ReadFile(path + "/FORMAT"));
  EXPECT_FALSE(std::filesystem::exists(path + "/FORMAT.new"));
}

TEST(DataFolder, IsOfOneAtATimeAndSaysWhose) {
  const test::TemporaryFolder around;
  DataFolder first, second;
  ASSERT_FALSE(first.Open(around / "data", kReserve).failed());
  const StorageError error = second.Open(around / "data", kReserve);
  EXPECT_EQ(StorageProblem::kLocked, error.problem);
  EXPECT_EQ(around / "data" + " is in use by process " + std::to_string(getpid()), error.message);
}

TEST(DataFolder, IsFreeAgainHoweverItsOwnerEnds) {
  const test::TemporaryFolder around;
  const pid_t owner = fork();
  if (owner == 0) {
    DataFolder folder;
    const bool opened = !folder.Open(around / "data", kReserve).failed();
    raise(opened ? SIGKILL : SIGTERM);
  }
  int status = 0;
  ASSERT_EQ(owner, waitpid(owner, &status, 0));
  ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
  EXPECT_EQ(std::to_string(owner) + "\n", test::ReadFile(around / "data/LOCK"));
  DataFolder next;
  const StorageError error = next.Open(around / "data", kReserve);
  EXPECT_FALSE(error.failed()) << error.message;
}

// Opens a folder whose FORMAT says `format`, and leaves it as it is.
StorageError OpenWithFormat(const std::string& format) {
  const test::TemporaryFolder around;
  std::filesystem::create_directory(around / "data");
  test::WriteFile(around / "data/FORMAT", format);
  DataFolder folder;
  StorageError error = folder.Open(around / "data", kReserve);
  EXPECT_EQ(format, test::ReadFile(around / "data/FORMAT"));
  return error;
}

TEST(DataFolder, RefusesFormatsItDoesNotKnow) {
  EXPECT_FALSE(OpenWithFormat("replayd data 1\n").failed());
  for (const char* format : {"replayd data 2\n", "replayd data 0\n", "replayd data x\n", "replayd data 1.5\n", "replayd data ",
                             "", "something else\n"})
    EXPECT_EQ(StorageProblem::kFormat, OpenWithFormat(format).problem) << format;
  EXPECT_NE(std::string::npos,
            OpenWithFormat("replayd data 2\n").message.find("has format 2, written by a newer replayd: this one knows 1"));
}

TEST(DataFolder, LeavesAFolderOfOthersAlone) {
  const test::TemporaryFolder around;
  std::filesystem::create_directory(around / "photos");
  test::WriteFile(around / "photos/cat.jpg", "cat");
  DataFolder folder;
  const StorageError error = folder.Open(around / "photos", kReserve);
  EXPECT_EQ(StorageProblem::kFormat, error.problem);
  EXPECT_NE(std::string::npos, error.message.find("is not a data folder of replayd: it has no FORMAT, but cat.jpg"))
      << error.message;
  EXPECT_EQ(1, std::distance(std::filesystem::directory_iterator(around / "photos"), {}));
}

TEST(DataFolder, NamesWhatTheSystemRefuses) {
  const test::TemporaryFolder around;
  test::WriteFile(around / "file", "");
  {
    DataFolder folder;
    const StorageError error = folder.Open(around / "missing/data", kReserve);
    EXPECT_EQ(StorageProblem::kIo, error.problem);
    EXPECT_EQ("cannot make the folder " + (around / "missing/data") + ": No such file or directory", error.message);
  }
  {
    DataFolder folder;
    EXPECT_EQ(around / "file" + " is not a folder", folder.Open(around / "file", kReserve).message);
  }
  // A link in place of a file of ours could lead a daemon to write elsewhere.
  std::filesystem::create_directory(around / "linked");
  std::filesystem::create_symlink(around / "file", around / "linked/LOCK");
  DataFolder folder;
  EXPECT_EQ(StorageProblem::kIo, folder.Open(around / "linked", kReserve).problem);
  EXPECT_EQ("", test::ReadFile(around / "file"));
}

TEST(DataFolder, KeepsAReserveFree) {
  const test::TemporaryFolder around;
  uint64_t free = 0;
  ASSERT_FALSE(FreeBytes(around / "", &free).failed());
  {
    DataFolder folder;
    const StorageError error = folder.Open(around / "data", uint64_t{1} << 60);
    EXPECT_EQ(StorageProblem::kFull, error.problem);
    EXPECT_NE(std::string::npos, error.message.find("storage.reserve_bytes is 1152921504606846976")) << error.message;
  }
  EXPECT_FALSE(std::filesystem::exists(around / "data/FORMAT")) << "nothing is written on a full disk";
  DataFolder folder;
  ASSERT_FALSE(folder.Open(around / "data", kReserve).failed());
  EXPECT_FALSE(folder.HasRoomFor(0).failed());
  EXPECT_EQ(StorageProblem::kFull, folder.HasRoomFor(free * 2).problem);
  EXPECT_EQ(StorageProblem::kFull, folder.HasRoomFor(UINT64_MAX).problem);
}

TEST(DataFolder, ReservesATwentiethByDefault) {
  const test::TemporaryFolder around;
  uint64_t reserve = 0;
  ASSERT_FALSE(DefaultReserve(around / "", &reserve).failed());
  const auto space = std::filesystem::space(around / "");
  EXPECT_EQ(std::min<uint64_t>(space.capacity / 20, 1u << 30), reserve);
}

}  // namespace
}  // namespace replay
