#pragma once
// The part of a Stats reply that server/breakdown.h fills.

#include "schema/protocol.capnp.h"
#include "server/buffer.h"

namespace replay::server {

// Words that FillBreakdowns takes at most.
uint32_t BreakdownWords(const BufferStats& from);
void FillBreakdowns(const BufferStats& from, schema::BufferStats::Builder to);

}  // namespace replay::server
