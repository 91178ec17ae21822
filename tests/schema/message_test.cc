#include "schema/message.h"

#include <gtest/gtest.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

#include <memory>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include "schema/protocol.capnp.h"
#include "tests/support/make_trajectory.h"

namespace replay {
namespace {

using test::MakeTrajectory;
using test::SealWords;

std::vector<uint8_t> BytesOf(const Frame& frame) { return {frame.bytes().begin(), frame.bytes().end()}; }

// --- Checksum --------------------------------------------------------------------------------------------------------------

TEST(Checksum, IsXxh3) {
  // Bytes on disk must mean the same for ever, whatever libxxhash is linked (XXH3 is stable since 0.8.0).
  EXPECT_EQ(Checksum({}), 0x2d06800538d394c2u);
  const auto sum = [](const std::string& text) {
    return Checksum({reinterpret_cast<const uint8_t*>(text.data()), text.size()});
  };
  EXPECT_EQ(sum("replayd"), 0xae88dd3ed18f096cu);
  EXPECT_EQ(sum(std::string(300, 'x')), 0xa5d1b4607dc83554u);  // beyond 240 bytes another code path runs
}

#if defined(__x86_64__)
[[gnu::target("xsave")]] uint64_t StateInUse() { return _xgetbv(1); }

TEST(Checksum, LeavesNoUpperHalvesOfVectorRegistersInUse) {
  unsigned int a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid_count(0xd, 1, &a, &b, &c, &d) || (a & 4) == 0)
    GTEST_SKIP() << "this processor does not tell which register state is in use";
  constexpr uint64_t kUpperHalves = 1u << 2, kAvx512UpperHalves = 1u << 6;
  const std::vector<uint8_t> bytes(4096, 1);
  const uint64_t sum = Checksum(bytes);
  EXPECT_EQ(0u, StateInUse() & (kUpperHalves | kAvx512UpperHalves)) << sum;
}
#endif

TEST(Checksum, NoticesEveryFlippedBitOfAFrame) {
  std::vector<uint8_t> bytes = BytesOf(MakeTrajectory({.length = 5}));
  ASSERT_TRUE(FrameChecksumMatches(bytes));
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    bytes[bit / 8] ^= static_cast<uint8_t>(1 << (bit % 8));
    EXPECT_FALSE(FrameChecksumMatches(bytes)) << "bit " << bit;
    bytes[bit / 8] ^= static_cast<uint8_t>(1 << (bit % 8));
  }
  EXPECT_TRUE(FrameChecksumMatches(bytes));
}

TEST(Checksum, SealMakesAChangedFrameMatchAgain) {
  std::vector<uint8_t> bytes = BytesOf(MakeTrajectory());
  bytes[40] ^= 1;
  EXPECT_FALSE(FrameChecksumMatches(bytes));
  SealFrame(bytes);
  EXPECT_TRUE(FrameChecksumMatches(bytes));
}

// --- Shape -----------------------------------------------------------------------------------------------------------------

TEST(FrameShape, OfARealFrameIsFine) {
  EXPECT_EQ("", CheckFrameShape(MakeTrajectory().bytes()));
  EXPECT_EQ("", CheckFrameShape(SealWords({0}).bytes()));  // the smallest: a null root
}

TEST(FrameShape, NamesWhatIsWrong) {
  std::vector<uint8_t> bytes = BytesOf(SealWords({0, 0}));
  const auto with_table = [&](uint32_t segments_less_one, uint32_t words) {
    std::vector<uint8_t> changed = bytes;
    std::memcpy(changed.data(), &segments_less_one, 4);
    std::memcpy(changed.data() + 4, &words, 4);
    return CheckFrameShape(changed);
  };
  EXPECT_EQ("", with_table(0, 2));
  EXPECT_EQ("frame has 2 segments: it must have one", with_table(1, 2));
  EXPECT_EQ("frame has 4294967296 segments: it must have one", with_table(0xffffffff, 2));
  EXPECT_EQ("frame says its segment has 1 words, its size says 2", with_table(0, 1));
  EXPECT_EQ("frame says its segment has 4294967295 words, its size says 2", with_table(0, 0xffffffff));
}

