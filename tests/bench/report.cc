#include "tests/bench/report.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdio>
#include <limits>

namespace replay::bench {

std::string Case::Name() const {
  std::string name = kind + " " + transport + (same_core ? " same-core " : " two-cores ") + std::to_string(payload_kib) + " KB";
  if (kind == "insert") name += " depth " + std::to_string(depth);
  if (kind == "sample") name += " batch " + std::to_string(batch);
  if (clients > 1) name += " clients " + std::to_string(clients);
  return name;
}

double Median(std::vector<double> values) {
  if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 ? values[half] : (values[half - 1] + values[half]) / 2;
}

namespace {

template <typename Value>
double MedianOf(const std::vector<Slice>& slices, const Value& value) {
  std::vector<double> values;
  for (const Slice& slice : slices) values.push_back(value(slice));
  return Median(std::move(values));
}

double Rate(const Slice& slice) { return slice.rate(); }
double Gigabytes(const Slice& slice) { return slice.gigabytes_per_second(); }
double Cpu(const Slice& slice) { return slice.cpu_ms_per_gigabyte(); }
double BothCpu(const Slice& slice) { return slice.both_cpu_seconds_per_byte(); }
double P50(const Slice& slice) { return slice.load.latency.Percentile(0.5); }
double P99(const Slice& slice) { return slice.load.latency.Percentile(0.99); }

}  // namespace

template <typename Value>
double Contest::PairedRatio(const std::string& system, const Value& value) const {
  const auto ours = slices_.find(kOurs), theirs = slices_.find(system);
  std::vector<double> ratios;
  if (ours == slices_.end()) return std::numeric_limits<double>::quiet_NaN();
  for (size_t i = 0; i < std::min(ours->second.size(), theirs->second.size()); ++i)
    ratios.push_back(value(ours->second[i]) / value(theirs->second[i]));
  return Median(std::move(ratios));
}

nlohmann::json Contest::ToJson() const {
  nlohmann::json systems = nlohmann::json::object();
  for (const auto& [system, slices] : slices_) {
    systems[system] = {{"requests_per_s", MedianOf(slices, Rate)},
                       {"gb_per_s", MedianOf(slices, Gigabytes)},
                       {"server_cpu_ms_per_gb", MedianOf(slices, Cpu)},
                       {"p50_us", MedianOf(slices, P50)},
                       {"p99_us", MedianOf(slices, P99)}};
    if (system == kOurs) continue;
    systems[system]["ratio"] = PairedRatio(system, Gigabytes);
    systems[system]["cpu_ratio"] = PairedRatio(system, Cpu);
    systems[system]["both_cpu_ratio"] = PairedRatio(system, BothCpu);
  }
  const size_t repeats = slices_.empty() ? 0 : slices_.begin()->second.size();
  return {{"case", case_.Name()},
          {"kind", case_.kind},
          {"transport", case_.transport},
          {"same_core", case_.same_core},
          {"payload_kib", case_.payload_kib},
          {"depth", case_.depth},
          {"batch", case_.batch},
          {"clients", case_.clients},
          {"repeats", repeats},
          {"systems", systems}};
}

std::string Contest::TableHeader() {
  char line[160];
  std::snprintf(line, sizeof line, "%-48s %-14s %10s %8s %10s %9s %9s %8s %8s %8s\n", "case", "system", "requests/s", "GB/s",
                "CPU ms/GB", "p50 us", "p99 us", "ratio", "CPU", "both CPU");
  return line;
}

std::string Contest::TableLines() const {
  std::string text;
  for (const auto& [system, slices] : slices_) {
    char line[200];
    std::snprintf(line, sizeof line, "%-48s %-14s %10.0f %8.3f %10.0f %9.1f %9.1f", case_.Name().c_str(), system.c_str(),
                  MedianOf(slices, Rate), MedianOf(slices, Gigabytes), MedianOf(slices, Cpu), MedianOf(slices, P50),
                  MedianOf(slices, P99));
    text += line;
    if (system != kOurs && slices_.contains(kOurs)) {
      std::snprintf(line, sizeof line, " %7.2fx %7.2fx %7.2fx", PairedRatio(system, Gigabytes), PairedRatio(system, Cpu),
                    PairedRatio(system, BothCpu));
      text += line;
    }
    text += "\n";
  }
  return text;
}

}  // namespace replay::bench
