#include "server/metrics.h"

#include <unistd.h>

#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <fstream>
#include <initializer_list>
#include <string_view>
#include <utility>
#include <vector>

namespace replay::server {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = std::vector<ClientMetric::Label>;

class Families {
 public:
  // Starts a family; the metrics added next belong to it.
  Families& Start(std::string name, MetricType type, std::string help) {
    families_.push_back({std::move(name), std::move(help), type, {}});
    return *this;
  }

  Families& Add(double value, Labels labels = {}) {
    ClientMetric metric;
    metric.label = std::move(labels);
    if (families_.back().type == MetricType::Counter) {
      metric.counter.value = value;
    } else {
      metric.gauge.value = value;
    }
    families_.back().metric.push_back(std::move(metric));
    return *this;
  }

  Families& Add(const Histogram& histogram, Labels labels) {
    ClientMetric metric;
    metric.label = std::move(labels);
    uint64_t cumulative = 0;
    for (size_t i = 0; i < histogram.counts.size(); ++i) {
      cumulative += histogram.counts[i];
      const bool last = i == histogram.bounds.size();
      metric.histogram.bucket.push_back({cumulative, last ? std::numeric_limits<double>::infinity() : histogram.bounds[i]});
    }
    metric.histogram.sample_count = cumulative;
    metric.histogram.sample_sum = histogram.sum;
    families_.back().metric.push_back(std::move(metric));
    return *this;
  }

  std::string Text() const { return prometheus::TextSerializer().Serialize(families_); }

 private:
  std::vector<MetricFamily> families_;
};

double ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  double total = 0, resident = 0;
  file >> total >> resident;
  return resident * static_cast<double>(sysconf(_SC_PAGESIZE));
}

void AddServer(const ServerStats& stats, Families& out) {
  out.Start("replay_build_info", MetricType::Gauge, "Build of this daemon.").Add(1, {{"version", REPLAY_VERSION}});
  out.Start("replay_uptime_seconds", MetricType::Gauge, "Time since the daemon started.").Add(stats.uptime_seconds);
  out.Start("process_resident_memory_bytes", MetricType::Gauge, "Resident memory of the process.").Add(ResidentBytes());
  out.Start("replay_connections", MetricType::Gauge, "Open client connections.").Add(static_cast<double>(stats.connections));
  out.Start("replay_connections_accepted_total", MetricType::Counter, "Client connections accepted.")
      .Add(static_cast<double>(stats.accepted_connections));
  out.Start("replay_received_bytes_total", MetricType::Counter, "Bytes of requests, payload included.")
      .Add(static_cast<double>(stats.received_bytes));
  out.Start("replay_sent_bytes_total", MetricType::Counter, "Bytes of replies, payload included.")
      .Add(static_cast<double>(stats.sent_bytes));
  if (stats.keeps_data) {
    out.Start("replay_spill_reads_total", MetricType::Counter, "Frames read from disk because memory did not have them.")
        .Add(static_cast<double>(stats.spill_reads));
    out.Start("replay_spill_read_bytes_total", MetricType::Counter, "Bytes of replay_spill_reads_total.")
        .Add(static_cast<double>(stats.spill_read_bytes));
    out.Start("replay_corruption_detected_total", MetricType::Counter, "What was read from disk and was not what was written.")
        .Add(static_cast<double>(stats.spill_read_errors), {{"kind", "frame"}});
    out.Start("replay_storage_read_only", MetricType::Gauge, "1: inserts are refused, since the disk is full or has failed.")
        .Add(stats.storage_full || stats.storage_failed ? 1 : 0);
  }
  out.Start("replay_memory_used_bytes", MetricType::Gauge,
            "Bytes of frames held: stored, in requests and in replies under way.")
      .Add(static_cast<double>(stats.memory_used_bytes));
  out.Start("replay_memory_limit_bytes", MetricType::Gauge, "Limit of replay_memory_used_bytes.")
      .Add(static_cast<double>(stats.memory_limit_bytes));
  out.Start("replay_requests_total", MetricType::Counter, "Requests finished, by verb.");
  for (size_t i = 0; i < stats.requests.size(); ++i)
    out.Add(static_cast<double>(stats.requests[i]), {{"method", std::string(ToString(static_cast<Verb>(i)))}});
  out.Start("replay_request_errors_total", MetricType::Counter, "Requests that ended in an error, by code.");
  for (size_t i = 1; i < stats.errors.size(); ++i)  // 0 is ok
    out.Add(static_cast<double>(stats.errors[i]), {{"code", std::string(ToString(static_cast<ErrorCode>(i)))}});
}

