#pragma once
// Tags into messages and out of them: those of a trajectory, and those that an Update brings.

#include <string>
#include <string_view>

#include "replay/trajectory.h"
#include "schema/trajectory.capnp.h"

namespace replay {

inline capnp::Text::Reader AsText(std::string_view text, std::string& terminated) {
  terminated = text;  // Cap'n Proto wants a NUL behind it
  return capnp::Text::Reader(terminated.c_str(), terminated.size());
}

inline void FillTag(const TagValue& value, std::string& scratch, schema::Tag::Builder tag) {
  if (const auto* text = std::get_if<std::string>(&value)) {
    if (text->empty()) {
      tag.initText(0);  // one word: TrajectoryWords counts it
    } else {
      tag.setText(AsText(*text, scratch));
    }
  } else if (const auto* integer = std::get_if<int64_t>(&value)) {
    tag.setInteger(*integer);
  } else if (const auto* real = std::get_if<double>(&value)) {
    tag.setReal(*real);
  } else {
    tag.setFlag(std::get<bool>(value));
  }
}

inline TagValue ReadTag(schema::Tag::Reader tag) {
  switch (tag.which()) {
    case schema::Tag::TEXT:
      return std::string(tag.getText().begin(), tag.getText().size());
    case schema::Tag::INTEGER:
      return static_cast<int64_t>(tag.getInteger());
    case schema::Tag::REAL:
      return tag.getReal();
    case schema::Tag::FLAG:
      return tag.getFlag();
  }
  return std::string();  // a kind of a newer schema
}

}  // namespace replay
