#pragma once
// Publisher hands weights to the generators: a folder for each version in a shared directory, then a line in the daemon's
// registry of policy versions that carries its uri.
//
//   weights/version-12/{config.json, model.safetensors}        file:///data/run/weights/version-12
//
// A folder appears whole, by rename, before the registry names it, and is removed when `keep` newer ones are there: a generator
// that was about to read it takes the newest instead. Not thread-safe.

#include <cstdint>
#include <string>

#include "replay/client.h"
#include "trainer/model/transformer.h"

namespace replay::trainer {

struct PublisherOptions {
  std::string run_id;
  std::string folder;  // shared with the generators
  uint32_t keep = 4;   // newest versions that stay on disk; at least 2
};

class Publisher {
 public:
  // Folders of earlier processes in `folder` are left alone until they are written over. `client` outlives the publisher.
  Publisher(Client& client, const PublisherOptions& options);

  // Where the registry stands: call before the first Publish. A run that begins behind what was published (an older checkpoint)
  // gets a new epoch, in which its versions are again in order.
  Result<Done> JoinRegistry(int64_t version);

  // Empty, or why the generators go on with older weights: a full disk, no daemon. The next call tries again.
  std::string Publish(int64_t version, const model::Transformer& transformer);
  // The last version once more, to a daemon that came back without its registry.
  std::string PublishAgain();

  uint64_t epoch() const { return epoch_; }
  int64_t published() const { return published_; }  // -1: none yet

 private:
  std::string Register(int64_t version);
  std::string FolderOf(int64_t version) const;

  Client& client_;
  const PublisherOptions options_;
  uint64_t epoch_ = 0;
  int64_t published_ = -1;
};

}  // namespace replay::trainer
