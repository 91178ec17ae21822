#pragma once
// What a contest measured: for each system a list of slices, one for each repeat, taken in turns so that all systems saw the
// same machine. Only ratios of slices of one repeat are compared; their median is what is reported.

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tests/bench/load.h"

namespace replay::bench {

struct Slice {
  Load load;
  double server_cpu_seconds = 0;
  double rate() const { return static_cast<double>(load.operations) / load.seconds; }
  double gigabytes_per_second() const { return static_cast<double>(load.payload_bytes) * 1e-9 / load.seconds; }
  // Of client and server together: on one core its inverse is what the rate would be without anybody else on the machine.
  double both_cpu_seconds_per_byte() const {
    return (server_cpu_seconds + load.client_cpu_seconds) / static_cast<double>(load.payload_bytes);
  }
  double cpu_ms_per_gigabyte() const { return server_cpu_seconds * 1e3 / (static_cast<double>(load.payload_bytes) * 1e-9); }
};

struct Case {
  std::string kind;       // "insert" | "sample"
  std::string transport;  // "unix" | "tcp"
  bool same_core = true;  // client on the server's core; else on the next
  uint32_t payload_kib = 0;
  uint32_t depth = 1;  // requests under way (insert)
  uint32_t batch = 0;  // draws in a request (sample)
  uint32_t clients = 1;
  std::string Name() const;  // "insert unix same-core 4 KB depth 128"
};

double Median(std::vector<double> values);

class Contest {
 public:
  explicit Contest(Case what) : case_(std::move(what)) {}
  void Add(const std::string& system, Slice slice) { slices_[system].push_back(std::move(slice)); }
  // Medians for each system; for each system but the first (replayd) the median of paired ratios replayd / system, by bytes a
  // second, and of server CPU for each byte, and of the CPU of both sides.
  nlohmann::json ToJson() const;
  static std::string TableHeader();
  std::string TableLines() const;

 private:
  static constexpr const char* kOurs = "replayd";
  template <typename Value>
  double PairedRatio(const std::string& system, const Value& value) const;
  Case case_;
  std::map<std::string, std::vector<Slice>> slices_;
};

}  // namespace replay::bench
