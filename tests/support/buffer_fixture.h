#pragma once
// A Buffer with one-line requests, for tests of its decisions; each test ends with its invariants.

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "server/buffer.h"
#include "tests/support/fake_trajectory.h"

namespace replay::test {

// "done" | "waits min_size" | "closed: buffer …"
inline std::string TextOf(const server::Verdict& verdict) {
  if (verdict.done()) return "done";
  if (verdict.waits()) return "waits " + std::string(ToString(verdict.reason));
  return std::string(ToString(verdict.code)) + ": " + verdict.message;
}

class BufferFixture {
 public:
  explicit BufferFixture(server::BufferOptions options) {
    if (!options.seed) options.seed = 1;
    if (options.capacity_bytes == 0) options.capacity_bytes = 1 << 20;
    EXPECT_EQ("", CheckOptions(&options));
    buffer = std::make_unique<server::Buffer>("b", options, versions);
  }
  ~BufferFixture() { buffer->CheckInvariants(); }
  BufferFixture(const BufferFixture&) = delete;
  BufferFixture& operator=(const BufferFixture&) = delete;

  std::string Insert(const std::vector<fake::Trajectory>& trajectories, bool partial = false) {
    fake::Batch batch;
    for (const fake::Trajectory& trajectory : trajectories) batch.Add(trajectory);
    server::InsertRequest request = batch.Request();
    request.partial = partial;
    return TextOf(buffer->Insert(request, &inserted));
  }
  // Members "g.0", "g.1" … of group g, each with a reward.
  static std::vector<fake::Trajectory> Group(const std::string& id, const std::vector<float>& rewards,
                                             fake::Trajectory like = {}) {
    std::vector<fake::Trajectory> members;
    for (uint32_t i = 0; i < rewards.size(); ++i) {
      like.id = id + "." + std::to_string(i);
      like.group = id;
      like.group_size = static_cast<uint32_t>(rewards.size());
      like.index_in_group = i;
      like.reward = rewards[i];
      members.push_back(like);
    }
    return members;
  }
  std::string Insert(const std::string& group, const std::vector<float>& rewards, const fake::Trajectory& like = {}) {
    return Insert(Group(group, rewards, like));
  }
  // The insertion numbers drawn, or what came of it instead.
  std::string Sample(server::SampleRequest request) {
    const server::Verdict verdict = buffer->Sample(request, &sampled);
    if (!verdict.done()) return TextOf(verdict);
    std::string text;
    for (const server::DrawnItem& draw : sampled.draws) text += (text.empty() ? "" : " ") + std::to_string(draw.item);
    return text;
  }
  std::string Sample(uint32_t count) { return Sample(server::SampleRequest{.count = count}); }
  std::string Acknowledge(uint64_t lease, std::vector<uint64_t> items = {}, bool give_back = false) {
    uint32_t count = 0;
    const server::Verdict verdict =
        buffer->Acknowledge({.lease = lease, .items = std::move(items), .give_back = give_back}, &count);
    return verdict.done() ? std::to_string(count) : TextOf(verdict);
  }
  std::string Reserve(const server::ReserveRequest& request) { return TextOf(buffer->Reserve(request, &reserved)); }
  std::string Describe() const { return buffer->Describe(); }

  server::PolicyVersions::Snapshot versions = server::PolicyVersions::Empty();
  std::unique_ptr<server::Buffer> buffer;
  server::InsertResult inserted;
  server::SampleResult sampled;
  server::ReserveResult reserved;
};

}  // namespace replay::test
