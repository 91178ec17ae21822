#include "server/version_codec.h"

#include <kj/exception.h>

#include <cstring>
#include <memory>
#include <optional>

#include "schema/message.h"
#include "server/encode.h"

namespace replay::server {
namespace {

std::string TextOf(capnp::Text::Reader text) { return {text.cStr(), text.size()}; }

}  // namespace

uint32_t VersionWords(const PolicyVersion& version) {
  return 16 + TextWords(version.run_id) + TextWords(version.label) + TextWords(version.uri);
}

void FillVersion(const PolicyVersion& from, schema::PolicyVersion::Builder to) {
  SetText(from.run_id, [&](uint32_t size) { return to.initRunId(size); });
  SetText(from.label, [&](uint32_t size) { return to.initLabel(size); });
  SetText(from.uri, [&](uint32_t size) { return to.initUri(size); });
  to.setEpoch(from.epoch);
  to.setVersion(from.version);
  to.setStep(from.step);
  to.setPublishedAtUnixNs(from.published_at_unix_ns);
}

std::string EncodeVersion(const PolicyVersion& version) {
  ControlBuilder builder(0);
  FillVersion(version, builder.Start<schema::PolicyVersion>(VersionWords(version) + 1));
  const auto message = builder.Finish(0);
  return {reinterpret_cast<const char*>(message.data()) + sizeof(Preamble), message.size() - sizeof(Preamble)};
}

bool DecodeVersion(std::string_view bytes, PolicyVersion* version) {
  if (bytes.empty() || bytes.size() % 8 != 0) return false;
  const auto words = std::make_unique<uint64_t[]>(bytes.size() / 8);
  std::memcpy(words.get(), bytes.data(), bytes.size());
  const auto exception = kj::runCatchingExceptions([&] {
    ControlReader reader(words.get(), static_cast<uint32_t>(bytes.size() / 8));
    const auto from = reader.Root<schema::PolicyVersion>();
    *version = {.run_id = TextOf(from.getRunId()),
                .epoch = from.getEpoch(),
                .version = from.getVersion(),
                .step = from.getStep(),
                .label = TextOf(from.getLabel()),
                .uri = TextOf(from.getUri()),
                .published_at_unix_ns = from.getPublishedAtUnixNs()};
  });
  return exception == nullptr;
}

}  // namespace replay::server
