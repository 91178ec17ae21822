#pragma once
// import: lines -> units -> requests, one under way while the next is read and encoded.
//
//   Next unit ─► request of about `batch` trajectories ─► AwaitAnswer of the one before ─► InsertGroup ─► Next unit ...
//
// A request is stored whole or not at all. One at a time, because then an error belongs to known lines, and nothing behind a wrong
// line is stored; reading JSON is slower than the server anyway. A request whose connection breaks is sent again, and stored once.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/cli/command.h"
#include "client/cli/format.h"
#include "client/cli/line_reader.h"
#include "client/cli/progress.h"

namespace replay::cli {

struct ImportArguments {
  std::string buffer;
  std::string path = "-";
  uint32_t batch = 64;
  bool create = false;
  bool skip_existing = false;
  BufferOptions options;
};

class Importer {
 public:
  Importer(const Context& context, const ImportArguments& arguments)
      : context_(context), arguments_(arguments), batch_(arguments.batch), client_(context.client_options()) {}
  int Run();

 private:
  struct Request {
    std::vector<Unit> units;
    size_t trajectories = 0;
    uint64_t bytes = 0;  // about
    void Add(Unit unit);
  };
  static constexpr uint64_t kRequestBytes = uint64_t{8} << 20;

  std::optional<Error> Connect();
  bool Send(Request request);
  bool AwaitAnswer();
  bool InsertOneByOne(const Request& request);
  bool Fail(const Error& error, const std::string& lines, int exit_code = -1);  // false
  int Report(double seconds);

  const Context& context_;
  const ImportArguments& arguments_;
  std::optional<StopRequest> stop_;  // once connected
  std::optional<Request> under_way_;
  uint32_t batch_;  // trajectories of a request: less than asked for once the server refused so many
  uint64_t read_ = 0, accepted_one_by_one_ = 0, refused_one_by_one_ = 0, existing_ = 0;
  std::string level_one_by_one_ = "none";
  std::string level_ = "none";  // what the acknowledgements said; the client's thread's until the writer has ended
  struct Failure {
    Error error;
    std::string lines;
    int exit_code;
  };
  std::optional<Failure> failure_;  // told at the end, after the progress bar

