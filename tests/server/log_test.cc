#include "server/log.h"

#include <gtest/gtest.h>

namespace replay::server {
namespace {

TEST(Log, WritesOneJsonObjectALine) {
  EXPECT_EQ(R"("level":"info","msg":"listening","address":"127.0.0.1:7070")",
            FormatLogLine(LogLevel::kInfo, "listening", {{"address", "127.0.0.1:7070"}}));
}

TEST(Log, DoesNotLetAValueForgeALineOrAColour) {
  EXPECT_EQ(R"("level":"warning","msg":"peer","name":"a\u000a{\"level\":\"error\"}\u001b[31m\\\u00ff")",
            FormatLogLine(LogLevel::kWarning, "peer", {{"name", "a\n{\"level\":\"error\"}\x1b[31m\\\xff"}}));
}

}  // namespace
}  // namespace replay::server
