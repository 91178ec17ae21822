#include "schema/validate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <functional>
#include <limits>
#include <map>
#include <random>
#include <set>

#include "tests/support/make_trajectory.h"
#include "tests/support/mutate.h"
#include "tests/support/sanitized.h"
#include "tests/support/wire_words.h"

namespace replay {
namespace {

using namespace test;
using Trajectory = schema::Trajectory::Builder;

std::string Validate(const Frame& frame) {
  TrajectoryFacts facts;
  return ValidateTrajectory(frame.bytes(), {}, &facts);
}

// What validation says about a 16-token trajectory after `edit`.
std::string After(std::function<void(Trajectory)> edit) {
  TrajectoryOptions options;
  options.edit = std::move(edit);
  return Validate(MakeTrajectory(options));
}

// CPU time of this thread, so that a busy machine does not fail the tests that bound it.
double CpuSeconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

constexpr double kMostSecondsAMessage = test::kSanitized ? 0.5 : 0.05;

// --- What is valid ---------------------------------------------------------------------------------------------------------

TEST(ValidateTrajectory, ReadsTheFactsOfAValidOne) {
  TrajectoryFacts facts;
  const Frame frame = MakeTrajectory({.id = "a",
                                      .group = "g",
                                      .group_size = 4,
                                      .index_in_group = 3,
                                      .length = 128,
                                      .versions = {7, -2, 5},
                                      .correct = schema::Correctness::YES,
                                      .reward = -1.5f,
                                      .run = "r",
                                      .epoch = 9,
                                      .rich = true});
  ASSERT_EQ("", ValidateTrajectory(frame.bytes(), {}, &facts));
  EXPECT_EQ(HashId("a"), facts.id);
  EXPECT_EQ(HashId("g"), facts.group);
  EXPECT_EQ(HashId("r"), facts.run);
  EXPECT_EQ(9u, facts.epoch);
  EXPECT_EQ(-2, facts.min_version);
  EXPECT_EQ(7, facts.max_version);
  EXPECT_EQ(128u, facts.token_count);
  EXPECT_EQ(4u, facts.group_size);
  EXPECT_EQ(3u, facts.index_in_group);
  EXPECT_EQ(-1.5f, facts.reward);
  EXPECT_EQ(Outcome::kCorrect, facts.correct);
}

// Priority stands behind what the first writers knew of: their shorter trajectories have the default.
TEST(ValidateTrajectory, ReadsThePriorityAlsoWhereTheWriterKnewNone) {
  TrajectoryOptions options;
  options.edit = [](Trajectory t) { t.setPriority(2.5f); };
  const Frame frame = MakeTrajectory(options);
  Frame older = Frame::CopyOf(frame.bytes());
  // The root begins a word later, and its data section lacks the last of its words.
  auto* words = reinterpret_cast<uint64_t*>(older.mutable_data() + kFrameTableBytes);
  for (int word = 9; word > 1; --word) words[word] = words[word - 1];
  words[0] = (words[0] & ~(0xffffull << 32) & ~0xfffffffcull) | (8ull << 32) | (1ull << 2);  // 8 data words, offset 1
  SealFrame({older.mutable_data(), older.size()});
  for (const bool only_generated_code : {false, true}) {
    TrajectoryFacts facts;
    ASSERT_EQ("", ValidateTrajectory(frame.bytes(), {.only_generated_code = only_generated_code}, &facts));
    EXPECT_EQ(2.5f, facts.priority);
    ASSERT_EQ("", ValidateTrajectory(older.bytes(), {.only_generated_code = only_generated_code}, &facts));
    EXPECT_EQ(1, facts.priority);
  }
}

TEST(ValidateTrajectory, ReadsTheDatasetIndexWhichIsNoneUnlessSaid) {
  for (const int64_t index : {int64_t{-1}, int64_t{0}, int64_t{17}, INT64_MAX, INT64_MIN}) {
    TrajectoryOptions options;
    options.edit = [index](Trajectory t) { t.setDatasetIndex(index); };
    const Frame frame = MakeTrajectory(options);
    for (const bool only_generated_code : {false, true}) {
      TrajectoryFacts facts;
      ASSERT_EQ("", ValidateTrajectory(frame.bytes(), {.only_generated_code = only_generated_code}, &facts));
      EXPECT_EQ(index, facts.dataset_index);
    }
  }
  TrajectoryFacts facts;
  ASSERT_EQ("", ValidateTrajectory(MakeTrajectory().bytes(), {}, &facts));
  EXPECT_EQ(-1, facts.dataset_index);
}

TEST(ValidateTrajectory, OneTokenAndNothingElseIsEnough) {
  TrajectoryFacts facts;
  const Frame frame = MakeTrajectory({.id = "x", .length = 1});
  ASSERT_EQ("", ValidateTrajectory(frame.bytes(), {}, &facts));
  EXPECT_EQ(Key128{}, facts.group);
  EXPECT_EQ(0, facts.min_version);
  EXPECT_EQ(Outcome::kUnknown, facts.correct);
}

TEST(ValidateTrajectory, ValuesAtTheirLimitsAreFine) {
  EXPECT_EQ("", After([](Trajectory t) { t.setTrajectoryId(std::string(128, 'i')); }));
  EXPECT_EQ("", After([](Trajectory t) { t.setPromptLength(16); }));
  EXPECT_EQ("", After([](Trajectory t) { t.initBehaviourLogprobs(0); }));
  EXPECT_EQ("", After([](Trajectory t) { t.setTemperature(0); }));
  EXPECT_EQ("", After([](Trajectory t) { t.initTags(1)[0].setName(std::string(128, 'n')); }));
  EXPECT_EQ("", After([](Trajectory t) {
              auto tag = t.initTags(1)[0];
              tag.setName("n");
              tag.setText(std::string(1024, 'v'));
            }));
  EXPECT_EQ("", After([](Trajectory t) { t.initOpaque(kMaxOpaqueBytes); }));
  EXPECT_EQ("", After([](Trajectory t) { t.getTokenIds().set(3, std::numeric_limits<int32_t>::max()); }));
  EXPECT_EQ("", After([](Trajectory t) {
              t.setGroupId("g");
              t.setGroupSize(kMaxGroupSize);
              t.setIndexInGroup(kMaxGroupSize - 1);
            }));
  EXPECT_EQ("", Validate(MakeTrajectory({.length = kMaxTokens})));
  // Any bits are a log-probability: NaN where nothing was generated, and what a broken kernel made is the trainer's business.
  EXPECT_EQ("", After([](Trajectory t) { t.getBehaviourLogprobs().set(5, -std::numeric_limits<float>::infinity()); }));
}

// --- Each rule, with its sentence ------------------------------------------------------------------------------------------

TEST(ValidateTrajectory, ChecksumIsCheckedAndToldApart) {
  const Frame good = MakeTrajectory();
  std::vector<uint8_t> bytes(good.bytes().begin(), good.bytes().end());
  bytes.back() ^= 1;
  const Frame frame = Frame::CopyOf(bytes);
  TrajectoryFacts facts;
  bool checksum_error = false;
  EXPECT_EQ("the frame's checksum does not match its bytes", ValidateTrajectory(frame.bytes(), {}, &facts, &checksum_error));
  EXPECT_TRUE(checksum_error);
  EXPECT_EQ("", ValidateTrajectory(frame.bytes(), {.check_checksum = false}, &facts, &checksum_error));
  EXPECT_FALSE(checksum_error);
  EXPECT_EQ("frame has 0 bytes, fewer than 24", ValidateTrajectory({}, {}, &facts, &checksum_error));
  EXPECT_FALSE(checksum_error);
}

TEST(ValidateTrajectory, Ids) {
  EXPECT_EQ("trajectory_id is empty: it must have 1 to 128 bytes", After([](Trajectory t) { t.setTrajectoryId(""); }));
  const std::string longer(129, 'x');
  EXPECT_EQ("trajectory_id has 129 bytes: at most 128 are allowed", After([&](Trajectory t) { t.setTrajectoryId(longer); }));
  EXPECT_EQ("run_id has 129 bytes: at most 128 are allowed", After([&](Trajectory t) { t.setRunId(longer); }));
  EXPECT_EQ("group_id has 129 bytes: at most 128 are allowed", After([&](Trajectory t) { t.setGroupId(longer); }));
  EXPECT_EQ("rollout_id has 129 bytes: at most 128 are allowed", After([&](Trajectory t) { t.setRolloutId(longer); }));
  EXPECT_EQ("source has 129 bytes: at most 128 are allowed", After([&](Trajectory t) { t.setSource(longer); }));
}

TEST(ValidateTrajectory, Lengths) {
  EXPECT_EQ("token_ids is empty: a trajectory has at least one token", After([](Trajectory t) { t.initTokenIds(0); }));
  EXPECT_EQ("loss_mask has 12 entries, token_ids has 16: they must agree", After([](Trajectory t) { t.initLossMask(12); }));
  EXPECT_EQ("loss_mask has 0 entries, token_ids has 16: they must agree", After([](Trajectory t) { t.initLossMask(0); }));
  EXPECT_EQ("behaviour_logprobs has 17 entries, token_ids has 16: they must agree",
            After([](Trajectory t) { t.initBehaviourLogprobs(17); }));
  EXPECT_EQ("advantage has 1 entries, token_ids has 16: they must agree",
            After([](Trajectory t) { t.getAdvantage().initPerToken(1); }));
  EXPECT_EQ("token_ids has 4194305 entries: at most 4194304 are allowed", Validate(MakeTrajectory({.length = kMaxTokens + 1})));
}

TEST(ValidateTrajectory, Values) {
  EXPECT_EQ("token_ids[15] is -1: token ids are not negative", After([](Trajectory t) { t.getTokenIds().set(15, -1); }));
  EXPECT_EQ("loss_mask[2] is 2: entries are 0 or 1", After([](Trajectory t) { t.getLossMask().set(2, 2); }));
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ("reward is nan: it must be finite", After([&](Trajectory t) { t.setReward(nan); }));
  EXPECT_EQ("reward is -inf: it must be finite", After([&](Trajectory t) { t.setReward(-INFINITY); }));
  EXPECT_EQ("advantage is inf: it must be finite", After([&](Trajectory t) { t.getAdvantage().setScalar(INFINITY); }));
  EXPECT_EQ("temperature is -0.500000: it must be finite and not negative",
            After([](Trajectory t) { t.setTemperature(-0.5f); }));
  EXPECT_EQ("temperature is inf: it must be finite and not negative", After([](Trajectory t) { t.setTemperature(INFINITY); }));
  EXPECT_EQ("temperature is nan: it must be finite and not negative", After([&](Trajectory t) { t.setTemperature(nan); }));
  for (const float priority : {-1e-9f, 2e9f, INFINITY, nan}) {
    EXPECT_EQ("priority is " + std::to_string(priority) + ": it must be from 0 to 1e9",
              After([&](Trajectory t) { t.setPriority(priority); }));
  }
  EXPECT_EQ("prompt_length is 17: it must not exceed the 16 tokens", After([](Trajectory t) { t.setPromptLength(17); }));
  EXPECT_EQ("part_index is 3: it must be below part_count, 3",
            After([](Trajectory t) { t.setPartIndex(3), t.setPartCount(3); }));
  EXPECT_EQ("part_index is 1: it must be below part_count, 0", After([](Trajectory t) { t.setPartIndex(1); }));
  EXPECT_EQ("correct is not one of unknown, no, yes",
            After([](Trajectory t) { t.setCorrect(static_cast<schema::Correctness>(3)); }));
  EXPECT_EQ("status is not a known value", After([](Trajectory t) { t.setStatus(static_cast<schema::Status>(7)); }));
}

TEST(ValidateTrajectory, Groups) {
  const auto grouped = [](uint32_t size, uint32_t index) {
    return After([=](Trajectory t) { t.setGroupId("g"), t.setGroupSize(size), t.setIndexInGroup(index); });
  };
  EXPECT_EQ("", grouped(1, 0));
  EXPECT_EQ("group_size is 0: a group has 1 to 4096 members", grouped(0, 0));
  EXPECT_EQ("group_size is 4097: a group has 1 to 4096 members", grouped(4097, 0));
  EXPECT_EQ("index_in_group is 4: it must be below group_size, 4", grouped(4, 4));
  EXPECT_EQ("group_size is 8 and index_in_group 2 without a group_id: only members of a group have them",
            After([](Trajectory t) { t.setGroupSize(8), t.setIndexInGroup(2); }));
}

TEST(ValidateTrajectory, Segments) {
  const auto with_segments = [](std::vector<std::pair<uint32_t, uint32_t>> ranges) {
    return After([&](Trajectory t) {
      auto segments = t.initSegments(static_cast<uint32_t>(ranges.size()));
      for (uint32_t i = 0; i < ranges.size(); ++i) segments[i].setBegin(ranges[i].first), segments[i].setEnd(ranges[i].second);
    });
  };
  EXPECT_EQ("", with_segments({{0, 4}, {4, 16}}));
  EXPECT_EQ("", with_segments({{2, 3}, {9, 10}}));  // gaps are allowed
  const std::string rule = ": segments must be ordered, non-empty, not overlap and end by 16";
  EXPECT_EQ("segments has [3, 6) after 4" + rule, with_segments({{0, 4}, {3, 6}}));
  EXPECT_EQ("segments has [4, 4) after 4" + rule, with_segments({{0, 4}, {4, 4}}));
  EXPECT_EQ("segments has [9, 5) after 0" + rule, with_segments({{9, 5}}));
  EXPECT_EQ("segments has [4, 17) after 4" + rule, with_segments({{0, 4}, {4, 17}}));
  EXPECT_EQ("segments has [4294967295, 4294967295) after 0" + rule, with_segments({{~0u, ~0u}}));
  EXPECT_EQ("segments.role is not a known value", After([](Trajectory t) {
              auto segments = t.initSegments(1);
              segments[0].setEnd(1);
              segments[0].setRole(static_cast<schema::Role>(4));
            }));
  EXPECT_EQ("segments has 65537 entries: at most 65536 are allowed", After([](Trajectory t) { t.initSegments(65'537); }));
  EXPECT_EQ("version_segments has [0, 17) after 0" + rule, After([](Trajectory t) { t.initVersionSegments(1)[0].setEnd(17); }));
  EXPECT_EQ("version_segments has 65537 entries: at most 65536 are allowed",
            After([](Trajectory t) { t.initVersionSegments(65'537); }));
}

TEST(ValidateTrajectory, RewardsTagsColumnsAndOpaque) {
  EXPECT_EQ("named_rewards has 65 entries: at most 64 are allowed", After([](Trajectory t) { t.initNamedRewards(65); }));
  EXPECT_EQ("named_rewards.name is empty", After([](Trajectory t) { t.initNamedRewards(1); }));
  EXPECT_EQ("named_rewards.value is inf: it must be finite", After([](Trajectory t) {
              auto reward = t.initNamedRewards(1)[0];
              reward.setName("n");
              reward.setValue(INFINITY);
            }));
  EXPECT_EQ("named_rewards.name has 129 bytes: at most 128 are allowed",
            After([](Trajectory t) { t.initNamedRewards(1)[0].setName(std::string(129, 'n')); }));
  EXPECT_EQ("tags has 65 entries: at most 64 are allowed", After([](Trajectory t) { t.initTags(65); }));
  EXPECT_EQ("tags.name is empty", After([](Trajectory t) { t.initTags(1)[0].setFlag(true); }));
  EXPECT_EQ("tags.name has 129 bytes: at most 128 are allowed",
            After([](Trajectory t) { t.initTags(1)[0].setName(std::string(129, 'n')); }));
  EXPECT_EQ("tags.text has 1025 bytes: at most 1024 are allowed", After([](Trajectory t) {
              auto tag = t.initTags(1)[0];
              tag.setName("n");
              tag.setText(std::string(1025, 'v'));
            }));
  EXPECT_EQ("opaque has 8388609 bytes: at most 8388608 are allowed",
            After([](Trajectory t) { t.initOpaque(kMaxOpaqueBytes + 1); }));
  EXPECT_EQ("column_names has 65 entries: at most 64 are allowed", After([](Trajectory t) { t.initColumnNames(65); }));
  EXPECT_EQ("column_names has 129 bytes: at most 128 are allowed",
            After([](Trajectory t) { t.initColumnNames(1).set(0, std::string(129, 'c')); }));
}

// --- Hostile bytes ---------------------------------------------------------------------------------------------------------

// A valid frame's words with one pointer replaced.
std::string WithPointer(TrajectoryPointer field, const std::function<uint64_t(std::vector<uint64_t>&, size_t at)>& pointer) {
  std::vector<uint64_t> words = WordsOf(MakeTrajectory({.length = 16, .rich = true}));
  const size_t at = PointerAt(words, field);
  const uint64_t value = pointer(words, at);
  words[at] = value;
  const double before = CpuSeconds();
  const std::string error = Validate(SealWords(words));
  EXPECT_LT(CpuSeconds() - before, kMostSecondsAMessage);
  return error;
}

// Appends zeroed words and returns the offset to them from the pointer at `at`.
int32_t Append(std::vector<uint64_t>& words, size_t at, size_t count) {
  const auto offset = static_cast<int32_t>(words.size() - at - 1);
  words.resize(words.size() + count);
  return offset;
}

TEST(HostileFrame, ListsOfOtherElementSizesAreRefused) {
  const auto refused = [](std::string_view error) { return error.starts_with("the frame is not a readable trajectory: "); };
  for (TrajectoryPointer field : {kTokenIds, kLossMask, kBehaviourLogprobs}) {
    const uint64_t right = field == kLossMask ? 2 : 4;
    for (uint64_t size = 0; size <= 6; ++size) {
      if (size == right) continue;
      const std::string error = WithPointer(field, [&](auto& words, size_t at) {
        const int32_t offset = Append(words, at, 16);
        return ListPointer(offset, static_cast<ElementSize>(size), 16);
      });
      EXPECT_TRUE(refused(error) || error.find("byte entries") != error.npos || error.find("they must agree") != error.npos)
          << "field " << field << " size " << size << ": " << error;
    }
    // Sixteen structs of one word: legal for a schema whose elements became structs, but not an array of numbers.
    const std::string error = WithPointer(field, [&](auto& words, size_t at) {
      const int32_t offset = Append(words, at, 17);
      words[words.size() - 17] = CompositeTag(16, 1, 0);
      return ListPointer(offset, ElementSize::kComposite, 16);
    });
    EXPECT_NE(error.npos, error.find("-byte entries")) << error;
  }
}

TEST(HostileFrame, StructListsOfSmallerElementsReadAsDefaults) {
  // Sixteen-byte structs of an older or lying writer: what is missing reads as zero, and [0, 0) is no segment.
  for (TrajectoryPointer field : {kSegments, kVersionSegments}) {
    const std::string error = WithPointer(field, [&](auto& words, size_t at) {
      const int32_t offset = Append(words, at, 2);
      words[words.size() - 2] = CompositeTag(4, 0, 0);  // four elements of no words
      return ListPointer(offset, ElementSize::kComposite, 0);
    });
    EXPECT_NE(error.npos, error.find("has [0, 0) after 0")) << error;
  }
}

TEST(HostileFrame, HalfABillionVoidsCostNothing) {
  for (size_t field = kTrajectoryId; field <= kColumnNames; ++field) {
    EXPECT_NE("", WithPointer(static_cast<TrajectoryPointer>(field),
                              [](auto&, size_t) { return ListPointer(0, ElementSize::kVoid, (1u << 29) - 1); }))
        << field;
    EXPECT_NE("", WithPointer(static_cast<TrajectoryPointer>(field),
                              [](auto& words, size_t at) {
                                const int32_t offset = Append(words, at, 1);
                                words.back() = CompositeTag((1u << 29) - 1, 0, 0);
                                return ListPointer(offset, ElementSize::kComposite, 0);
                              }))
        << field;
  }
}

TEST(HostileFrame, PointersBeyondTheEndAreRefused) {
  for (size_t field = kTrajectoryId; field <= kColumnNames; ++field) {
    for (int32_t offset : {100'000, -100'000, (1 << 29) - 1, -(1 << 29)}) {
      for (ElementSize size : {ElementSize::kByte, ElementSize::kEightBytes, ElementSize::kPointer, ElementSize::kComposite}) {
        EXPECT_NE("", WithPointer(static_cast<TrajectoryPointer>(field),
                                  [&](auto&, size_t) { return ListPointer(offset, size, 16); }))
            << field << " " << offset;
      }
    }
  }
}

TEST(HostileFrame, FarPointersAreRefused) {
  for (size_t field = kTrajectoryId; field <= kColumnNames; ++field) {
    for (const bool two : {false, true}) {
      for (uint32_t segment : {0u, 1u, ~0u}) {
        // At itself: a loop if it were followed for ever.
        EXPECT_NE("", WithPointer(static_cast<TrajectoryPointer>(field),
                                  [&](auto&, size_t at) { return FarPointer(static_cast<uint32_t>(at), segment, two); }))
            << field << " segment " << segment;
        EXPECT_NE("", WithPointer(static_cast<TrajectoryPointer>(field),
                                  [&](auto&, size_t) { return FarPointer((1u << 29) - 1, segment, two); }));
      }
    }
  }
  std::vector<uint64_t> loop(64);
  loop[0] = FarPointer(1, 0, false);
  loop[1] = FarPointer(0, 0, false);
  EXPECT_NE("", Validate(SealWords(loop)));
}

TEST(HostileFrame, ARootThatIsNoStructOrIsCutIsRefused) {
  for (uint64_t root : {uint64_t{0}, ListPointer(0, ElementSize::kByte, 8), uint64_t{3}, StructPointer(0, 8, 15), ~uint64_t{0},
                        StructPointer(-1, 0, 1), StructPointer(5, 1, 0), StructPointer(-2, 8, 15)}) {
    EXPECT_NE("", Validate(SealWords({root, 0, 0}))) << std::hex << root;
  }
}

TEST(HostileFrame, OneListPointedToAMillionTimesCostsLittle) {
  // As column names, tags and rewards, whose entries are pointers: a million pointers to one text of half a megabyte.
  constexpr uint32_t kPointers = 1'000'000;
  for (uint32_t count : {64u, kPointers}) {
    const std::string error = WithPointer(kColumnNames, [&](auto& words, size_t at) {
      const int32_t offset = Append(words, at, count + 65'536);
      const size_t first = words.size() - count - 65'536, text = words.size() - 65'536;
      for (size_t i = first; i < text; ++i) {
        words[i] = ListPointer(static_cast<int32_t>(text - i - 1), ElementSize::kByte, 65'536 * 8);
      }
      return ListPointer(offset, ElementSize::kPointer, count);
    });
    EXPECT_EQ(count == 64 ? "column_names has 524287 bytes: at most 128 are allowed"
                          : "column_names has 1000000 entries: at most 64 are allowed",
              error);
  }
}

TEST(HostileFrame, DeepNestingIsNotFollowed) {
  // A trajectory whose tags' text pointers lead into a chain of pointers ten thousand deep.
  const std::string error = WithPointer(kTags, [](auto& words, size_t at) {
    const int32_t offset = Append(words, at, 10'001);
    const size_t first = words.size() - 10'001;
    for (size_t i = first; i + 1 < words.size(); ++i) words[i] = ListPointer(0, ElementSize::kPointer, 1);
    return ListPointer(offset, ElementSize::kPointer, 1);
  });
  EXPECT_NE("", error);
}

// The token ids, log-probabilities, advantage and mask of this frame are one piece of zeros, counted four times: such a frame
// is refused, since whoever reads it again (each reader may look at every byte four times) would run into the limit.
TEST(HostileFrame, FieldsThatShareTheirBytesAreRefused) {
  std::vector<uint64_t> words = WordsOf(MakeTrajectory({.length = 16, .rich = true}));
  constexpr uint32_t kTokens = 100'000;
  const size_t zeros = words.size();
  words.resize(zeros + kTokens / 2);
  for (TrajectoryPointer field : {kTokenIds, kBehaviourLogprobs, kAdvantagePerToken, kLossMask}) {
    const size_t at = PointerAt(words, field);
    words[at] = ListPointer(static_cast<int32_t>(zeros - at - 1),
                            field == kLossMask ? ElementSize::kByte : ElementSize::kFourBytes, kTokens);
  }
  EXPECT_EQ("the frame is not a readable trajectory: Exceeded message traversal limit.  See capnp::ReaderOptions.",
            Validate(SealWords(words)));
}

TEST(HostileFrame, RandomMutationsGiveAnErrorOrAFrameThatReadsWell) {
  constexpr int kMutations = 300'000;
  std::vector<std::vector<uint64_t>> seeds;
  for (const TrajectoryOptions& options :
       {TrajectoryOptions{}, TrajectoryOptions{.length = 1}, TrajectoryOptions{.length = 40, .versions = {1, 2}, .rich = true},
        TrajectoryOptions{.group = "g", .group_size = 2, .length = 7, .rich = true}}) {
    seeds.push_back(WordsOf(MakeTrajectory(options)));
  }
  const uint64_t seed = 20'260'401;
  std::mt19937_64 random(seed);
  int valid = 0;
  double slowest = 0;
  for (int i = 0; i < kMutations; ++i) {
    std::vector<uint64_t> words = seeds[random() % seeds.size()];
    MutateWords(&words, random);
    const Frame frame = SealWords(words);
    const double before = CpuSeconds();
    const std::string error = Validate(frame);
    slowest = std::max(slowest, CpuSeconds() - before);
    if (!error.empty()) continue;
    ++valid;
    // Whoever draws it later must be able to read all of it, and more than once.
    ASSERT_NO_THROW(ReadWholeTrajectory(frame, 4)) << "seed " << seed << ", mutation " << i;
  }
  EXPECT_LT(slowest, kMostSecondsAMessage) << "seed " << seed;
  // Both outcomes were met often, or the mutations prove nothing.
  EXPECT_GT(valid, kMutations / 50);
  EXPECT_LT(valid, kMutations * 49 / 50);
}

// --- Whole groups ----------------------------------------------------------------------------------------------------------

struct Member {
  std::string id;
  std::string group;
  uint32_t size;
  uint32_t index;
};

std::string ValidateRequest(const std::vector<Member>& members) {
  std::vector<TrajectoryFacts> facts;
  for (const Member& member : members) {
    TrajectoryFacts one;
    one.id = HashId(member.id);
    one.group = member.group.empty() ? Key128{} : HashId(member.group);
    one.group_size = member.size;
    one.index_in_group = member.index;
    facts.push_back(one);
  }
  GroupScratch scratch;
  return ValidateGroups(facts, &scratch);
}

TEST(ValidateGroups, WholeGroupsInAnyOrderAmongOthersAreFine) {
  EXPECT_EQ("", ValidateRequest({}));
  EXPECT_EQ("", ValidateRequest({{"a", "", 0, 0}}));
  EXPECT_EQ("", ValidateRequest({{"a", "g", 1, 0}}));
  EXPECT_EQ("", ValidateRequest({{"a", "", 0, 0}, {"b", "", 0, 0}}));
  EXPECT_EQ("",
            ValidateRequest(
                {{"c", "g", 3, 2}, {"x", "h", 2, 0}, {"a", "g", 3, 0}, {"s", "", 0, 0}, {"y", "h", 2, 1}, {"b", "g", 3, 1}}));
}

TEST(ValidateGroups, NamesThePositionsOfWhatIsWrong) {
  EXPECT_EQ("group_size: the group of trajectory 0 has 2 members, the request holds 1: a group is inserted whole",
            ValidateRequest({{"a", "g", 2, 0}}));
  EXPECT_EQ("group_size: the group of trajectory 1 has 3 members, the request holds 2: a group is inserted whole",
            ValidateRequest({{"a", "", 0, 0}, {"b", "g", 3, 0}, {"c", "g", 3, 2}}));
  EXPECT_EQ("trajectory_id: trajectories 0 and 2 of the request have the same one",
            ValidateRequest({{"a", "", 0, 0}, {"b", "", 0, 0}, {"a", "", 0, 0}}));
  EXPECT_EQ("group_size: trajectories 0 and 1 of one group say 2 and 3", ValidateRequest({{"a", "g", 2, 0}, {"b", "g", 3, 1}}));
  const std::string twice = ValidateRequest({{"a", "g", 2, 1}, {"b", "g", 2, 1}});
  EXPECT_TRUE(twice == "index_in_group: trajectories 0 and 1 of one group both say 1" ||
              twice == "index_in_group: trajectories 1 and 0 of one group both say 1")
      << twice;
  EXPECT_EQ("group_size: the group of trajectory 0 has 1 members, the request holds 2: a group is inserted whole",
            ValidateRequest({{"a", "g", 1, 0}, {"b", "g", 1, 1}}));
}

TEST(ValidateGroups, AgreesWithADirectCountOnRandomRequests) {
  const uint64_t seed = 7;
  std::mt19937_64 random(seed);
  int good = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::vector<Member> members;
    const int groups = 1 + static_cast<int>(random() % 3);
    for (int g = 0; g < groups; ++g) {
      const auto size = static_cast<uint32_t>(1 + random() % 4);
      for (uint32_t i = 0; i < size; ++i)
        members.push_back({std::to_string(g) + "-" + std::to_string(i), "g" + std::to_string(g), size, i});
    }
    if (random() % 2) {
      Member& victim = members[random() % members.size()];
      switch (random() % 5) {
        case 0:
          victim.size = static_cast<uint32_t>(1 + random() % 4);
          break;
        case 1:
          victim.index = static_cast<uint32_t>(random() % 4);
          break;
        case 2:
          victim.group = "g" + std::to_string(random() % 3);
          break;
        case 3:
          victim.id = members[random() % members.size()].id;
          break;
        default:
          std::swap(victim, members.back()), members.pop_back();
      }
    }
    std::shuffle(members.begin(), members.end(), random);
    // The rule, said plainly.
    bool whole = true;
    std::map<std::string, std::vector<const Member*>> by_group;
    std::set<std::string> ids;
    for (const Member& member : members) {
      whole = whole && ids.insert(member.id).second;
      by_group[member.group].push_back(&member);
    }
    for (const auto& [name, of_group] : by_group) {
      std::set<uint32_t> indices;
      for (const Member* member : of_group) {
        whole = whole && member->size == of_group.size() && indices.insert(member->index).second;
      }
    }
    ASSERT_EQ(whole, ValidateRequest(members).empty())
        << "seed " << seed << " round " << round << ": " << ValidateRequest(members);
    good += whole;
  }
  EXPECT_GT(good, 1000);
}

TEST(ValidateBufferName, TakesWhatCanBeAMetricLabel) {
  EXPECT_EQ("", ValidateBufferName("rollouts"));
  EXPECT_EQ("", ValidateBufferName("a.B-9_"));
  EXPECT_EQ("", ValidateBufferName(std::string(64, 'x')));
  EXPECT_EQ("buffer name has 0 bytes: it must have 1 to 64", ValidateBufferName(""));
  EXPECT_EQ("buffer name has 65 bytes: it must have 1 to 64", ValidateBufferName(std::string(65, 'x')));
  for (const char* name : {"a b", "a/b", "../a", "a\nb", "a\"b", "\x1b[31m", "bü", "a{b}"}) {
    EXPECT_EQ("buffer name has a character other than A-Z a-z 0-9 _ . -", ValidateBufferName(name)) << name;
  }
  EXPECT_NE("", ValidateBufferName(std::string_view("a\0b", 3)));
}

}  // namespace
}  // namespace replay
