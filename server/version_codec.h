#pragma once
// A policy version as Cap'n Proto, in replies and in rows.

#include <string>
#include <string_view>

#include "schema/protocol.capnp.h"
#include "server/policy_versions.h"

namespace replay::server {

uint32_t VersionWords(const PolicyVersion& version);
void FillVersion(const PolicyVersion& from, schema::PolicyVersion::Builder to);

// One segment, without a table.
std::string EncodeVersion(const PolicyVersion& version);
// False: it is none. `bytes` need not be aligned.
bool DecodeVersion(std::string_view bytes, PolicyVersion* version);

}  // namespace replay::server
