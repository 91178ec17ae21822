// ping, stats, waiters, buffer list|create|alter|describe|drop, versions list|publish|wait.

#include <chrono>
#include <ctime>
#include <iostream>
#include <memory>
#include <thread>
#include <utility>

#include "client/cli/breakdown_view.h"
#include "client/cli/command.h"
#include "client/cli/format.h"
#include "client/cli/stats_view.h"

namespace replay::cli {
namespace {

std::string Bold(const Context& context, const std::string& text) {
  return context.colour ? "\033[1m" + text + "\033[0m" : text;
}

// A command that only says that it worked.
int Finish(const Context& context, const Result<Done>& done, const std::string& what, const Json& json) {
  if (!done) return Fail(context, done.error());
  if (context.json) {
    PrintJson(json);
  } else {
    Print(what + "\n");
  }
  return kOk;
}

int RunPing(const Context& context) {
  Client client(context.client_options());
  const Result<ServerInfo> info = client.Ping();
  if (!info) return Fail(context, info.error());
  if (context.json) {
    // As text: a 64-bit number loses its last digits in many JSON readers.
    PrintJson({{"server", context.server},
               {"version", info->version},
               {"generation", std::to_string(info->generation)},
               {"round_trip_ms", info->round_trip_ms}});
  } else {
    Print(context.server + " answered in " + Format("%.3f ms", info->round_trip_ms) + ": replayd " + Printable(info->version) +
          "\n");
  }
  return kOk;
}

// --- stats -----------------------------------------------------------------------------------------------------------------

struct Snapshot {
  ServerStats stats;
  std::chrono::steady_clock::time_point taken_at;
};

Result<Snapshot> TakeSnapshot(Client* client, const std::string& buffer) {
  Result<ServerStats> stats = client->Stats(buffer);
  if (!stats) return stats.error();
  return Snapshot{std::move(*stats), std::chrono::steady_clock::now()};
}

void ShowSnapshot(const Context& context, const Snapshot& now, const Snapshot* before, bool breakdown, bool redraw) {
  const ServerStats& s = now.stats;
  const double seconds = before ? std::chrono::duration<double>(now.taken_at - before->taken_at).count() : 0;
  Json buffers = Json::array();
  std::string text = redraw ? "\033[H\033[J" : "";
  text += Format("replayd %s, up %s, %s connections, memory %s of %s\n", Printable(s.version).c_str(),
                 Seconds(s.uptime_seconds).c_str(), Count(s.connections).c_str(), Bytes(s.memory_used_bytes).c_str(),
                 Bytes(s.memory_limit_bytes).c_str());
  for (const BufferStats& buffer : s.buffers) {
    const BufferStats* earlier = nullptr;
    if (before && before->stats.generation == s.generation) {
      for (const BufferStats& candidate : before->stats.buffers)
        if (candidate.name == buffer.name) earlier = &candidate;
    }
    const StatsView view = ViewOf(buffer, earlier, seconds);
    if (context.json) {
      Json& json = buffers.emplace_back(JsonOf(buffer, view));
      if (breakdown) AddBreakdown(buffer, &json);
    } else {
      text += "\n" + TextOf(buffer, view, Bold(context, Printable(buffer.name))) + (breakdown ? BreakdownText(buffer) : "");
    }
  }
  if (s.buffers.empty()) text += "no buffers: see replayctl buffer create --help\n";
  if (context.json) {
    PrintJson({{"server",
                {{"version", s.version},
                 {"generation", std::to_string(s.generation)},
                 {"uptime_seconds", s.uptime_seconds},
                 {"connections", s.connections},
                 {"accepted_connections", s.accepted_connections},
                 {"memory_used_bytes", s.memory_used_bytes},
                 {"memory_limit_bytes", s.memory_limit_bytes},
                 {"requests", JsonOf(s.requests)},
                 {"errors", JsonOf(s.errors)}}},
               {"buffers", buffers}});
  } else {
    Print(text);
  }
  FlushOutput();
}

int RunStats(const Context& context, const std::string& buffer, milliseconds interval, bool breakdown) {
  constexpr milliseconds kRateWindow{500};  // A single view for people waits this long, so that it has rates.
  Client client(context.client_options());
  Result<Snapshot> before = TakeSnapshot(&client, buffer);
  if (!before) return Fail(context, before.error());
  const bool repeat = interval.count() > 0;
  if (context.json) ShowSnapshot(context, *before, nullptr, breakdown, false);
  if (context.json && !repeat) return kOk;
  while (true) {  // Until Ctrl-C: there is nothing to clean up.
    std::this_thread::sleep_for(repeat ? interval : kRateWindow);
    Result<Snapshot> now = TakeSnapshot(&client, buffer);
    if (!now) {  // The next look may find the server back; a buffer that is gone stays gone.
      const int exit_code = Fail(context, now.error());
      if (!repeat || now.error().code != ErrorCode::kUnavailable) return exit_code;
      continue;
    }
    ShowSnapshot(context, *now, &*before, breakdown, repeat && !context.json && isatty(STDOUT_FILENO) == 1);
    if (!repeat) return kOk;
    before = std::move(now);
  }
}

// --- waiters ---------------------------------------------------------------------------------------------------------------

int RunWaiters(const Context& context, const std::string& buffer) {
  Client client(context.client_options());
  const Result<std::vector<WaiterInfo>> waiters = client.Waiters(buffer);
  if (!waiters) return Fail(context, waiters.error());
  Table table({"BUFFER", "VERB", "REASON", ">WAITED", ">LEFT", "PEER", "DETAIL"});
  for (const WaiterInfo& w : *waiters) {
    if (context.json) {
      PrintJson({{"buffer", w.buffer},
                 {"verb", w.verb},
                 {"reason", ToString(w.reason)},
                 {"detail", w.detail},
                 {"peer", w.peer},
                 {"waited_ms", w.waited_ms},
                 {"remaining_ms", w.remaining_ms}});
    }
    table.Add({Printable(w.buffer), Printable(w.verb), std::string(ToString(w.reason)),
               Seconds(static_cast<double>(w.waited_ms) / 1e3), Seconds(static_cast<double>(w.remaining_ms) / 1e3),
               Printable(w.peer), Printable(w.detail, 120)});
  }
  if (!context.json) Print(waiters->empty() ? "nobody waits\n" : table.ToString());
  return kOk;
}

// --- buffer ----------------------------------------------------------------------------------------------------------------

int RunBufferList(const Context& context) {
  Client client(context.client_options());
  const Result<ServerStats> stats = client.Stats();
  if (!stats) return Fail(context, stats.error());
  Table table({"NAME", ">ITEMS", ">CAPACITY", ">BYTES", ">CAPACITY", "RETENTION", "SELECTOR", ">REPLAY RATIO"});
  for (const BufferStats& b : stats->buffers) {
    const BufferOptions& o = b.options;
    if (context.json) PrintJson({{"name", b.name}, {"items", b.items}, {"bytes", b.bytes}, {"options", JsonOf(o)}});
    const std::string retention = o.retention.value_or("") + (o.retention != "fifo" ? "(" + o.delta.value_or("") + ")" : "");
    table.Add({Printable(b.name), Count(b.items), Count(o.capacity_items.value_or(0)), Bytes(b.bytes),
               Bytes(o.capacity_bytes.value_or(0)), Printable(retention), Printable(o.selector.value_or("")),
               o.replay_ratio.value_or(0) > 0 ? Format("%g", *o.replay_ratio) : "-"});
  }
  if (!context.json) Print(stats->buffers.empty() ? "no buffers\n" : table.ToString());
  return kOk;
}

int RunBufferDescribe(const Context& context, const std::string& name) {
  Client client(context.client_options());
  const Result<ServerStats> stats = client.Stats(name);
  if (!stats) return Fail(context, stats.error());
  if (stats->buffers.size() != 1)
    return Fail(context, {.code = ErrorCode::kNotFound, .message = "there is no buffer \"" + name + "\""});
  const BufferStats& buffer = stats->buffers[0];
  const Json options = JsonOf(buffer.options);
  if (context.json) {
    PrintJson({{"name", buffer.name}, {"items", buffer.items}, {"bytes", buffer.bytes}, {"options", options}});
    return kOk;
  }
  std::string text = Bold(context, Printable(buffer.name)) + "\n";
  for (const auto& [option, value] : options.items()) {
    std::string shown = value.is_string() ? Printable(value.get<std::string>()) : value.is_null() ? "-" : value.dump();
    if (option == "capacity_bytes" && value.is_number()) shown += " (" + Bytes(value.get<uint64_t>()) + ")";
    text += Format("  %-22s ", option.c_str()) + shown + "\n";
  }
  Print(text);
  return kOk;
}

int RunBufferDrop(const Context& context, const std::string& name, bool yes) {
  Client client(context.client_options());
  if (!yes) {
    if (isatty(STDIN_FILENO) != 1) {
      Say("drop removes buffer \"" + name + "\" and all it holds: say --yes");
      return kUsage;
    }
    const Result<ServerStats> stats = client.Stats(name);
    if (!stats) return Fail(context, stats.error());
    const uint64_t items = stats->buffers.empty() ? 0 : stats->buffers[0].items;
    std::fprintf(stderr, "Drop buffer \"%s\" and its %s items? [y/N] ", name.c_str(), Count(items).c_str());
    std::string answer;
    std::getline(std::cin, answer);
    if (answer != "y" && answer != "Y" && answer != "yes") {
      Say("nothing was dropped");
      return kFailed;
    }
  }
  return Finish(context, client.DropBuffer(name), "dropped buffer " + name, {{"dropped", name}});
}

// --- versions --------------------------------------------------------------------------------------------------------------

Json JsonOf(const PolicyVersion& v) {
  return {{"run_id", v.run_id},
          {"epoch", v.epoch},
          {"version", v.version},
          {"step", v.step},
          {"label", v.label},
          {"uri", v.uri},
          {"published_at_unix_ns", v.published_at_unix_ns}};
}

std::vector<std::string> RowOf(const PolicyVersion& v) {
  const auto seconds = static_cast<std::time_t>(v.published_at_unix_ns / 1'000'000'000);
  std::tm utc = {};
  char when[32] = "-";
  if (gmtime_r(&seconds, &utc) != nullptr) std::strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", &utc);
  return {Printable(v.run_id), std::to_string(v.epoch), std::to_string(v.version), std::to_string(v.step), when,
          Printable(v.label),  Printable(v.uri, 120)};
}

int ShowVersions(const Context& context, const std::vector<PolicyVersion>& versions) {
  Table table({"RUN", ">EPOCH", ">VERSION", ">STEP", "PUBLISHED", "LABEL", "URI"});
  for (const PolicyVersion& version : versions) {
    if (context.json) PrintJson(JsonOf(version));
    table.Add(RowOf(version));
  }
  if (!context.json) Print(versions.empty() ? "no versions were published\n" : table.ToString());
  return kOk;
}

int RunVersionsList(const Context& context, const std::string& run_id) {
  Client client(context.client_options());
  const Result<std::vector<PolicyVersion>> versions = client.Versions(run_id);
  return versions ? ShowVersions(context, *versions) : Fail(context, versions.error());
}

int RunVersionsPublish(const Context& context, const PolicyVersion& version) {
  Client client(context.client_options());
  const Result<PolicyVersion> published = client.PublishVersion(version);
  return published ? ShowVersions(context, {*published}) : Fail(context, published.error());
}

int RunVersionsWait(const Context& context, const PolicyVersion& last, std::optional<int64_t> after) {
  Client client(context.client_options());
  const Result<PolicyVersion> newer = client.WaitVersion(last.run_id, last.epoch, after, context.timeout);
  return newer ? ShowVersions(context, {*newer}) : Fail(context, newer.error());
}

CLI::App* Add(CLI::App* parent, const std::string& name, const std::string& description, const std::string& examples) {
  CLI::App* app = parent->add_subcommand(name, description);
  app->footer("Examples:\n" + examples);
  return app;
}

void AddBufferCommands(CLI::App* app, Context* context) {
  CLI::App* buffer = Add(app, "buffer", "List, create, alter, describe and drop buffers",
                         "  replayctl buffer list\n  replayctl buffer create --help");
  buffer->require_subcommand(1);
  struct Arguments {
    std::string name;
    BufferOptions options;
    bool yes = false;
  };
  const auto given = std::make_shared<Arguments>();
  const auto add_name = [given](CLI::App* command) {
    command->add_option("BUFFER", given->name, "Name of the buffer: A-Z a-z 0-9 _ . -")->required();
  };

  CLI::App* list = Add(buffer, "list", "All buffers, a line each", "  replayctl buffer list --json | jq -r .name");
  list->callback([=] { context->run = [=] { return RunBufferList(*context); }; });

  CLI::App* create = Add(buffer, "create", "Create a buffer",
                         "  replayctl buffer create rollouts --capacity-items 2268 --policy positive_bias --delta 0.25\n"
                         "  replayctl buffer create paced --capacity-bytes 1GiB --replay-ratio 2 --max-draws-per-sample 64 "
                         "--max-insert 8\n"
                         "  replayctl buffer create queue --selector fifo --max-draws 1");
  add_name(create);
  AddBufferOptions(create, &given->options, "Buffer options");
  create->callback([=] {
    context->run = [=] {
      Client client(context->client_options());
      return Finish(*context, client.CreateBuffer(given->name, given->options), "created buffer " + given->name,
                    {{"created", given->name}});
    };
  });

  CLI::App* alter =
      Add(buffer, "alter", "Change options of a buffer while it is used; what is not given stays",
          "  replayctl buffer alter rollouts --replay-ratio 4\n"
          "  replayctl buffer alter rollouts --no-pace-draws     let trainers go on after the generators have ended");
  add_name(alter);
  AddBufferOptions(alter, &given->options, "Buffer options");
  alter->callback([=] {
    context->run = [=] {
      Client client(context->client_options());
      return Finish(*context, client.AlterBuffer(given->name, given->options), "altered buffer " + given->name,
                    {{"altered", given->name}});
    };
  });

  CLI::App* describe = Add(buffer, "describe", "The options in force", "  replayctl buffer describe rollouts");
  add_name(describe);
  describe->callback([=] { context->run = [=] { return RunBufferDescribe(*context, given->name); }; });

  CLI::App* drop = Add(buffer, "drop", "Remove a buffer and everything in it", "  replayctl buffer drop rollouts --yes");
  add_name(drop);
  drop->add_flag("-y,--yes", given->yes, "Do not ask. Needed where there is no terminal to ask on");
  drop->callback([=] { context->run = [=] { return RunBufferDrop(*context, given->name, given->yes); }; });
}

void AddVersionsCommands(CLI::App* app, Context* context) {
  CLI::App* versions = Add(app, "versions", "List, publish and wait for policy versions",
                           "  replayctl versions list\n  replayctl versions publish 120 --step 120");
  versions->require_subcommand(1);
  struct Arguments {
    PolicyVersion version;
    std::optional<int64_t> step, after;
  };
  const auto given = std::make_shared<Arguments>();

  CLI::App* list = Add(versions, "list", "Published versions, newest last", "  replayctl versions list run7");
  list->add_option("RUN", given->version.run_id, "Only of this run (default: of all)");
  list->callback([=] { context->run = [=] { return RunVersionsList(*context, given->version.run_id); }; });

  CLI::App* publish = Add(versions, "publish", "Publish a policy version; within an epoch it must be newer than the last",
                          "  replayctl versions publish 120 --step 120 --uri file:///weights/step120.safetensors");
  publish->add_option("VERSION", given->version.version, "The version, e.g. the trainer's gradient step")->required();
  publish->add_option("--step", given->step, "Gradient step of these weights (default: VERSION)");
  publish->add_option("--label", given->version.label, "A name for people");
  publish->add_option("--uri", given->version.uri, "Where the weights are");
  publish->add_option("--run", given->version.run_id, "Run the version belongs to");
  publish->add_option("--epoch", given->version.epoch, "Epoch of the run: raised when a trainer restarts from an older step");
  publish->callback([=] {
    context->run = [=] {
      PolicyVersion version = given->version;
      version.step = given->step.value_or(version.version);
      return RunVersionsPublish(*context, version);
    };
  });

  CLI::App* wait = Add(versions, "wait", "Wait for a version newer than --after (default: for any), at most --timeout",
                       "  replayctl versions wait --after 120 --timeout 10m --json | jq -r .uri");
  wait->add_option("--after", given->after, "Version already known");
  wait->add_option("--run", given->version.run_id, "Run to watch");
  wait->add_option("--epoch", given->version.epoch, "Epoch of --after");
  wait->callback([=] { context->run = [=] { return RunVersionsWait(*context, given->version, given->after); }; });
}

}  // namespace

void AddAdminCommands(CLI::App* app, Context* context) {
  struct Arguments {
    std::string buffer;
    milliseconds interval{0};
    bool breakdown = false;
  };
  const auto given = std::make_shared<Arguments>();

  CLI::App* ping =
      Add(app, "ping", "Ask the server for a sign of life", "  replayctl ping --server unix:/run/replayd/replayd.sock");
  ping->callback([=] { context->run = [=] { return RunPing(*context); }; });

  CLI::App* stats = Add(app, "stats", "What a buffer (default: every buffer) holds and how it is used",
                        "  replayctl stats\n"
                        "  replayctl stats rollouts --interval 1\n"
                        "  replayctl stats rollouts --breakdown\n"
                        "  replayctl stats rollouts --json | jq .buffers[0].replay_ratio");
  stats->add_option("BUFFER", given->buffer, "Only of this buffer");
  AddDuration(stats, "-i,--interval", &given->interval, "Show again and again, with rates over the interval, until Ctrl-C")
      ->default_str("once");
  stats->add_flag("--breakdown", given->breakdown, "Also by source, by length, and what was removed by its draws");
  stats->callback([=] { context->run = [=] { return RunStats(*context, given->buffer, given->interval, given->breakdown); }; });

  CLI::App* waiters = Add(app, "waiters", "Who waits: for what, why and how long",
                          "  replayctl waiters\n  replayctl waiters rollouts --json | jq -r .reason | sort | uniq -c");
  waiters->add_option("BUFFER", given->buffer, "Only in this buffer");
  waiters->callback([=] { context->run = [=] { return RunWaiters(*context, given->buffer); }; });

  AddBufferCommands(app, context);
  AddVersionsCommands(app, context);
}

}  // namespace replay::cli
