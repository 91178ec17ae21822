#pragma once
// What a buffer reads of frames after they have come in, also of those whose bytes are on disk only: source and tags of a core
// frame, the name of a column. An absent frame has them in its note:
//
//   core     source | tags, each with name and value     none: neither            column   the name
//
// Functions that take a frame look into its bytes, or into its note where it is absent. O(what is read).

#include <string>
#include <string_view>

#include "schema/message.h"
#include "schema/tags.h"
#include "schema/validate.h"
#include "server/archive.h"

namespace replay::server {

std::string SourceOf(const Frame& core, const TrajectoryFacts& facts);
FrameTag TagOf(const Frame& core, std::string_view name);
std::string_view NameOf(const Frame& column);

// What is left of a frame when its bytes leave memory; `has_tags`: of its facts. Of one that is absent: without the source, which is
// needed but once.
Frame MakeAbsent(const Frame& core, bool has_tags);
Frame MakeAbsent(const Frame& column);

// With what the note has of it, so that it may be absent when it is read back.
void PersistCore(Archive& archive, Frame& frame, const TrajectoryFacts& facts);
void PersistTags(Archive& archive, Frame& core, bool has_tags);  // and not the source
void PersistColumn(Archive& archive, Frame& frame);

}  // namespace replay::server
