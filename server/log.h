#pragma once
// The daemon's log: one JSON object a line on stderr, so that journald, Loki and jq read it without a parser of their own.
//
//   Log(LogLevel::kInfo, "listening", {{"address", "127.0.0.1:7070"}});
//   {"ts":"2026-01-02T03:04:05.678Z","level":"info","msg":"listening","address":"127.0.0.1:7070"}
//
// Any thread. Values are escaped; a peer cannot forge a line.

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

namespace replay::server {

enum class LogLevel : uint8_t { kDebug, kInfo, kWarning, kError };

struct LogField {
  std::string_view key;
  std::string value;
};

void SetLogLevel(std::string_view level);  // "debug" | "info" | "warning" | "error"
void Log(LogLevel level, std::string_view message, std::initializer_list<LogField> fields = {});

// The line without the time: for tests.
std::string FormatLogLine(LogLevel level, std::string_view message, std::initializer_list<LogField> fields);

}  // namespace replay::server
