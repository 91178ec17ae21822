#pragma once
// Lines of a file or of standard input, and the trajectories on them gathered into units that are inserted whole: consecutive
// lines of one group_id are one unit, a line without a group is one by itself. A unit ends as soon as it has group_size members,
// so that a pipe that is slowly written to is not held up by the next line.

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "client/cli/json.h"

namespace replay::cli {

class LineReader {
 public:
  // "-" is standard input. error() says what was wrong.
  explicit LineReader(const std::string& path)
      : name_(path == "-" ? "standard input" : path),
        descriptor_(path == "-" ? STDIN_FILENO : open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (descriptor_ < 0) Refuse();
  }
  ~LineReader() {
    if (descriptor_ > STDERR_FILENO) close(descriptor_);
  }
  LineReader(const LineReader&) = delete;
  LineReader& operator=(const LineReader&) = delete;

  // The next line, without its newline, until the next call. False: at the end, or error() is set, or a signal came.
  bool Next(std::string_view* line) {
    for (size_t searched = begin_;;) {
      if (const size_t newline = buffer_.find('\n', searched); newline != std::string::npos)
        return Take(newline, newline + 1, line);
      buffer_.erase(0, begin_);
      begin_ = 0;
      searched = buffer_.size();
      if (searched > kMaxLineBytes) {
        error_ = name_ + ": line " + std::to_string(line_number_ + 1) + " is longer than " + std::to_string(kMaxLineBytes) +
                 " bytes";
        return false;
      }
      if (!at_end_ && !Fill()) return false;
      if (at_end_ && buffer_.size() == searched) return !buffer_.empty() && Take(searched, searched, line);
    }
  }
  // Whether Next would return without waiting for another program.
  bool HasMoreNow() const {
    if (at_end_ || buffer_.find('\n', begin_) != std::string::npos) return true;
    struct pollfd readable = {.fd = descriptor_, .events = POLLIN, .revents = 0};
    return poll(&readable, 1, 0) != 0;
  }
  bool at_end() const { return at_end_; }
  uint64_t line_number() const { return line_number_; }  // of the last line; the first is 1
  uint64_t bytes_read() const { return bytes_read_; }
  const std::string& error() const { return error_; }
  // 0 if that cannot be known.
  uint64_t total_bytes() const {
    struct stat status = {};
    return fstat(descriptor_, &status) == 0 && S_ISREG(status.st_mode) ? static_cast<uint64_t>(status.st_size) : 0;
  }

 private:
  // The longest trajectory has 4 Mi tokens; with log-probs and advantages a token takes about 45 bytes of JSON.
  static constexpr size_t kMaxLineBytes = size_t{512} << 20;
  static constexpr size_t kReadBytes = size_t{1} << 20;

  bool Take(size_t end, size_t next, std::string_view* line) {
    *line = std::string_view(buffer_).substr(begin_, end - begin_);
    begin_ = next;
    ++line_number_;
    return true;
  }
  // Appends what can be read now. False: error, or a signal.
  bool Fill() {
    const size_t old_size = buffer_.size();
    buffer_.resize(old_size + kReadBytes);
    const ssize_t count = read(descriptor_, buffer_.data() + old_size, kReadBytes);
    buffer_.resize(old_size + static_cast<size_t>(count > 0 ? count : 0));
    if (count < 0 && errno != EINTR) Refuse();
    at_end_ = count == 0;
    bytes_read_ += count > 0 ? static_cast<uint64_t>(count) : 0;
    return count >= 0;
  }
  void Refuse() { error_ = name_ + ": " + std::strerror(errno); }

  const std::string name_;
  const int descriptor_;
  std::string buffer_, error_;
  size_t begin_ = 0;  // of what was not returned yet
  bool at_end_ = false;
  uint64_t line_number_ = 0, bytes_read_ = 0;
};

struct Unit {
  std::vector<Trajectory> trajectories;
  std::vector<uint64_t> lines;  // of each
};

inline std::string LinesOf(uint64_t first, uint64_t last) {
  return first == last ? "line " + std::to_string(first) : "lines " + std::to_string(first) + "-" + std::to_string(last);
}

class UnitReader {
 public:
  explicit UnitReader(LineReader* lines) : lines_(lines) {}

  // False: at the end, a signal came, or error() is set: of the input's content ("line 7: reward is ...") unless lines->error().
  bool Next(Unit* unit) {
    *unit = {};
    while (next_ || ReadOne()) {
      Trajectory& first = unit->trajectories.empty() ? *next_ : unit->trajectories.front();
      if (!unit->trajectories.empty() && next_->group_id != first.group_id) break;
      unit->lines.push_back(next_line_);
      unit->trajectories.push_back(std::move(*next_));
      next_.reset();
      const Trajectory& last = unit->trajectories.back();
      if (last.group_id.empty() || unit->trajectories.size() >= unit->trajectories.front().group_size) return true;
    }
    if (unit->trajectories.empty() || !error_.empty() || interrupted_) return false;
    const Trajectory& first = unit->trajectories.front();
    std::string group;
    AppendQuoted(first.group_id, &group);
    error_ = LinesOf(unit->lines.front(), unit->lines.back()) + ": group " + group + " has " +
             std::to_string(unit->trajectories.size()) + " of its " + std::to_string(first.group_size) +
             " members on consecutive lines: a group is inserted whole";
    return false;
  }
  const std::string& error() const { return error_; }

 private:
  bool ReadOne() {
    std::string_view line;
    while (lines_->Next(&line)) {
      if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
      Result<Trajectory> trajectory = TrajectoryFromJson(line);
      next_line_ = lines_->line_number();
      if (!trajectory) {
        error_ = LinesOf(next_line_, next_line_) + ": " + trajectory.error().message;
        return false;
      }
      next_ = std::move(*trajectory);
      return true;
    }
    error_ = lines_->error();
    interrupted_ = error_.empty() && !lines_->at_end();
    return false;
  }

  LineReader* const lines_;
  std::optional<Trajectory> next_;  // read, and not of the unit before
  uint64_t next_line_ = 0;
  bool interrupted_ = false;
  std::string error_;
};

}  // namespace replay::cli