// One family with one value of each buffer.
template <typename Value>
void PerBuffer(const ServerStats& stats, Families& out, const char* name, MetricType type, const char* help, Value value) {
  out.Start(name, type, help);
  for (const BufferStats& buffer : stats.buffers) out.Add(static_cast<double>(value(buffer)), {{"buffer", buffer.name}});
}

void AddContents(const ServerStats& stats, Families& out) {
  constexpr MetricType kGauge = MetricType::Gauge, kCounter = MetricType::Counter;
  using Stats = const BufferStats&;
  out.Start("replay_buffer_items", kGauge, "Live items, by where their bytes are.");
  for (Stats buffer : stats.buffers) {
    out.Add(static_cast<double>(buffer.items - buffer.spilled_items), {{"buffer", buffer.name}, {"tier", "memory"}});
    out.Add(static_cast<double>(buffer.spilled_items), {{"buffer", buffer.name}, {"tier", "disk"}});
  }
  out.Start("replay_buffer_bytes", kGauge, "Bytes of the frames of live items, by where they are.");
  for (Stats buffer : stats.buffers) {
    out.Add(static_cast<double>(buffer.bytes - buffer.spilled_bytes), {{"buffer", buffer.name}, {"tier", "memory"}});
    out.Add(static_cast<double>(buffer.spilled_bytes), {{"buffer", buffer.name}, {"tier", "disk"}});
  }
  PerBuffer(stats, out, "replay_buffer_index_bytes", kGauge, "Memory of the index of live items.",
            [](Stats b) { return b.index_bytes; });
  PerBuffer(stats, out, "replay_buffer_capacity_items", kGauge, "N: most items the buffer holds.",
            [](Stats b) { return b.options.capacity_items; });
  PerBuffer(stats, out, "replay_buffer_capacity_bytes", kGauge, "Most bytes the buffer holds.",
            [](Stats b) { return b.options.capacity_bytes; });
  PerBuffer(stats, out, "replay_items_offered_total", kCounter, "Trajectories offered = inserted + duplicate + rejected.",
            [](Stats b) { return b.offered; });
  PerBuffer(stats, out, "replay_items_inserted_total", kCounter, "Trajectories accepted.", [](Stats b) { return b.accepted; });
  PerBuffer(stats, out, "replay_items_duplicate_total", kCounter, "Trajectories of repeated requests, answered by receipt.",
            [](Stats b) { return b.duplicate; });
  PerBuffer(stats, out, "replay_items_rejected_total", kCounter, "Trajectories refused, with an error or for zero spread.",
            [](Stats b) { return b.rejected; });
  PerBuffer(stats, out, "replay_items_zero_spread_refused_total", kCounter,
            "Trajectories refused because all rewards of their group are the same; of replay_items_rejected_total.",
            [](Stats b) { return b.zero_spread_refused; });
  PerBuffer(stats, out, "replay_buffer_items_zero_spread", kGauge, "Live items of groups whose rewards are all the same.",
            [](Stats b) { return b.zero_spread; });
  PerBuffer(stats, out, "replay_items_sampled_total", kCounter, "Draws.", [](Stats b) { return b.drawn; });
  PerBuffer(stats, out, "replay_samples_total", kCounter, "Sample requests answered.", [](Stats b) { return b.samples; });
  PerBuffer(stats, out, "replay_tokens_inserted_total", kCounter, "Tokens of accepted trajectories.",
            [](Stats b) { return b.tokens_inserted; });
  PerBuffer(stats, out, "replay_tokens_sampled_total", kCounter, "Tokens of draws.", [](Stats b) { return b.tokens_drawn; });
  out.Start("replay_items_removed_total", kCounter, "Items removed, by reason.");
  for (Stats buffer : stats.buffers) {
    for (size_t i = 0; i < buffer.removed.size(); ++i)
      out.Add(static_cast<double>(buffer.removed[i]),
              {{"buffer", buffer.name}, {"reason", std::string(ToString(static_cast<RemoveReason>(i)))}});
  }
}

