#pragma once
// A Sample whose parts come from several buffers: what each of these is asked for, and the one batch made of what they gave.
//
//   parts   4 of live, 16 of frozen, 8 of live        shares   live: parts 0 and 2        frozen: part 1
//
// The buffers are drawn from in the order in which the parts first name them, each from its own state, with its own pacing and, with a
// consumer, its own plans. The batch has the parts in the order of the request. Of what is given back each gets its share of
// the request's count, rounded down, and the first the rest: exact where whole batches of trajectories are. Plain functions.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "server/buffer.h"

namespace replay::server {

struct Share {
  std::string buffer;
  SampleRequest request;  // part_places: which of the parts
  SampleResult result;
};

// Whether a part names a buffer.
bool JoinsBuffers(const SampleRequest& request);
// `buffer` is that of the parts that name none. "" or why the request can never be met.
std::string ShareOut(const std::string& buffer, const SampleRequest& request, std::vector<Share>* shares);
// Of shares that are drawn; moves their frames out. The batch counts as planned if all are; its step is the newest of theirs. "" or
// that it has too many bytes, or groups with too many trajectories, for a reply.
std::string Join(const SampleRequest& request, std::vector<Share>* shares, SampleResult* result);

}  // namespace replay::server
