#pragma once
// CHECK(condition) << "why": our own bug ends the process with file, line and message. Input can never reach one.

#include <cstdlib>
#include <iostream>
#include <sstream>

namespace replay::server {

class CheckFailure {
 public:
  CheckFailure(const char* condition, const char* file, int line) {
    text_ << file << ":" << line << ": CHECK(" << condition << ") failed. ";
  }
  ~CheckFailure() {
    std::cerr << text_.str() << std::endl;
    std::abort();
  }
  std::ostream& stream() { return text_; }

 private:
  std::ostringstream text_;
};

}  // namespace replay::server

#define CHECK(condition) \
  if (condition) {       \
  } else                 \
    ::replay::server::CheckFailure(#condition, __FILE__, __LINE__).stream()