void AddPaper(const ServerStats& stats, Families& out) {
  constexpr MetricType kGauge = MetricType::Gauge, kCounter = MetricType::Counter;
  using Stats = const BufferStats&;
  out.Start("replay_sample_staleness_steps", MetricType::Histogram,
            "Gradient steps from a draw's oldest policy version to the draw.");
  for (Stats buffer : stats.buffers) out.Add(buffer.staleness, {{"buffer", buffer.name}});
  out.Start("replay_sample_reuse_gap_steps", MetricType::Histogram, "Gradient steps since the same item was last drawn.");
  for (Stats buffer : stats.buffers) out.Add(buffer.reuse_gap, {{"buffer", buffer.name}});
  out.Start("replay_item_draws", MetricType::Histogram, "Draws of an item when it was removed; bucket 0 is generation wasted.");
  for (Stats buffer : stats.buffers) out.Add(buffer.item_draws, {{"buffer", buffer.name}});
  PerBuffer(stats, out, "replay_staleness_withheld_total", kCounter,
            "Live items passed over, summed over the samples: newer than the step or of an older epoch.",
            [](Stats b) { return b.withheld_total; });
  PerBuffer(stats, out, "replay_buffer_items_withheld", kGauge, "Live items passed over at the latest sample.",
            [](Stats b) { return b.withheld; });
  PerBuffer(stats, out, "replay_buffer_oldest_policy_version", kGauge, "Oldest policy version among live items.",
            [](Stats b) { return b.oldest_version; });
  PerBuffer(stats, out, "replay_buffer_newest_policy_version", kGauge, "Newest policy version among live items.",
            [](Stats b) { return b.newest_version; });
  PerBuffer(stats, out, "replay_consumer_step", kGauge, "Step of the latest draw.", [](Stats b) { return b.consumer_step; });
  PerBuffer(stats, out, "replay_buffer_items_scored", kGauge, "Live items whose correctness is known.",
            [](Stats b) { return b.stored.correct + b.stored.incorrect; });
  PerBuffer(stats, out, "replay_buffer_items_correct", kGauge, "Live items known to be correct.",
            [](Stats b) { return b.stored.correct; });
  PerBuffer(stats, out, "replay_buffer_items_positive", kGauge, "Live items kept for being correct beyond the freshest.",
            [](Stats b) { return b.positive_items; });
  out.Start("replay_items_scored_total", kCounter, "Scored trajectories by event and outcome.");
  for (Stats buffer : stats.buffers) {
    for (const auto& [event, counts] : {std::pair("insert", buffer.inserted), std::pair("sample", buffer.sampled),
                                        std::pair("remove", buffer.removed_outcomes)}) {
      out.Add(static_cast<double>(counts.correct), {{"buffer", buffer.name}, {"event", event}, {"outcome", "correct"}});
      out.Add(static_cast<double>(counts.incorrect), {{"buffer", buffer.name}, {"event", event}, {"outcome", "incorrect"}});
    }
  }
  PerBuffer(stats, out, "replay_generation_seconds_total", kCounter, "Busy seconds of generators, as they report.",
            [](Stats b) { return b.cost.generation_seconds; });
  PerBuffer(stats, out, "replay_training_seconds_total", kCounter, "Busy seconds of trainers, as they report.",
            [](Stats b) { return b.cost.training_seconds; });
  out.Start("replay_clients", kGauge, "Connections that have inserted (producer) and sampled (consumer).");
  for (Stats buffer : stats.buffers) {
    out.Add(buffer.producers, {{"buffer", buffer.name}, {"role", "producer"}});
    out.Add(buffer.consumers, {{"buffer", buffer.name}, {"role", "consumer"}});
  }
}

// What is there and cannot be drawn now, and what stands beside the frames.
void AddHeldBack(const ServerStats& stats, Families& out) {
  constexpr MetricType kGauge = MetricType::Gauge, kCounter = MetricType::Counter;
  using Stats = const BufferStats&;
  PerBuffer(stats, out, "replay_groups_incomplete", kGauge, "Reserved groups that wait for members.",
            [](Stats b) { return b.reserved_groups; });
  PerBuffer(stats, out, "replay_groups_expired_total", kCounter,
            "Reserved groups whose lease or deadline ended before they were complete: dropped, or released as they were.",
            [](Stats b) { return b.expired_groups; });
  PerBuffer(stats, out, "replay_buffer_items_pending", kGauge,
            "Members of incomplete groups that are there; not in replay_buffer_items.", [](Stats b) { return b.pending; });
  PerBuffer(stats, out, "replay_buffer_items_held", kGauge, "Live items under a lease; groups, where they are the unit.",
            [](Stats b) { return b.held; });
  PerBuffer(stats, out, "replay_leases", kGauge, "Leases that are open.", [](Stats b) { return b.leases; });
  PerBuffer(stats, out, "replay_leases_expired_total", kCounter, "Leases that ended by their time.",
            [](Stats b) { return b.expired_leases; });
  PerBuffer(stats, out, "replay_buffer_column_bytes", kGauge, "Bytes of the columns of live items, beside replay_buffer_bytes.",
            [](Stats b) { return b.column_bytes; });
}

