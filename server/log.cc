#include "server/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <cstdio>

namespace replay::server {
namespace {

constexpr std::string_view kNames[] = {"debug", "info", "warning", "error"};
constexpr spdlog::level::level_enum kLevels[] = {spdlog::level::debug, spdlog::level::info, spdlog::level::warn,
                                                 spdlog::level::err};

spdlog::logger& Logger() {
  static const std::shared_ptr<spdlog::logger> logger = [] {
    auto created = std::make_shared<spdlog::logger>("replayd", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    created->set_pattern("{\"ts\":\"%Y-%m-%dT%H:%M:%S.%eZ\",%v}", spdlog::pattern_time_type::utc);
    created->flush_on(spdlog::level::debug);
    return created;
  }();
  return *logger;
}

void AppendQuoted(std::string* line, std::string_view text) {
  line->push_back('"');
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      line->push_back('\\');
      line->push_back(c);
    } else if (byte < 0x20 || byte >= 0x7f) {  // Also keeps invalid UTF-8 out: shown as Latin-1 code points.
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\u%04x", byte);
      *line += escaped;
    } else {
      line->push_back(c);
    }
  }
  line->push_back('"');
}

}  // namespace

void SetLogLevel(std::string_view level) {
  for (size_t i = 0; i < std::size(kNames); ++i) {
    if (kNames[i] == level) Logger().set_level(kLevels[i]);
  }
}

std::string FormatLogLine(LogLevel level, std::string_view message, std::initializer_list<LogField> fields) {
  std::string line = "\"level\":\"";
  line += kNames[static_cast<size_t>(level)];
  line += "\",\"msg\":";
  AppendQuoted(&line, message);
  for (const LogField& field : fields) {
    line += ",\"";
    line += field.key;
    line += "\":";
    AppendQuoted(&line, field.value);
  }
  return line;
}

void Log(LogLevel level, std::string_view message, std::initializer_list<LogField> fields) {
  const auto spdlog_level = kLevels[static_cast<size_t>(level)];
  if (!Logger().should_log(spdlog_level)) return;
  Logger().log(spdlog_level, spdlog::string_view_t(FormatLogLine(level, message, fields)));
}

}  // namespace replay::server
