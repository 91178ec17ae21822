#include "server/frame_note.h"

#include <utility>
#include <vector>

#include "schema/column.h"
#include "server/requests_archive.h"

namespace replay::server {
namespace {

std::string NoteOf(std::string_view source, const std::vector<NamedTag>& tags) {
  std::string note;
  if (!source.empty() || !tags.empty()) Archive(&note).Save(std::string(source), tags);
  return note;
}

struct CoreNote {
  std::string source = {};
  std::vector<NamedTag> tags = {};
};
CoreNote ReadNote(const Frame& absent) {
  CoreNote note;
  if (!absent.note().empty()) Archive(absent.note(), nullptr)(note.source, note.tags);
  return note;
}

std::string TagsNote(const Frame& core, bool has_tags) {
  if (core.is_absent()) return NoteOf("", ReadNote(core).tags);
  return has_tags ? NoteOf("", ReadTags(core.bytes())) : "";
}

void Persist(Archive& archive, Frame& frame, std::string note) {
  archive(frame, note);
  if (archive.loading() && frame.is_absent() && !note.empty()) frame = Frame::Absent(frame.size(), frame.number(), note);
}

}  // namespace

std::string SourceOf(const Frame& core, const TrajectoryFacts& facts) {
  return core.is_absent() ? ReadNote(core).source : std::string(facts.source.In(core.bytes()));
}

FrameTag TagOf(const Frame& core, std::string_view name) {
  if (!core.is_absent()) return ReadTag(core.bytes(), name);
  for (const NamedTag& tag : ReadNote(core).tags)
    if (tag.name == name) return ValueOf(tag);
  return {};
}

std::string_view NameOf(const Frame& column) { return column.is_absent() ? column.note() : ColumnName(column.bytes()); }

Frame MakeAbsent(const Frame& core, bool has_tags) {
  return Frame::Absent(core.size(), core.number(), TagsNote(core, has_tags));
}

Frame MakeAbsent(const Frame& column) { return Frame::Absent(column.size(), column.number()); }

void PersistCore(Archive& archive, Frame& frame, const TrajectoryFacts& facts) {
  std::string note;
  if (frame.is_absent())
    note = frame.note();
  else if (!archive.loading())
    note = NoteOf(facts.source.In(frame.bytes()), facts.has_tags ? ReadTags(frame.bytes()) : std::vector<NamedTag>());
  Persist(archive, frame, std::move(note));
}

void PersistTags(Archive& archive, Frame& core, bool has_tags) {
  Persist(archive, core, archive.loading() ? "" : TagsNote(core, has_tags));
}

void PersistColumn(Archive& archive, Frame& frame) {
  Persist(archive, frame, archive.loading() ? "" : std::string(NameOf(frame)));
}

}  // namespace replay::server