// A label that no two sources share. Text that is no UTF-8 would cost the whole scrape: what is not plain ASCII is written %XX.
std::string SourceLabel(const std::string& source) {
  constexpr std::string_view kHex = "0123456789ABCDEF";
  std::string label;
  for (const char c : source) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte == '%' || byte < 0x20 || byte >= 0x7f) {
      label += '%';
      label += kHex[byte >> 4];
      label += kHex[byte & 15];
    } else {
      label += c;
    }
  }
  return label;
}

// At most 64 sources, 11 lengths and 11 numbers of draws a buffer. Which reason removed what of a source is in Stats only.
void AddBreakdowns(const ServerStats& stats, Families& out) {
  constexpr MetricType kGauge = MetricType::Gauge, kCounter = MetricType::Counter;
  const auto each_row = [&](const char* name, MetricType type, const char* help, const char* label, auto value) {
    out.Start(name, type, help);
    const bool by_source = std::string_view(label) == "source";
    for (const BufferStats& buffer : stats.buffers)
      for (const BreakdownRow& row : by_source ? buffer.sources : buffer.lengths)
        out.Add(static_cast<double>(value(row)),
                {{"buffer", buffer.name}, {label, by_source ? SourceLabel(row.name) : row.name}});
  };
  const auto live = [](const BreakdownRow& row) { return row.live; };
  const auto inserted = [](const BreakdownRow& row) { return row.inserted; };
  const auto withheld = [](const BreakdownRow& row) { return row.withheld; };
  const auto removed = [](const BreakdownRow& row) { return row.inserted - row.live; };
  each_row("replay_buffer_items_by_source", kGauge, "Live items, by source.", "source", live);
  each_row("replay_buffer_items_withheld_by_source", kGauge, "Live items that the latest sample could not draw, by source.",
           "source", withheld);
  each_row("replay_items_inserted_by_source_total", kCounter, "Trajectories accepted, by source.", "source", inserted);
  each_row("replay_items_removed_by_source_total", kCounter, "Items removed, by source.", "source", removed);
  each_row("replay_buffer_items_by_length", kGauge, "Live items, by tokens.", "tokens", live);
  each_row("replay_buffer_items_withheld_by_length", kGauge, "Live items that the latest sample could not draw, by tokens.",
           "tokens", withheld);
  each_row("replay_items_inserted_by_length_total", kCounter, "Trajectories accepted, by tokens.", "tokens", inserted);
  const auto by_reason = [&](const char* name, const char* help, const char* label,
                             std::vector<BreakdownRow> BufferStats::*rows) {
    out.Start(name, kCounter, help);
    for (const BufferStats& buffer : stats.buffers)
      for (const BreakdownRow& row : buffer.*rows)
        for (size_t i = 0; i < kRemoveReasons; ++i)
          out.Add(
              static_cast<double>(row.removed[i]),
              {{"buffer", buffer.name}, {label, row.name}, {"reason", std::string(ToString(static_cast<RemoveReason>(i)))}});
  };
  by_reason("replay_items_removed_by_length_total", "Items removed, by tokens and reason.", "tokens", &BufferStats::lengths);
  by_reason("replay_items_removed_by_draws_total", "Items removed, by the draws they had and reason.", "draws",
            &BufferStats::draws);
}

void AddWaits(const ServerStats& stats, Families& out) {
  out.Start("replay_waiters", MetricType::Gauge, "Calls waiting now, by what they wait for.");
  for (const BufferStats& buffer : stats.buffers) {
    for (const auto& [op, waits] : {std::pair("insert", &buffer.insert_waits), std::pair("sample", &buffer.sample_waits)}) {
      for (size_t i = 1; i < waits->size(); ++i)  // 0 is no reason
        out.Add(static_cast<double>((*waits)[i]),
                {{"buffer", buffer.name}, {"op", op}, {"reason", std::string(ToString(static_cast<WaitReason>(i)))}});
    }
  }
  out.Start("replay_version_waiters", MetricType::Gauge, "Calls waiting now for a policy version.");
  out.Add(static_cast<double>(stats.waiting_versions), {});
  PerBuffer(stats, out, "replay_pacing_balance", MetricType::Gauge, "(inserted - baseline) * replay_ratio - drawn.",
            [](const BufferStats& b) { return b.pacing_balance; });
  PerBuffer(stats, out, "replay_pacing_tolerance", MetricType::Gauge, "The balance stays within plus and minus this.",
            [](const BufferStats& b) { return b.options.tolerance; });
}

}  // namespace

std::string RenderMetrics(const ServerStats& stats) {
  Families out;
  AddServer(stats, out);
  AddContents(stats, out);
  AddPaper(stats, out);
  AddHeldBack(stats, out);
  AddBreakdowns(stats, out);
  AddWaits(stats, out);
  return out.Text();
}

}  // namespace replay::server
