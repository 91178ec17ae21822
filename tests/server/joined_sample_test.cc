#include "server/joined_sample.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "schema/limits.h"
#include "tests/support/fake_trajectory.h"

namespace replay::server {
namespace {

using testing::HasSubstr;

SampleRequest Ask(std::vector<SamplePart> parts) {
  SampleRequest request;
  for (const SamplePart& part : parts) request.count += part.count;
  request.parts = std::move(parts);
  return request;
}

// "live 12: 0 2 | frozen 16: 1": buffer, count and places of each share.
std::string Shares(const SampleRequest& request) {
  std::vector<Share> shares;
  if (std::string error = ShareOut("live", request, &shares); !error.empty()) return error;
  std::string text;
  for (const Share& share : shares) {
    text += (text.empty() ? "" : " | ") + share.buffer + " " + std::to_string(share.request.count) + ":";
    for (const uint32_t place : share.request.part_places) text += " " + std::to_string(place);
    EXPECT_FALSE(JoinsBuffers(share.request));
  }
  return text;
}

// A draw of each number, with a frame of its own that says it.
SampleResult Drawn(std::vector<uint64_t> numbers, std::vector<uint32_t> part_counts) {
  SampleResult result;
  for (const uint64_t number : numbers) {
    DrawnItem& draw = result.draws.emplace_back();
    draw.item = number;
    draw.frame = static_cast<uint32_t>(result.frames.size());
    result.frames.push_back(fake::MakeFrame(16, number));
    result.payload_bytes += 16;
  }
  for (const uint32_t count : part_counts) result.candidates.push_back(100 * count);
  result.part_counts = std::move(part_counts);
  return result;
}

TEST(JoinedSample, SharesItsPartsOutInOrderOfFirstMention) {
  EXPECT_FALSE(JoinsBuffers(Ask({{.count = 4}})));
  EXPECT_TRUE(JoinsBuffers(Ask({{.count = 4}, {.count = 1, .buffer = "live"}})));
  EXPECT_EQ("live 12: 0 2 | frozen 16: 1",
            Shares(Ask({{.count = 4}, {.count = 16, .buffer = "frozen"}, {.count = 8, .buffer = "live"}})));
  EXPECT_EQ("frozen 2: 0 | live 3: 1", Shares(Ask({{.count = 2, .buffer = "frozen"}, {.count = 3}})));
}

TEST(JoinedSample, RefusesToCarryWhatIsLackingToAnotherBuffer) {
  EXPECT_EQ("parts[0].or_next is set: the part behind it is of buffer \"frozen\", not of \"live\"",
            Shares(Ask({{.count = 4, .or_next = true}, {.count = 1, .buffer = "frozen"}, {.count = 1}})));
  EXPECT_EQ("frozen 5: 0 1",
            Shares(Ask({{.count = 4, .or_next = true, .buffer = "frozen"}, {.count = 1, .buffer = "frozen"}})));
}

TEST(JoinedSample, RefusesMoreBuffersAndDrawsThanThereMayBe) {
  std::vector<SamplePart> parts;
  for (uint32_t i = 0; i < kMaxSampleBuffers; ++i) parts.push_back({.count = 1, .buffer = "b" + std::to_string(i)});
  EXPECT_THAT(Shares(Ask(parts)), HasSubstr("b7 1: 7"));
  parts.push_back({.count = 1});
  EXPECT_EQ("parts[8].buffer is \"live\": a Sample draws from at most 8 buffers", Shares(Ask(parts)));
  EXPECT_EQ("count is 65537: at most 65536 are allowed", Shares(Ask({{.count = 65'536}, {.count = 1, .buffer = "frozen"}})));
  SampleRequest disagrees = Ask({{.count = 2}, {.count = 1, .buffer = "frozen"}});
  disagrees.count = 4;
  EXPECT_EQ("count is 4: the parts have 3", Shares(disagrees));
}

TEST(JoinedSample, SharesWholeBatchesThatAreGivenBackAsTheyWereDrawn) {
  SampleRequest request = Ask({{.count = 5}, {.count = 3, .buffer = "frozen"}});
  const auto given_back = [&](uint32_t draws) {
    request.given_back = draws;
    std::vector<Share> shares;
    EXPECT_EQ("", ShareOut("live", request, &shares));
    return std::to_string(shares[0].request.given_back) + " " + std::to_string(shares[1].request.given_back);
  };
  EXPECT_EQ("10 6", given_back(16));
  EXPECT_EQ("1 0", given_back(1)) << "the first gets the rest";
  EXPECT_EQ("0 0", given_back(0));
}

TEST(JoinedSample, HasThePartsInTheOrderOfTheRequestAndItsFramesCountedOn) {
  const SampleRequest request = Ask({{.count = 2}, {.count = 3, .buffer = "frozen"}, {.count = 1}});
  std::vector<Share> shares;
  ASSERT_EQ("", ShareOut("live", request, &shares));
  shares[0].result = Drawn({1, 2, 3}, {2, 1});
  shares[0].result.draws[2].frame = 0;  // a repeat
  shares[0].result.step = 7;
  shares[0].result.withheld = 5;
  shares[0].result.planned = true;
  shares[1].result = Drawn({41, 42, 43}, {3});
  shares[1].result.step = 9;
  shares[1].result.withheld = 2;
  shares[1].result.columns.push_back({.frame = 2, .column = fake::MakeFrame(16, 99)});
  SampleResult joined;
  ASSERT_EQ("", Join(request, &shares, &joined));
  std::string text;
  for (const DrawnItem& draw : joined.draws)
    text += std::to_string(draw.item) + ":" + std::to_string(fake::TagOf(joined.frames[draw.frame])) + " ";
  EXPECT_EQ("1:1 2:2 41:41 42:42 43:43 3:1 ", text);
  EXPECT_EQ((std::vector<uint32_t>{2, 3, 1}), joined.part_counts);
  EXPECT_EQ((std::vector<uint64_t>{200, 300, 100}), joined.candidates);
  EXPECT_EQ(6u, joined.frames.size());
  ASSERT_EQ(1u, joined.columns.size());
  EXPECT_EQ(43u, fake::TagOf(joined.frames[joined.columns[0].frame])) << "a column stays with its trajectory";
  EXPECT_EQ(9, joined.step);
  EXPECT_EQ(7u, joined.withheld);
  EXPECT_EQ(96u, joined.payload_bytes);
  EXPECT_FALSE(joined.planned) << "one of the two was drawn now";
}

TEST(JoinedSample, HasTheSizesOfTheGroupsInTheOrderOfTheirParts) {
  const SampleRequest request = Ask({{.count = 2}, {.count = 1, .buffer = "frozen"}, {.count = 1}});
  std::vector<Share> shares;
  ASSERT_EQ("", ShareOut("live", request, &shares));
  shares[0].result = Drawn({1, 2, 3, 4, 5, 6}, {3, 3});
  shares[0].result.unit_sizes = {1, 2, 3};
  shares[1].result = Drawn({41, 42}, {2});
  shares[1].result.unit_sizes = {2};
  SampleResult joined;
  ASSERT_EQ("", Join(request, &shares, &joined));
  EXPECT_EQ((std::vector<uint32_t>{1, 2, 2, 3}), joined.unit_sizes);
  EXPECT_EQ((std::vector<uint32_t>{3, 2, 3}), joined.part_counts);
}

TEST(JoinedSample, HasNoMoreBytesThanAReplyCarries) {
  const SampleRequest request = Ask({{.count = 1}, {.count = 1, .buffer = "frozen"}});
  std::vector<Share> shares;
  ASSERT_EQ("", ShareOut("live", request, &shares));
  for (Share& share : shares) {
    share.result = Drawn({1}, {1});
    share.result.payload_bytes = kMaxReplyPayloadBytes / 2 + 8;
  }
  SampleResult joined;
  EXPECT_THAT(Join(request, &shares, &joined), HasSubstr("the 2 frames drawn have 1073741840 bytes, a reply carries at most"));
  EXPECT_TRUE(joined.draws.empty() && joined.frames.empty());
}

// What a failed joined Sample does with what was drawn for it before.
TEST(JoinedSample, IsCreditedToPacingAsIfItHadNotBeenDrawn) {
  BufferOptions options;
  options.capacity_items = 100;
  options.replay_ratio = 1;
  options.max_draws_per_sample = 8;
  options.max_insert = 8;
  ASSERT_EQ("", CheckOptions(&options));
  Buffer buffer("b", options, PolicyVersions::Empty());
  const auto insert = [&](int first) {
    fake::Batch batch;
    for (int i = first; i < first + 4; ++i) batch.Add({.id = std::to_string(i)});
    InsertResult inserted;
    ASSERT_TRUE(buffer.Insert(batch.Request(), &inserted).done());
  };
  insert(0);
  insert(4);
  SampleResult result;
  ASSERT_TRUE(buffer.Sample({.count = 4}, &result).done());
  const double before = buffer.Stats().pacing_balance;
  ASSERT_TRUE(buffer.Sample({.count = 3, .given_back = 2}, &result).done());
  EXPECT_EQ(before - 1, buffer.Stats().pacing_balance);
  buffer.CreditDraws(result);
  EXPECT_EQ(before, buffer.Stats().pacing_balance);
  ASSERT_TRUE(buffer.Sample({.count = 1, .given_back = 4}, &result).done());
  EXPECT_EQ(before + 3, buffer.Stats().pacing_balance) << "the two that were to be given back are still outstanding";
}

}  // namespace
}  // namespace replay::server
