#pragma once
// What the files that decode requests share; included by codec.cc and update_codec.cc only.

#include <string>

#include "schema/protocol.capnp.h"
#include "server/codec.h"

namespace replay::server {

// A field is wrong: caught in DecodeRequest.
struct Nonsense {
  std::string message;
};

[[noreturn]] inline void Refuse(std::string message) { throw Nonsense{std::move(message)}; }

inline void Assign(std::string* target, capnp::Text::Reader text, const char* field, size_t max_bytes) {
  if (text.size() > max_bytes)
    Refuse(std::string(field) + " has " + std::to_string(text.size()) + " bytes: at most " + std::to_string(max_bytes) +
           " are allowed");
  target->assign(text.begin(), text.size());
}

void DecodeUpdate(schema::Update::Reader from, Request* request);
// The sizes of column frames, each of one of `count` core frames or updates.
void DecodeColumnSizes(capnp::List<schema::ColumnSize>::Reader from, size_t count, std::vector<ColumnSize>* to);
void DecodeColumnNames(capnp::List<capnp::Text>::Reader from, std::vector<std::string>* to);

}  // namespace replay::server
