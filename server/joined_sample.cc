#include "server/joined_sample.h"

#include <algorithm>
#include <utility>

#include "schema/limits.h"

namespace replay::server {

using std::to_string;

namespace {

const std::string& BufferOf(const std::string& buffer, const SamplePart& part) {
  return part.buffer.empty() ? buffer : part.buffer;
}

}  // namespace

bool JoinsBuffers(const SampleRequest& request) {
  return std::any_of(request.parts.begin(), request.parts.end(), [](const SamplePart& part) { return !part.buffer.empty(); });
}

std::string ShareOut(const std::string& buffer, const SampleRequest& request, std::vector<Share>* shares) {
  shares->clear();
  uint64_t sum = 0;
  for (size_t i = 0; i < request.parts.size(); ++i) {
    const SamplePart& part = request.parts[i];
    const std::string& own = BufferOf(buffer, part);
    if (part.or_next && i + 1 < request.parts.size() && BufferOf(buffer, request.parts[i + 1]) != own)
      return "parts[" + to_string(i) + "].or_next is set: the part behind it is of buffer \"" +
             BufferOf(buffer, request.parts[i + 1]) + "\", not of \"" + own + "\"";
    auto share = std::find_if(shares->begin(), shares->end(), [&](const Share& each) { return each.buffer == own; });
    if (share == shares->end()) {
      if (shares->size() == kMaxSampleBuffers)
        return "parts[" + to_string(i) + "].buffer is \"" + own + "\": a Sample draws from at most " +
               to_string(kMaxSampleBuffers) + " buffers";
      Share& first = shares->emplace_back();
      first.buffer = own;
      first.request = request;
      first.request.parts.clear();
      first.request.count = 0;
      share = shares->end() - 1;
    }
    share->request.parts.push_back(part);
    share->request.parts.back().buffer.clear();
    share->request.part_places.push_back(static_cast<uint32_t>(i));
    share->request.count += part.count;
    sum += part.count;
  }
  if (sum != request.count) return "count is " + to_string(request.count) + ": the parts have " + to_string(sum);
  if (sum > kMaxSampleCount) return "count is " + to_string(sum) + ": at most " + to_string(kMaxSampleCount) + " are allowed";
  uint64_t left = request.given_back;
  for (Share& share : *shares) {
    const uint64_t part = sum == 0 ? 0 : uint64_t{request.given_back} * share.request.count / sum;
    share.request.given_back = static_cast<uint32_t>(part);
    left -= part;
  }
  shares->front().request.given_back += static_cast<uint32_t>(left);
  return "";
}

std::string Join(const SampleRequest& request, std::vector<Share>* shares, SampleResult* result) {
  if (shares->size() == 1) {
    *result = std::move(shares->front().result);
    return "";
  }
  result->Clear();
  struct Place {
    const SampleResult* from;
    uint32_t part, frame_base;
  };
  std::vector<Place> places(request.parts.size());
  result->planned = true;
  bool first = true;
  for (Share& share : *shares) {
    SampleResult& from = share.result;
    const auto frame_base = static_cast<uint32_t>(result->frames.size());
    for (uint32_t part = 0; part < share.request.part_places.size(); ++part)
      places[share.request.part_places[part]] = {&from, part, frame_base};
    result->frames.insert(result->frames.end(), std::make_move_iterator(from.frames.begin()),
                          std::make_move_iterator(from.frames.end()));
    for (ColumnOf& column : from.columns) {
      column.frame += frame_base;
      result->columns.push_back(std::move(column));
    }
    result->step = std::exchange(first, false) ? from.step : std::max(result->step, from.step);
    result->withheld += from.withheld;
    result->payload_bytes += from.payload_bytes;
    result->planned &= from.planned;
  }
  for (const Place& place : places) {
    const std::vector<uint32_t>& counts = place.from->part_counts;
    const std::vector<uint32_t>& sizes = place.from->unit_sizes;
    size_t begin = 0, first_unit = 0;
    for (uint32_t part = 0; part < place.part; ++part) begin += counts[part];
    for (size_t i = begin; i < begin + counts[place.part]; ++i)
      result->draws.emplace_back(place.from->draws[i]).frame += place.frame_base;
    result->part_counts.push_back(counts[place.part]);
    result->candidates.push_back(place.from->candidates[place.part]);
    for (size_t at = 0; at < begin && first_unit < sizes.size(); ++first_unit) at += sizes[first_unit];
    for (size_t at = 0; at < counts[place.part] && first_unit < sizes.size(); at += sizes[first_unit++])
      result->unit_sizes.push_back(sizes[first_unit]);
  }
  if (result->draws.size() > kMaxSampleCount) {
    std::string error = "the groups drawn have " + to_string(result->draws.size()) + " trajectories, a reply carries at most " +
                        to_string(kMaxSampleCount) + ": draw fewer at once";
    result->Clear();
    return error;
  }
  if (result->columns.size() > kMaxColumnsPerReply) {
    std::string error = "the draws have " + to_string(result->columns.size()) + " columns, a reply carries at most " +
                        to_string(kMaxColumnsPerReply) + ": draw fewer at once";
    result->Clear();
    return error;
  }
  if (result->payload_bytes <= kMaxReplyPayloadBytes) return "";
  std::string error = "the " + to_string(result->frames.size()) + " frames drawn have " + to_string(result->payload_bytes) +
                      " bytes, a reply carries at most " + to_string(kMaxReplyPayloadBytes) + ": draw fewer at once";
  result->Clear();
  return error;
}

}  // namespace replay::server