  Client client_;
  std::unique_ptr<Writer> writer_;
};

inline std::vector<Trajectory> Flatten(const std::vector<Unit>& units) {
  std::vector<Trajectory> trajectories;
  for (const Unit& unit : units) trajectories.insert(trajectories.end(), unit.trajectories.begin(), unit.trajectories.end());
  return trajectories;
}

// The library and the server name a wrong trajectory by its place in the request: "trajectory 3: reward is ...", "trajectory 3 of
// the request ...". Here it is a line of the input.
inline std::optional<size_t> PlaceIn(const std::vector<Unit>& units, const Error& error) {
  size_t place = 0, count = 0;
  for (const Unit& unit : units) count += unit.trajectories.size();
  if (std::sscanf(error.message.c_str(), "trajectory %zu", &place) == 1 && place < count) return place;
  return count == 1 ? std::optional<size_t>(0) : std::nullopt;
}

inline std::string LinesOf(const std::vector<Unit>& units, const Error& error) {
  const std::optional<size_t> place = PlaceIn(units, error);
  if (!place) return LinesOf(units.front().lines.front(), units.back().lines.back());
  std::vector<uint64_t> lines;
  for (const Unit& unit : units) lines.insert(lines.end(), unit.lines.begin(), unit.lines.end());
  return LinesOf(lines[*place], lines[*place]);
}

inline void Importer::Request::Add(Unit unit) {
  trajectories += unit.trajectories.size();
  for (const Trajectory& t : unit.trajectories) {
    bytes += 9 * t.token_ids.size() + t.opaque.size();
    for (const Column& column : t.columns) bytes += column.bytes.size();
  }
  units.push_back(std::move(unit));
}

inline bool Importer::Fail(const Error& error, const std::string& lines, int exit_code) {
  failure_ = {error, lines, exit_code};
  return false;
}

inline std::optional<Error> Importer::Connect() {
  // Before anything is read from stdin: the writer itself would try for minutes to reach a server that is not there.
  const Result<ServerStats> stats = client_.Stats(arguments_.buffer);
  if (!stats && !(stats.error().code == ErrorCode::kNotFound && arguments_.create)) return stats.error();
  if (!stats || stats->buffers.empty()) {
    const Result<Done> created = client_.CreateBuffer(arguments_.buffer, arguments_.options);
    if (!created && created.error().code != ErrorCode::kAlreadyExists) return created.error();
  }
  WriterOptions options;
  options.level = arguments_.options.level.value_or("");
  options.max_in_flight = 1;
  options.max_in_flight_bytes = uint64_t{1} << 30;
  options.batch_trajectories = 1;  // One call of InsertGroup is one request.
  // The writer asks again for as long as we wait; the reason of the wait is known after the first time.
  options.insert_timeout = std::clamp(context_.timeout / 2, milliseconds(500), milliseconds(5'000));
  options.give_up_after = std::max(context_.timeout, milliseconds(1'000));
  writer_ = client_.NewWriter(arguments_.buffer, options);
  writer_->OnResult([this](const Result<InsertReceipt>& receipt) {
    if (receipt) level_ = receipt->level;
  });
  return std::nullopt;
}

inline bool Importer::Send(Request request) {
  if (!AwaitAnswer()) return false;
  const Result<Done> queued = writer_->InsertGroup(Flatten(request.units), context_.timeout);
  if (queued) {
    under_way_ = std::move(request);
    return true;
  }
  Error error = queued.error();
  const bool is_content = error.code == ErrorCode::kInvalidArgument;
  const std::string lines = LinesOf(request.units, error);
  const std::optional<size_t> place = PlaceIn(request.units, error);
  if (const size_t colon = error.message.find(": "); place && error.message.starts_with("trajectory ") && colon < 20)
    error.message.erase(0, colon + 2);
  // The units before the wrong one are right: they are what "before it" means.
  Request before;
  for (Unit& unit : request.units) {
    if (!is_content || !place || before.trajectories + unit.trajectories.size() > *place) break;
    before.Add(std::move(unit));
  }
  if (!before.units.empty() && (!Send(std::move(before)) || !AwaitAnswer())) return false;
  return Fail(error, lines, is_content ? kBadData : -1);
}

// Consumes the answer to the request under way, if there is one. Ends by --timeout, or by Ctrl-C.
inline bool Importer::AwaitAnswer() {
  if (!under_way_) return true;
  const auto deadline = std::chrono::steady_clock::now() + std::max(context_.timeout, milliseconds(1'000));
  while (true) {
    const Result<Done> answered = writer_->Flush(milliseconds(100));
    const bool waits = !answered && answered.error().code == ErrorCode::kTimedOut;
    if (waits && !stop_->stopped() && std::chrono::steady_clock::now() < deadline) continue;
    const Request request = *std::exchange(under_way_, std::nullopt);
    if (answered) return true;
    if (waits && stop_->stopped()) return false;
    const ErrorCode code = answered.error().code;
    const bool too_many = code == ErrorCode::kInvalidArgument || code == ErrorCode::kResourceExhausted;
    if (too_many) batch_ = std::max<uint32_t>(1, static_cast<uint32_t>(request.trajectories / 2));
    // Which units deserve it? What stands before the first is stored.
    if ((too_many && request.units.size() > 1) || code == ErrorCode::kAlreadyExists) return InsertOneByOne(request);
    return Fail(answered.error(), LinesOf(request.units, answered.error()));
  }
}

// The units of a refused request. False at the first that is refused by itself.
inline bool Importer::InsertOneByOne(const Request& request) {
  for (const Unit& unit : request.units) {
    const Result<InsertReceipt> receipt = client_.Insert(arguments_.buffer, unit.trajectories, context_.timeout);
    if (receipt) {
      accepted_one_by_one_ += receipt->count;
      refused_one_by_one_ += receipt->refused;
      level_one_by_one_ = receipt->level;
    } else if (receipt.error().code == ErrorCode::kAlreadyExists && arguments_.skip_existing) {
      existing_ += unit.trajectories.size();
    } else {
      return Fail(receipt.error(), LinesOf({unit}, receipt.error()));
    }
    if (stop_->stopped()) return false;
  }
  return true;
}

inline int Importer::Run() {
  LineReader lines(arguments_.path);
  if (!lines.error().empty()) {
    Say(lines.error());
    return kIo;
  }
  if (const auto error = Connect()) return cli::Fail(context_, *error);
  stop_.emplace();
  const auto start = std::chrono::steady_clock::now();
  {
    Progress progress("import", lines.total_bytes());
    UnitReader units(&lines);
    Request request;
    Unit unit;
    bool go_on = true;
    while (go_on && !stop_->stopped() && units.Next(&unit)) {
      const bool fits = request.trajectories + unit.trajectories.size() <= batch_;
      if (!fits && !request.units.empty()) go_on = Send(std::exchange(request, {}));
      read_ += unit.trajectories.size();
      request.Add(std::move(unit));
      const bool is_full = request.trajectories >= batch_ || request.bytes >= kRequestBytes;
      // A slow pipe does not hold up what has come.
      if (go_on && (is_full || !lines.HasMoreNow())) go_on = Send(std::exchange(request, {}));
      progress.Update(lines.bytes_read(), read_);
    }
    progress.Clear();
    // What is complete before a wrong line is stored, so that the import can be taken up again at that line.
    if (go_on && !stop_->stopped() && !request.units.empty()) go_on = Send(std::move(request));
    if (go_on) go_on = AwaitAnswer();
    if (go_on && !units.error().empty())
      Fail({.code = ErrorCode::kInvalidArgument, .message = units.error()}, "", lines.error().empty() ? kBadData : kIo);
  }
  return Report(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
}

inline int Importer::Report(double seconds) {
  const Writer::Progress progress = writer_->progress();
  writer_.reset();  // Ends the callbacks.
  const uint64_t accepted = progress.accepted + accepted_one_by_one_;
  const uint64_t refused = progress.refused + refused_one_by_one_;
  if (progress.accepted == 0) level_ = level_one_by_one_;
  if (context_.json) {
    PrintJson({{"buffer", arguments_.buffer},
               {"read", read_},
               {"accepted", accepted},
               {"refused", refused},
               {"duplicate", progress.duplicate},
               {"existing", existing_},
               {"lost", progress.content_lost},
               {"level", level_},
               {"seconds", seconds}});
  } else {
    std::string text = "stored " + Count(accepted) + " of " + Count(read_) + " trajectories";
    if (progress.duplicate > 0) text += ", " + Count(progress.duplicate) + " had arrived before";
    if (refused > 0) text += ", " + Count(refused) + " were refused for zero spread";
    if (existing_ > 0) text += ", " + Count(existing_) + " existed already";
    text += " in " + Seconds(seconds) + " (" + Rate(static_cast<double>(accepted) / std::max(seconds, 1e-6)) + ")";
    Print(text + (accepted > 0 ? ", acknowledged at level " + level_ : "") + "\n");
  }
  FlushOutput();
  if (failure_) return cli::Fail(context_, failure_->error, failure_->lines, failure_->exit_code);
  if (!stop_->stopped()) return kOk;
  Say("interrupted");
  return kInterrupted;
}

}  // namespace replay::cli
