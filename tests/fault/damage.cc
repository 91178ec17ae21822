// Damaged files: a bit flipped in a log, the header of one of its records, a table or a manifest, or the end of the newest log cut off (R6). The daemon refuses with
// a reason, or comes up with all it had acknowledged; a cut takes the record it falls into, and nothing before it.

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>

#include "tests/fault/injections.h"
#include "tests/fault/trial.h"

namespace replay::fault {
namespace {

namespace fs = std::filesystem;

constexpr int kIo = 74, kFormat = 76;  // server/main.cc
constexpr uint64_t kMostCut = 64;      // bytes
constexpr uint64_t kRecordHeader = 7;  // bytes
constexpr milliseconds kPatience{20'000};

struct Contents {
  Found rollouts, window;
  size_t versions = 0;
};

// A data folder of a daemon that was killed, and what it holds.
struct Specimen {
  fs::path data;
  fs::path newest_log;       // within it
  uint64_t last_record = 0;  // where in it the last Insert begins
  Contents contents;
  std::vector<std::string> last_items;  // of that Insert
};

Contents ReadAll(const std::string& address, Report* report) {
  Client client({.address = address});
  const auto versions = client.Versions("math");
  if (!versions) Fail("cannot list the versions: " + versions.error().ToString());
  return {ScanAll(client, "rollouts", report), ScanAll(client, "window", report), versions->size()};
}

std::vector<fs::path> FilesOf(const fs::path& data, const std::string& beginning, const std::string& ending) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(data / "db")) {
    const std::string name = entry.path().filename();
    if (name.starts_with(beginning) && name.ends_with(ending) && entry.file_size() > 0)
      files.push_back(fs::relative(entry.path(), data));
  }
  std::sort(files.begin(), files.end());
  return files;
}

// Two lives that end in tables, one in a log.
Specimen MakeSpecimen(const Options& options, Report* report, const Scratch& scratch, std::mt19937_64* chance) {
  Specimen specimen{.data = scratch / "specimen", .newest_log = {}, .contents = {}, .last_items = {}};
  Trial trial(options, report, {.folder = scratch.path(), .data = specimen.data}, (*chance)());
  if (!trial.Start()) Fail("the daemon does not start");
  for (int life = 0; life < 3; ++life) {
    for (int version = 1; version <= 3; ++version) {
      Client client({.address = trial.daemon().address()});
      const int64_t number = 3 * life + version;
      if (!client.PublishVersion({.run_id = "math", .version = number, .step = number})) Fail("a version was refused");
    }
    trial.RunLoad(200, [&] { life == 0 ? trial.daemon().Terminate() : trial.daemon().Kill(); });
    if (!trial.Restart()) Fail("the daemon does not start again");
  }
  Writing& writing = trial.writings()[0];
  for (int i = 0; i < 20; ++i) {
    specimen.newest_log = FilesOf(specimen.data, "", ".log").back();
    specimen.last_record = fs::file_size(specimen.data / specimen.newest_log);
    OfferedRequest* request = &Offer(&writing, 1 + i % 3, 32, "disk");
    SendRequests(trial.daemon().address(), &writing, {&request, 1}, report);
    specimen.last_items.clear();
    for (const OfferedItem& item : request->items) specimen.last_items.push_back(item.id);
  }
  trial.Compare();
  specimen.contents = ReadAll(trial.daemon().address(), report);
  trial.daemon().Kill();
  return specimen;
}

struct Wound {
  std::string kind;
  std::string text;
  bool in_last_record = false;
  bool in_header = false;  // of a record of a log or a manifest
};

Wound Cut(const Specimen& specimen, const fs::path& data, uint64_t bytes) {
  const fs::path path = data / specimen.newest_log;
  const uint64_t size = fs::file_size(path);
  bytes = std::min(bytes, size - specimen.last_record);
  fs::resize_file(path, size - bytes);
  return {"cut", "the last " + std::to_string(bytes) + " bytes of " + specimen.newest_log.string(), true, false};
}

// Where RocksDB's records begin in a log: blocks of 32 KiB, in them u32 checksum | u16 length | u8 type | bytes, and at the end of
// a block what is too short for a header.
std::vector<uint64_t> RecordsOf(const fs::path& path) {
  constexpr uint64_t kBlock = 32 << 10;
  std::ifstream stream(path, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(stream)), std::istreambuf_iterator<char>());
  std::vector<uint64_t> records;
  for (uint64_t at = 0; at + kRecordHeader <= bytes.size();) {
    if (kBlock - at % kBlock < kRecordHeader) {
      at += kBlock - at % kBlock;
      continue;
    }
    records.push_back(at);
    at += kRecordHeader + static_cast<uint8_t>(bytes[at + 4]) + (uint64_t{static_cast<uint8_t>(bytes[at + 5])} << 8);
  }
  return records;
}