TEST(FrameShape, EveryTruncationIsRefused) {
  const Frame frame = MakeTrajectory({.length = 9});
  for (uint64_t size = 0; size < frame.size(); ++size) {
    const std::string error = CheckFrameShape(frame.bytes().first(size));
    if (size < kMinFrameBytes) {
      EXPECT_EQ("frame has " + std::to_string(size) + " bytes, fewer than 24", error);
    } else if (size % 8 != 0) {
      EXPECT_EQ("frame has " + std::to_string(size) + " bytes, not a multiple of 8", error);
    } else {
      EXPECT_EQ("frame says its segment has " + std::to_string(frame.size() / 8 - 2) + " words, its size says " +
                    std::to_string(size / 8 - 2),
                error);
    }
  }
}

TEST(FrameShape, StopsAtTheLargestFrame) {
  // Only the size is looked at: the pages are never touched.
  const std::unique_ptr<uint8_t[]> memory(new uint8_t[kMaxFrameBytes + 8]);
  EXPECT_EQ("frame has 67108872 bytes, more than 67108864", CheckFrameShape({memory.get(), kMaxFrameBytes + 8}));
}

// --- Frame -----------------------------------------------------------------------------------------------------------------

TEST(FrameOwnership, LastOwnerGivesTheReservationBack) {
  MemoryBudget budget(1000);
  ASSERT_TRUE(budget.TryReserve(600));
  Frame first = Frame::Allocate(600, &budget);
  EXPECT_EQ(600u, first.size());
  Frame second = first;
  Frame third = std::move(first);
  EXPECT_FALSE(first);  // NOLINT(bugprone-use-after-move): moved from means empty
  EXPECT_EQ(0u, first.size());
  EXPECT_EQ(second.data(), third.data());
  second = Frame();
  EXPECT_EQ(600, budget.used_bytes());
  third = third;  // NOLINT: self-assignment keeps it
  EXPECT_EQ(600u, third.size());
  third = Frame();
  EXPECT_EQ(0, budget.used_bytes());
}

TEST(FrameOwnership, BodyIs16AlignedAndEmptyFramesAreFine) {
  for (uint64_t size : {0u, 1u, 8u, 24u, 4096u, 100'000u}) {
    Frame frame = Frame::Allocate(size);
    EXPECT_EQ(0u, reinterpret_cast<uintptr_t>(frame.data()) % 16);
    EXPECT_EQ(size, frame.bytes().size());
  }
  EXPECT_FALSE(Frame());
  EXPECT_TRUE(Frame().bytes().empty());
  EXPECT_TRUE(Frame::CopyOf({}));
}

TEST(FrameOwnership, ANumberStaysWithTheBlockAndLeavesSizeAndBudgetAlone) {
  MemoryBudget budget(1000);
  ASSERT_TRUE(budget.TryReserve(600));
  {
    Frame frame = Frame::Allocate(600, &budget);
    EXPECT_EQ(0u, frame.number());
    for (const uint64_t number : {uint64_t{1}, uint64_t{0xffffffff}, uint64_t{1} << 32, Frame::kMaxNumber}) {
      frame.SetNumber(number);
      const Frame other = frame;
      EXPECT_EQ(number, other.number());
      EXPECT_EQ(600u, other.size());
    }
  }
  EXPECT_EQ(0, budget.used_bytes());
}

TEST(MemoryBudget, ThereAreSoManyAtATimeAndPlacesAreUsedAgain) {
  for (int round = 0; round < 2; ++round) {
    std::vector<std::unique_ptr<MemoryBudget>> budgets;
    EXPECT_THROW(for (uint32_t i = 0; i <= MemoryBudget::kMost; ++i) budgets.push_back(std::make_unique<MemoryBudget>(100)),
                 std::length_error);
    ASSERT_EQ(MemoryBudget::kMost, budgets.size());
    ASSERT_TRUE(budgets.back()->TryReserve(10));
    { const Frame frame = Frame::Allocate(10, budgets.back().get()); }
    EXPECT_EQ(0, budgets.back()->used_bytes());
  }
}

TEST(FrameOwnership, MayBeSharedByManyThreads) {
  MemoryBudget budget(1 << 20);
  constexpr int kThreads = 4;
  ASSERT_TRUE(budget.TryReserve(4096));
  Frame frame = Frame::Allocate(4096, &budget);
  std::memset(frame.mutable_data(), 7, 4096);
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([copy = frame, &wrong] {
      for (int i = 0; i < 20'000; ++i) {
        Frame mine = copy;
        if (mine.data()[i % 4096] != 7) ++wrong;
      }
    });
  }
  frame = Frame();
  for (std::thread& thread : threads) thread.join();
  threads.clear();
  EXPECT_EQ(0, wrong);
  EXPECT_EQ(0, budget.used_bytes());
}

