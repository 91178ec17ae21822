#include "server/retention.h"

#include <gtest/gtest.h>

#include <deque>
#include <random>
#include <string>
#include <vector>

namespace replay::server {
namespace {

BufferOptions PositiveBias(uint64_t capacity, const char* delta) {
  BufferOptions options;
  options.capacity_items = capacity;
  options.retention = RetentionKind::kPositiveBias;
  EXPECT_EQ("", ParseDecimal(delta, &options.delta));
  return options;
}

// Carries out what Retention decides, on plain deques.
struct Rings {
  explicit Rings(const BufferOptions& options) : retention(options) {}
  struct Entry {
    int number;
    bool correct;
    uint64_t bytes;
  };
  Retention retention;
  std::deque<Entry> positive, fresh;
  std::string removed;

  void Insert(int number, bool correct, uint64_t bytes = 1) {
    fresh.push_back({number, correct, bytes});
    Settle();
  }
  void Settle() {
    for (;;) {
      uint64_t bytes = 0;
      for (const auto& ring : {positive, fresh})
        for (const Entry& entry : ring) bytes += entry.bytes;
      switch (retention.Next({fresh.size(), positive.size(), bytes, !fresh.empty() && fresh.front().correct})) {
        case Retention::Step::kDone:
          return;
        case Retention::Step::kMakeFresh:
          fresh.push_front(positive.back());
          positive.pop_back();
          break;
        case Retention::Step::kMakePositive:
          positive.push_back(fresh.front());
          fresh.pop_front();
          break;
        case Retention::Step::kEvictPositive:
        case Retention::Step::kEvictPositiveForBytes:
          removed += " " + std::to_string(positive.front().number);
          positive.pop_front();
          break;
        case Retention::Step::kEvictOldestFresh:
        case Retention::Step::kEvictOldestFreshForBytes:
          removed += " " + std::to_string(fresh.front().number);
          fresh.pop_front();
          break;
      }
    }
  }
  std::string Describe() const {
    std::string text;
    for (const Entry& entry : positive) text += std::to_string(entry.number) + " ";
    text += "|";
    for (const Entry& entry : fresh) text += " " + std::to_string(entry.number);
    return text;
  }
};

// arXiv 2604.08706: N = 8 and (t-9 .. t) = x v v x v v x v x x keeps t-8 t-7 t-5 t-4 t-3 t-2 t-1 t.
TEST(Retention, KeepsWhatThePaperPrints) {
  for (const char* delta : {"0.25", "0.375", "0.5"}) {
    Rings rings(PositiveBias(8, delta));
    const std::string marks = "xvvxvvxvxx";
    for (int i = 0; i < 10; ++i) rings.Insert(i - 9, marks[static_cast<size_t>(i)] == 'v');
    std::string kept;
    for (const auto& ring : {rings.positive, rings.fresh})
      for (const auto& entry : ring) kept += std::to_string(entry.number) + " ";
    EXPECT_EQ("-8 -7 -5 -4 -3 -2 -1 0 ", kept) << "delta " << delta;
  }
}

TEST(Retention, EqualsItsDefinitionOverRandomHistories) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 50; ++round) {
    const char* deltas[] = {"0", "0.1", "0.25", "0.29", "0.5", "0.9"};
    const BufferOptions options = PositiveBias(1 + random() % 30, deltas[random() % 6]);
    Rings rings(options);
    std::vector<bool> history;
    for (int i = 0; i < 200; ++i) {
      history.push_back(random() % 3 == 0);
      rings.Insert(i, history.back());
      std::string expected = "|";
      int at = i;
      for (; at >= 0 && i - at < static_cast<int>(options.fresh_capacity()); --at) expected.insert(1, " " + std::to_string(at));
      for (uint64_t kept = 0; at >= 0 && kept < options.positive_capacity(); --at) {
        if (!history[static_cast<size_t>(at)]) continue;
        expected.insert(0, std::to_string(at) + " ");
        ++kept;
      }
      ASSERT_EQ(expected, rings.Describe()) << "round " << round << " insert " << i;
    }
  }
}

TEST(Retention, FlooringOfDeltaIsExact) {
  EXPECT_EQ(29u, PositiveBias(100, "0.29").positive_capacity());
  EXPECT_EQ(71u, PositiveBias(100, "0.29").fresh_capacity());
}

TEST(Retention, BytesEvictPositiveItemsFirst) {
  BufferOptions options = PositiveBias(6, "0.5");
  options.capacity_bytes = 10;
  Rings rings(options);
  for (int i = 1; i <= 6; ++i) rings.Insert(i, true);
  EXPECT_EQ("1 2 3 | 4 5 6", rings.Describe());
  rings.Insert(7, true, 6);  // 1 leaves for capacity; 1+1+1 + 1+1+6 = 11
  EXPECT_EQ("3 4 | 5 6 7", rings.Describe());
  rings.Insert(8, true, 6);
  EXPECT_EQ("| 8", rings.Describe());
  EXPECT_EQ(" 1 2 3 4 5 6 7", rings.removed);
}

TEST(Retention, ARaisedFreshCapacityMakesTheNewestPositiveItemsFreshAgain) {
  Rings rings(PositiveBias(8, "0.5"));
  for (int i = 1; i <= 8; ++i) rings.Insert(i, true);
  rings.retention = Retention(PositiveBias(8, "0.25"));
  rings.Settle();
  EXPECT_EQ("1 2 | 3 4 5 6 7 8", rings.Describe());
  BufferOptions fifo;
  fifo.capacity_items = 4;
  rings.retention = Retention(fifo);
  rings.Settle();
  EXPECT_EQ("| 5 6 7 8", rings.Describe());
}

TEST(Retention, UnknownIsDecidedByTheThresholdOnlyWhereTheProducerSaidNothing) {
  BufferOptions options;
  EXPECT_EQ(Outcome::kUnknown, Retention(options).Decide(Outcome::kUnknown, 1));
  options.correct_threshold = 0.7;
  const Retention retention(options);
  EXPECT_EQ(Outcome::kCorrect, retention.Decide(Outcome::kUnknown, 0.7f));
  EXPECT_EQ(Outcome::kIncorrect, retention.Decide(Outcome::kUnknown, 0.69f));
  EXPECT_EQ(Outcome::kIncorrect, retention.Decide(Outcome::kIncorrect, 1));
  EXPECT_EQ(Outcome::kCorrect, retention.Decide(Outcome::kCorrect, 0));
}

TEST(Retention, ExplainsWhyARequestIsTooLarge) {
  BufferOptions options = PositiveBias(10, "0.2");
  options.capacity_bytes = 1000;
  const Retention retention(options);
  EXPECT_EQ("", retention.WhyTooLarge(8, 1000));
  EXPECT_EQ(
      "9 trajectories in one request, but the buffer keeps 8 fresh ones (capacity_items 10, 2 of them for older ones that stay "
      "on)",
      retention.WhyTooLarge(9, 1000));
  EXPECT_EQ(
      "1001 bytes in one request, but the buffer keeps 1000 (capacity_bytes; each frame counts 32 bytes more than its size)",
      retention.WhyTooLarge(8, 1001));
}

}  // namespace
}  // namespace replay::server