Wound Flip(const Specimen& specimen, const fs::path& data, const std::string& kind, std::mt19937_64* chance) {
  const bool in_log = kind.starts_with("log"), header = kind.ends_with("header");
  const std::vector<fs::path> files = in_log            ? FilesOf(data, "", ".log")
                                      : kind == "table" ? FilesOf(data, "", ".sst")
                                                        : FilesOf(data, "MANIFEST", "");
  if (files.empty()) Fail("there is no " + kind + " to flip a bit of");
  const fs::path file = in_log ? files.back() : files[(*chance)() % files.size()];
  uint64_t offset = (*chance)() % fs::file_size(data / file);
  const uint64_t bit = (*chance)() % 8;
  const std::vector<uint64_t> records = kind == "table" ? std::vector<uint64_t>{0} : RecordsOf(data / file);
  if (header) offset = records[(*chance)() % records.size()] + (*chance)() % kRecordHeader;
  const uint64_t record = *std::prev(std::upper_bound(records.begin(), records.end(), offset));
  const bool in_header = kind != "table" && offset - record < kRecordHeader;
  std::fstream stream(data / file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekg(static_cast<std::streamoff>(offset));
  const auto byte = static_cast<char>(stream.get() ^ (1 << bit));
  stream.seekp(static_cast<std::streamoff>(offset));
  stream.put(byte);
  const std::string text = "bit " + std::to_string(bit) + " of byte " + std::to_string(offset) + " of " + file.string() +
                           " of " + std::to_string(fs::file_size(data / file));
  return {kind, text, file == specimen.newest_log && offset >= specimen.last_record, in_header};
}

// How many of `expected` are missing; what is there and wrong is a violation.
std::vector<std::string> Missing(const Found& expected, const Found& found, const std::string& what, Report* report) {
  std::vector<std::string> missing;
  for (const auto& [id, item] : expected.items) {
    const auto at = found.items.find(id);
    if (at == found.items.end()) {
      missing.push_back(id);
      continue;
    }
    const FoundItem& other = at->second;
    const bool same = other.number == item.number && other.checksum == item.checksum && other.reward == item.reward &&
                      other.revision == item.revision;
    report->Require(same, "wrong_data", what + ": " + id + " is not as it was acknowledged");
  }
  for (const auto& [id, item] : found.items)
    report->Require(expected.items.contains(id), "wrong_data", what + ": " + id + " is there and was not before");
  return missing;
}

void Judge(const Specimen& specimen, const Wound& wound, const Ended& ended, DaemonProcess& daemon, Report* report) {
  if (ended.status == Ended::kTimedOut) return report->Violation("hangs", wound.text + ": " + ended.ToString());
  if (ended.status > 128) return report->Violation("crashes", wound.text + ": " + ended.ToString());
  if (ended.status != Ended::kRunning) {
    report->Add(wound.kind + "_refused");
    const bool named = (ended.status == kIo || ended.status == kFormat) && ended.lines.size() == 1;
    return report->Require(named, "not_named", wound.text + ": " + ended.ToString());
  }
  const Contents contents = ReadAll(daemon.address(), report);
  std::vector<std::string> missing = Missing(specimen.contents.rollouts, contents.rollouts, wound.text, report);
  const size_t others = Missing(specimen.contents.window, contents.window, wound.text, report).size() +
                        (specimen.contents.versions - contents.versions);
  if (missing.empty() && others == 0) return report->Add(wound.kind + "_intact");
  const bool only_the_last = others == 0 && std::is_permutation(missing.begin(), missing.end(), specimen.last_items.begin(),
                                                                specimen.last_items.end());
  if (wound.in_last_record && only_the_last) return report->Add(wound.kind + "_last_record_lost");
  // Known, see ../../storage/README.md: RocksDB takes some of these for the end of the log.
  if (wound.in_header) report->Add("header_silent_losses");
  const std::string what = wound.text + ": it starts without " + std::to_string(missing.size()) + " of " +
                           std::to_string(specimen.contents.rollouts.items.size()) + " items and " + std::to_string(others) +
                           " other things";
  if (wound.in_header)
    Say("in a header: " + what);
  else
    report->Violation("silent_losses", what);
}

}  // namespace

int RunDamage(const Options& options) {
  Report report("damage", options);
  report.Declare(
      {"silent_losses", "header_silent_losses", "wrong_data", "crashes", "hangs", "not_named", "cut_last_record_lost"});
  std::mt19937_64 chance(options.seed);
  const Scratch scratch;
  const Specimen specimen = MakeSpecimen(options, &report, scratch, &chance);
  Say("damage: " + std::to_string(specimen.contents.rollouts.items.size()) + " items in " +
      std::to_string(FilesOf(specimen.data, "", ".sst").size()) + " tables and " +
      std::to_string(FilesOf(specimen.data, "", ".log").size()) + " logs");
  for (int round = 0; round < options.rounds; ++round) {
    const fs::path data = scratch / "data";
    fs::remove_all(data);
    fs::copy(specimen.data, data, fs::copy_options::recursive);
    static constexpr const char* kKinds[] = {"cut", "log", "log header", "table", "manifest", "manifest header"};
    const std::string kind = kKinds[round % 6];
    const Wound wound = kind == "cut" ? Cut(specimen, data, 1 + static_cast<uint64_t>(round / 6) % kMostCut)
                                      : Flip(specimen, data, kind, &chance);
    // No buffers in the configuration: one that is missing must not be replaced by an empty one.
    DaemonProcess daemon(options.replayd, scratch.path(), {.data = data});
    const Ended ended = daemon.Start(kPatience);
    try {
      Judge(specimen, wound, ended, daemon, &report);
    } catch (const std::exception& error) {
      const std::string what = error.what();
      // A frame is looked at when somebody asks for it, and whoever does is told.
      if (what.find("corrupted: ") != std::string::npos)
        report.Add("told_when_read");
      else
        report.Violation("cannot_be_read", wound.text + ": " + what + "; " + daemon.Kill().ToString());
    }
    report.Add(kind);
    if (round % 100 == 99) Say("damage: " + std::to_string(round + 1));
  }
  return report.Finish();
}

}  // namespace replay::fault