TEST(MemoryBudget, NeverGrantsMoreThanItHas) {
  constexpr int64_t kLimit = 1000;
  MemoryBudget budget(kLimit);
  EXPECT_TRUE(budget.TryReserve(kLimit));
  EXPECT_FALSE(budget.TryReserve(1));
  EXPECT_TRUE(budget.TryReserve(0));
  budget.Release(kLimit);
  EXPECT_EQ(0, budget.used_bytes());

  std::atomic<int64_t> held = 0;
  std::atomic<int64_t> most = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50'000; ++i) {
        const int64_t bytes = (i * 37 + t * 101) % 400;
        if (!budget.TryReserve(bytes)) continue;
        const int64_t now = held.fetch_add(bytes) + bytes;
        for (int64_t seen = most; now > seen && !most.compare_exchange_weak(seen, now);) {
        }
        held.fetch_sub(bytes);
        budget.Release(bytes);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(most, kLimit);
  EXPECT_EQ(0, budget.used_bytes());
  EXPECT_EQ(kLimit, budget.limit_bytes());
}

// --- Key128 ----------------------------------------------------------------------------------------------------------------

TEST(Key128, DiffersForDifferentIdsAndIsNeverTheEmptyKey) {
  std::set<std::pair<uint64_t, uint64_t>> seen;
  for (int i = 0; i < 10'000; ++i) {
    const Key128 key = HashId("id" + std::to_string(i));
    EXPECT_NE(Key128{}, key);
    seen.insert({key.high, key.low});
  }
  EXPECT_EQ(10'000u, seen.size());
  EXPECT_EQ(HashId("a"), HashId(std::string("a")));
  EXPECT_NE(HashId(""), HashId(std::string_view("\0", 1)));
}

// --- Preamble --------------------------------------------------------------------------------------------------------------

TEST(PreambleRules, EachNamesFieldValueAndRule) {
  const auto check = [](auto change) {
    Preamble preamble;
    preamble.control_words = 2;
    change(preamble);
    return CheckPreamble(preamble, 1024, 4096);
  };
  EXPECT_EQ("", check([](Preamble&) {}));
  EXPECT_EQ("", check([](Preamble& p) { p.control_words = 128, p.payload_bytes = 4096; }));
  EXPECT_EQ("magic is not \"RPLY\": this is not the replay protocol", check([](Preamble& p) { p.magic = 0x20544547; }));
  EXPECT_EQ("protocol version 2 is not supported, only 1", check([](Preamble& p) { p.version = 2; }));
  EXPECT_EQ("flags is 1: it must be 0", check([](Preamble& p) { p.flags = 1; }));
  EXPECT_EQ("reserved is 7: it must be 0", check([](Preamble& p) { p.reserved = 7; }));
  EXPECT_EQ("control_words is 0: a message has a control part", check([](Preamble& p) { p.control_words = 0; }));
  EXPECT_EQ("control_words is 129: at most 128 are allowed here", check([](Preamble& p) { p.control_words = 129; }));
  // 2^29 words would be 2^32 bytes: 0 in 32 bits.
  EXPECT_EQ("control_words is 536870912: at most 128 are allowed here", check([](Preamble& p) { p.control_words = 1u << 29; }));
  EXPECT_EQ("control_words is 4294967295: at most 128 are allowed here", check([](Preamble& p) { p.control_words = ~0u; }));
  EXPECT_EQ("payload_bytes is 4104: at most 4096 are allowed", check([](Preamble& p) { p.payload_bytes = 4104; }));
  EXPECT_EQ("payload_bytes is 18446744073709551615: at most 4096 are allowed",
            check([](Preamble& p) { p.payload_bytes = ~0ull; }));
  EXPECT_EQ("payload_bytes is 12: it must be a multiple of 8", check([](Preamble& p) { p.payload_bytes = 12; }));
}

TEST(PreambleRules, LayoutIsTheOneOnTheWire) {
  Preamble preamble;
  preamble.control_words = 0x01020304;
  preamble.payload_bytes = 0x1112131415161718;
  const uint8_t expected[24] = {'R', 'P', 'L', 'Y', 1,    0,    0,    0,    0x04, 0x03, 0x02, 0x01,
                                0,   0,   0,   0,   0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11};
  EXPECT_EQ(0, std::memcmp(expected, &preamble, sizeof preamble));
}

// --- Control messages ------------------------------------------------------------------------------------------------------

std::string Describe(std::span<const uint8_t> message) {
  Preamble preamble;
  std::memcpy(&preamble, message.data(), sizeof preamble);
  if (std::string error = CheckPreamble(preamble, 1 << 20, 1 << 20); !error.empty()) return error;
  if (message.size() != sizeof preamble + preamble.control_words * 8) return "size does not agree";
  ControlReader reader(message.data() + sizeof preamble, preamble.control_words);
  const auto request = reader.Root<schema::Request>();
  std::string text = "id=" + std::to_string(request.getId()) + " timeout=" + std::to_string(request.getTimeoutMs()) +
                     " payload=" + std::to_string(preamble.payload_bytes);
  if (request.isInsert()) {
    text += " insert " + std::string(request.getInsert().getBuffer().cStr());
    for (uint32_t bytes : request.getInsert().getFrameBytes()) text += " " + std::to_string(bytes);
  } else if (request.isStats()) {
    text += " stats " + std::string(request.getStats().getBuffer().cStr());
  } else if (request.isPing()) {
    text += " ping";
  }
  return text;
}

TEST(ControlBuilder, StartsEachMessageFromZero) {
  ControlBuilder builder(64);
  {
    auto request = builder.Start<schema::Request>(64);
    request.setId(~0ull);
    request.setTimeoutMs(~0u);
    auto insert = request.initInsert();
    insert.setBuffer("rollouts");
    auto sizes = insert.initFrameBytes(20);
    for (uint32_t i = 0; i < 20; ++i) sizes.set(i, ~0u);
    EXPECT_EQ(0u, builder.Finish(4096).size() % 8);
  }
  {
    auto request = builder.Start<schema::Request>(64);
    EXPECT_EQ(0u, request.getId());
    request.initStats();
    EXPECT_EQ("id=0 timeout=0 payload=0 stats ", Describe(builder.Finish(0)));
  }
  {
    auto request = builder.Start<schema::Request>(64);
    auto sizes = request.initInsert().initFrameBytes(20);
    for (uint32_t entry : sizes) EXPECT_EQ(0u, entry);
    EXPECT_EQ("id=0 timeout=0 payload=8 insert  0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0", Describe(builder.Finish(8)));
  }
}

TEST(ControlBuilder, IsZeroAgainAfterAMessageThatWasNeverFinished) {
  ControlBuilder builder(64);
  auto abandoned = builder.Start<schema::Request>(64).initInsert().initFrameBytes(80);
  for (uint32_t i = 0; i < 80; ++i) abandoned.set(i, ~0u);
  auto request = builder.Start<schema::Request>(64);
  auto sizes = request.initInsert().initFrameBytes(80);
  for (uint32_t entry : sizes) EXPECT_EQ(0u, entry);
}

TEST(ControlBuilder, MoreThanWasAskedForThrowsAndLeavesItUsable) {
  ControlBuilder builder(16);
  for (uint32_t words = 0; words < 24; ++words) {
    const auto build = [&] {
      auto request = builder.Start<schema::Request>(words);
      request.setId(5);
      request.initStats().setBuffer("0123456789abcdef0123456789abcdef0123456");  // 5 words with its NUL
      return Describe(builder.Finish(0));
    };
    // Root pointer 1, Request 3 + 2 pointers at most, Stats 1, text 5.
    if (words < 10) {
      EXPECT_THROW(build(), kj::Exception) << words;
    } else if (words >= 12) {
      EXPECT_EQ("id=5 timeout=0 payload=0 stats 0123456789abcdef0123456789abcdef0123456", build()) << words;
    }
    builder.Start<schema::Request>(12).setPing();
    EXPECT_EQ("id=0 timeout=0 payload=0 ping", Describe(builder.Finish(0)));
  }
}

TEST(ControlBuilder, GrowsOnceAndKeepsWhatItHas) {
  ControlBuilder builder(8);
  auto request = builder.Start<schema::Request>(5000);
  request.initInsert().initFrameBytes(9000).set(8999, 77);
  std::span<const uint8_t> message = builder.Finish(16);
  Preamble preamble;
  std::memcpy(&preamble, message.data(), sizeof preamble);
  ControlReader reader(message.data() + sizeof preamble, preamble.control_words);
  EXPECT_EQ(77u, reader.Root<schema::Request>().getInsert().getFrameBytes()[8999]);
  builder.Start<schema::Request>(8).setPing();
  EXPECT_EQ("id=0 timeout=0 payload=0 ping", Describe(builder.Finish(0)));
}

TEST(ControlReader, AnUnknownUnionMemberIsVisibleAsSuch) {
  ControlBuilder builder;
  builder.Start<schema::Request>(16).setPing();
  std::span<const uint8_t> message = builder.Finish(0);
  std::vector<uint64_t> words(message.size() / 8);
  std::memcpy(words.data(), message.data(), message.size());
  // Root pointer at word 3, Request data from word 4: id, then timeoutMs u32 and the union's tag u16 at byte 12.
  reinterpret_cast<uint16_t*>(&words[5])[2] = 999;
  ControlReader reader(words.data() + 3, static_cast<uint32_t>(words.size() - 3));
  EXPECT_EQ(999, static_cast<int>(reader.Root<schema::Request>().which()));
}

TEST(ControlReader, ATruncatedMessageThrowsOrReadsDefaultsButNeverReadsPastItsEnd) {
  ControlBuilder builder;
  auto request = builder.Start<schema::Request>(64);
  auto insert = request.initInsert();
  insert.setBuffer("rollouts");
  insert.initFrameBytes(9).set(8, 4096);
  const std::span<const uint8_t> message = builder.Finish(0);
  const size_t words = message.size() / 8 - 3;
  for (uint32_t kept = 0; kept < words; ++kept) {
    const std::unique_ptr<uint64_t[]> exact(new uint64_t[kept]);  // AddressSanitizer watches its end
    std::memcpy(exact.get(), message.data() + 24, kept * 8);
    const auto read = [&] {
      ControlReader reader(exact.get(), kept);
      const auto cut = reader.Root<schema::Request>();
      uint64_t sum = cut.getInsert().getBuffer().size();
      for (uint32_t bytes : cut.getInsert().getFrameBytes()) sum += bytes;
      return sum;
    };
    EXPECT_THROW(read(), kj::Exception) << kept << " of " << words << " words";
  }
}

}  // namespace
}  // namespace replay
