#pragma once
// The real replayctl against a test's daemon, for what only a running client can bring about (a lease, a cost) and replayctl shows.
//
//   EXPECT_EQ("nobody waits\n", Replayctl(daemon, "waiters"));
//
// Through the shell: arguments with spaces are quoted by the caller. REPLAYCTL_PATH is the build's.

#include <nlohmann/json.hpp>

#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>

#include "tests/support/daemon.h"

namespace replay::test {

// What it prints, errors as well.
inline std::string Replayctl(const Daemon& daemon, const std::string& arguments) {
  const std::string command = REPLAYCTL_PATH " --server " + daemon.unix_address() + " " + arguments + " 2>&1";
  const std::unique_ptr<FILE, int (*)(FILE*)> output(popen(command.c_str(), "r"), pclose);
  if (!output) throw std::runtime_error("cannot run " + command);
  std::string text;
  for (int byte; (byte = std::fgetc(output.get())) != EOF;) text += static_cast<char>(byte);
  return text;
}

// The one object that it prints.
inline nlohmann::json ReplayctlJson(const Daemon& daemon, const std::string& arguments) {
  return nlohmann::json::parse(Replayctl(daemon, arguments + " --json"));
}

}  // namespace replay::test
