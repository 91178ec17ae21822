#pragma once
// Every limit of the wire and of the server, with the sum that led to it. Sizes are checked against these before anything is
// allocated. A limit that depends on another says so in a static_assert beside it.

#include <cstddef>
#include <cstdint>

namespace replay {

inline constexpr uint32_t kProtocolVersion = 1;

// --- One trajectory ------------------------------------------------------------------------------------------------------
// Agentic rollouts reach 150 k tokens; 4 Mi leaves a factor of 28.
inline constexpr uint32_t kMaxTokens = 4u << 20;
// Ids i32, mask u8, log-probs f32 and a per-token advantage f32: 13 bytes a token.
inline constexpr uint64_t kBytesPerToken = 4 + 1 + 4 + 4;
inline constexpr uint64_t kMaxFrameBytes = 64ull << 20;
static_assert(kMaxTokens * kBytesPerToken <= kMaxFrameBytes * 13 / 16,
              "the longest trajectory leaves 12 MiB for its other fields");
inline constexpr uint32_t kMaxIdBytes = 128;  // trajectory, group, rollout, run ids; source
inline constexpr uint32_t kMaxOpaqueBytes = 8u << 20;
inline constexpr uint32_t kMaxSegments = 65'536;  // role segments and version segments, each
inline constexpr uint32_t kMaxNamedRewards = 64;
inline constexpr uint32_t kMaxTags = 64;
inline constexpr uint32_t kMaxColumns = 64;
inline constexpr uint32_t kMaxColumnNameBytes = 64;  // [A-Za-z0-9_.-]: stands in filters
inline constexpr uint32_t kMaxColumnRank = 8;
inline constexpr uint32_t kMaxTagBytes = 1024;  // text of one tag
inline constexpr uint32_t kMaxUriBytes = 1024;  // of a policy version
inline constexpr float kMaxPriority = 1e9f;     // of a trajectory
inline constexpr uint32_t kMaxGroupSize = 4096;
static_assert(kMaxOpaqueBytes + 2ull * kMaxSegments * 16 + uint64_t{kMaxTags} * (kMaxTagBytes + kMaxIdBytes) <=
              kMaxFrameBytes * 3 / 16);

// --- One message ---------------------------------------------------------------------------------------------------------
inline constexpr uint32_t kMaxTrajectoriesPerInsert = 8192;  // DAPO's largest step
inline constexpr uint32_t kMaxIdsPerRequest = 512;           // Get, Delete
inline constexpr uint32_t kMaxSampleCount = 65'536;
inline constexpr uint32_t kMaxColumnsPerRequest = 8192;      // column frames of an Insert or Update
inline constexpr uint32_t kMaxColumnNamesPerRequest = 16;    // Sample, Get
inline constexpr uint32_t kMaxColumnsPerReply = 256u << 10;  // column frames
inline constexpr uint32_t kMaxRequestControlBytes = 128u << 10;
static_assert(kMaxTrajectoriesPerInsert * 4ull + kMaxColumnsPerRequest * 8ull + 1024 <= kMaxRequestControlBytes,
              "the size lists of the largest Insert fit");
static_assert(kMaxIdsPerRequest * (kMaxIdBytes + 16ull) + 1024 <= kMaxRequestControlBytes, "the ids of the largest Get fit");
static_assert(kMaxIdsPerRequest * (kMaxIdBytes + 56ull) + 1024 <= kMaxRequestControlBytes,
              "the largest Update fits, without columns and with a few tags");
inline constexpr uint32_t kMaxRequestControlBytesBeforeHello = 16u << 10;
inline constexpr uint32_t kMaxReplyControlBytes = 8u << 20;
// Draw: 7 words; frame size and unit size: half a word each; size of a column: a word.
static_assert(kMaxSampleCount * 64ull + kMaxColumnsPerReply * 8ull + 4096 <= kMaxReplyControlBytes,
              "the slots of the largest Sample fit");
// What Update may add to the tags of one item: names, texts and 16 bytes a tag.
inline constexpr uint32_t kMaxLateTagBytes = 8192;
// On the wire a tag takes 5 words more than its texts, which end in a NUL and are padded.
static_assert(kMaxIdsPerRequest * (kMaxLateTagBytes + kMaxTags * 48ull + 32) + 4096 <= kMaxReplyControlBytes,
              "the late tags of the largest Get fit");
inline constexpr uint64_t kMaxRequestPayloadBytes = 256ull << 20;
inline constexpr uint64_t kMaxReplyPayloadBytes = 1ull << 30;
static_assert(kMaxFrameBytes <= kMaxRequestPayloadBytes);
inline constexpr int kCapnpNestingLimit = 16;

// --- One connection ------------------------------------------------------------------------------------------------------
// Leased while a socket is readable; about 60 pipelined inserts of 4 KB. Holds any request's control message whole.
inline constexpr uint32_t kInputBufferBytes = 256u << 10;
static_assert(kInputBufferBytes >= 2 * kMaxRequestControlBytes);
// Read and thrown away after the last reply to a peer that broke the protocol, so that the reply is not lost in a reset.
inline constexpr uint64_t kLingerBytes = 1u << 20;
// A session flushes and lets others run after this much work (worst ping under a flood: 0.15 ms against 664 ms without).
inline constexpr int kRequestsPerTurn = 64;
inline constexpr uint64_t kBytesPerTurn = 4u << 20;
inline constexpr int kGatherEntries = 1024;  // iovecs a system call (IOV_MAX)

// --- One server ----------------------------------------------------------------------------------------------------------
inline constexpr uint32_t kMaxBuffers = 64;
inline constexpr uint32_t kMaxBufferNameBytes = 64;  // [A-Za-z0-9_.-]: becomes a metric label
inline constexpr uint32_t kMaxConnections = 10'000;
inline constexpr uint64_t kMaxItemsPerBuffer = 1ull << 30;  // slots are 32-bit
inline constexpr uint32_t kMaxViews = 16;                   // of a buffer
inline constexpr uint32_t kMaxPartViews = 128;              // of a buffer with parts: parts * (1 + views)
inline constexpr uint32_t kMaxFilterBytes = 512;            // of a view
inline constexpr uint32_t kMaxSampleParts = 16;             // of a Sample
inline constexpr uint32_t kMaxSampleBuffers = 8;            // that a Sample draws from
inline constexpr uint32_t kMaxPromptsListed = 4096;         // in one History reply
inline constexpr uint32_t kKeptPlans = 4;          // of a consumer: batches that can be asked for again, frames and all
inline constexpr uint32_t kMaxConsumers = 64;      // of a buffer, with plans
inline constexpr uint32_t kMaxWorldSize = 4096;    // ranks of a consumer
inline constexpr uint32_t kMaxPrompts = 1u << 24;  // of a buffer, with prompt_history
inline constexpr uint64_t kMaxLeaseMs = 24ull * 3'600'000;  // of a draw, of a reserved group
inline constexpr uint32_t kMaxReservedGroups = 65'536;      // of a buffer
inline constexpr uint32_t kMaxSources = 1024;               // of a buffer; what comes from further ones is "(other)"
// All different names of the columns of a buffer's live items together.
inline constexpr uint32_t kMaxColumnNames = 256;
static_assert(kMaxViews * (kMaxFilterBytes + kMaxBufferNameBytes + 100ull) + 1024 <= kMaxRequestControlBytesBeforeHello);
inline constexpr uint32_t kMaxWriters = 100'000;         // per buffer, least recently used forgotten first
inline constexpr uint32_t kMaxReceiptsPerWriter = 8192;  // requests a writer may have unacknowledged
inline constexpr uint32_t kMaxVersionsKept = 100'000;    // per run, oldest forgotten first
inline constexpr uint32_t kMaxRuns = 1024;
inline constexpr uint64_t kMaxVersionBytes = 128u << 20;  // all runs together: 400,000 versions with a uri of 200 bytes
inline constexpr uint32_t kMaxWaitersListed = 4096;       // in one Waiters reply
inline constexpr uint32_t kMaxVersionsListed = 4096;      // in one Versions reply, the newest
static_assert(kMaxVersionsListed * (3ull * kMaxIdBytes + kMaxUriBytes + 200) <= kMaxReplyControlBytes);

}  // namespace replay
