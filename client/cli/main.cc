// replayctl: replayd from the command line. main describes the options, lets CLI11 choose the command, and runs it.

#include <CLI/CLI.hpp>

#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <map>
#include <sstream>
#include <utility>
#include <vector>

#include "client/cli/command.h"
#include "client/cli/format.h"
#include "schema/names.h"
#include "schema/wire.h"

namespace replay::cli {
namespace {

constexpr const char* kFooter = R"(Examples:
  replayctl ping
  replayctl buffer create rollouts --capacity-items 2268 --policy positive_bias --delta 0.25
  replayctl import rollouts trajectories.jsonl
  replayctl sample rollouts -n 4
  replayctl stats rollouts --interval 1
  replayctl waiters                                 who waits, for what, how long

"replayctl COMMAND --help" has examples of each. Global options may stand before or after the command.

Exit status: 0 done, 1 failed, 64 wrong usage, 65 wrong input data, 69 the server is not reachable, 70 a bug,
74 a file or output could not be read or written, 76 the server speaks another protocol.)";

// "12.5ki" -> 12.5, "ki". False: no number, or one below zero.
bool SplitNumber(const std::string& text, double* number, std::string* unit) {
  char* end = nullptr;
  if (text.empty() || !(std::isdigit(static_cast<unsigned char>(text[0])) || text[0] == '.')) return false;
  *number = std::strtod(text.c_str(), &end);
  *unit = end;
  return end != text.c_str() && std::isfinite(*number);
}

void PointToGlobalOptions(CLI::App* command) {
  command->footer(command->get_footer() + "\n\n--server, --timeout and --json: see replayctl --help");
  for (CLI::App* child : command->get_subcommands({})) PointToGlobalOptions(child);
}

int WrongUsage(const CLI::App& app, std::string what) {
  const CLI::App* command = &app;
  std::string name = "replayctl";
  while (!command->get_subcommands().empty()) {
    command = command->get_subcommands().front();
    name += " " + command->get_name();
  }
  // CLI11 misses the command before it looks at the word in its place.
  const std::vector<std::string> left = app.remaining(true);
  const bool needs_command = !command->get_subcommands([](const CLI::App*) { return true; }).empty();
  if (needs_command && !left.empty())
    what =
        (left.front().starts_with("-") ? "there is no option \"" : "there is no command \"") + Printable(left.front()) + "\"";
  std::cerr << "replayctl: " << what << "\nRun " << name << " --help.\n";
  return kUsage;
}

int Main(int argument_count, char** arguments) {
  signal(SIGPIPE, SIG_IGN);  // A closed stdout is an error of Print, a closed socket one of the client.
  Context context;
  const char* no_colour = std::getenv("NO_COLOR");
  context.colour = isatty(STDOUT_FILENO) == 1 && !(no_colour && *no_colour);

  CLI::App app("replayctl looks into and operates a replayd replay buffer server.", "replayctl");
  app.footer(kFooter);
  app.set_help_flag("-h,--help", "Print this help and exit");
  app.set_version_flag("--version", "replayctl " REPLAY_VERSION, "Print the version and exit");
  app.add_option("--server", context.server, "Address of the server: HOST:PORT or unix:PATH")
      ->type_name("ADDRESS")
      ->check([](const std::string& text) {
        Address address;
        return ParseAddress(text, &address);
      })
      ->envname("REPLAYCTL_SERVER")
      ->capture_default_str();
  AddDuration(&app, "--timeout", &context.timeout, "Longest wait, e.g. for pacing; 0 means now. Seconds, or with ms, s, m");
  app.add_flag("--json", context.json, "Print JSON, one object a line, with stable keys");
  app.require_subcommand(1);
  app.fallthrough();
  app.get_formatter()->column_width(34);
  AddAdminCommands(&app, &context);
  AddDataCommands(&app, &context);
  AddGroupCommands(&app, &context);
  AddHistoryCommand(&app, &context);
  AddBenchCommand(&app, &context);
  for (CLI::App* command : app.get_subcommands({})) PointToGlobalOptions(command);

  try {
    app.parse(argument_count, arguments);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error, std::cout, std::cerr);  // --help, --version
    return WrongUsage(app, error.what());
  }

  try {
    const int exit_code = context.run();
    FlushOutput();
    return exit_code;
  } catch (const OutputError& error) {
    if (error.error_number == EPIPE) return kBrokenPipe;  // The reader, e.g. head, has seen enough.
    Say("cannot write " + error.path + ": " + std::strerror(error.error_number));
    return kIo;
  } catch (const std::exception& exception) {
    Say(std::string("internal error: ") + exception.what());
    return kInternal;
  }
}

}  // namespace

bool ParseDuration(const std::string& text, milliseconds* duration) {
  static const std::map<std::string, double> factors = {{"", 1e3},   {"ms", 1},     {"s", 1e3},
                                                        {"m", 60e3}, {"min", 60e3}, {"h", 3600e3}};
  double number = 0;
  std::string unit;
  if (!SplitNumber(text, &number, &unit) || !factors.contains(unit)) return false;
  const double ms = std::ceil(number * factors.at(unit));
  if (ms > 4'000'000'000) return false;  // 32 bits on the wire
  *duration = milliseconds(static_cast<int64_t>(ms));
  return true;
}

bool ParseBytes(const std::string& text, uint64_t* bytes) {
  static const std::map<std::string, double> factors = {
      {"", 1},      {"B", 1},        {"kB", 1e3},     {"KB", 1e3},     {"MB", 1e6},     {"GB", 1e9},
      {"TB", 1e12}, {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40},
  };
  double number = 0;
  std::string unit;
  if (!SplitNumber(text, &number, &unit) || !factors.contains(unit)) return false;
  number *= factors.at(unit);
  if (number > 0x1p60 || number != std::floor(number)) return false;
  *bytes = static_cast<uint64_t>(number);
  return true;
}

bool ParseView(const std::string& text, ViewOptions* view) {
  const size_t colon = text.find(':'), bar = text.find('|');
  if (colon == std::string::npos || (bar != std::string::npos && bar < colon)) return false;
  const auto trim = [](std::string part) {
    part.erase(0, std::min(part.find_first_not_of(' '), part.size()));
    part.erase(part.find_last_not_of(' ') + 1);
    return part;
  };
  *view = {};
  view->name = trim(text.substr(0, colon));
  view->filter = trim(text.substr(colon + 1, bar == std::string::npos ? bar : bar - colon - 1));
  if (bar == std::string::npos) return true;
  std::istringstream words(text.substr(bar + 1));
  if (!(words >> view->selector)) return false;
  for (std::string word; words >> word;) {
    double number = 0;
    std::string unit;
    const size_t equals = word.find('=');
    if (equals == std::string::npos || !SplitNumber(word.substr(equals + 1), &number, &unit) || !unit.empty()) return false;
    const std::string name = word.substr(0, equals);
    if (name != "priority_exponent" && name != "staleness_decay") return false;
    (name == "priority_exponent" ? view->priority_exponent : view->staleness_decay) = number;
  }
  return true;
}

bool ParsePart(const std::string& text, SamplePart* part) {
  *part = {};
  std::istringstream fields(text);
  std::string field;
  if (!std::getline(fields, field, ',')) return false;
  const size_t colon = field.find(':');
  const std::string count = field.substr(0, colon);
  const auto [end, error] = std::from_chars(count.data(), count.data() + count.size(), part->count);
  if (error != std::errc() || end != count.data() + count.size()) return false;
  if (colon != std::string::npos) {
    const size_t slash = field.find('/', colon);  // neither name has one
    if (slash != std::string::npos) part->buffer = field.substr(colon + 1, slash - colon - 1);
    part->view = field.substr((slash == std::string::npos ? colon : slash) + 1);
    if (slash != std::string::npos && part->buffer.empty()) return false;
  }
  while (std::getline(fields, field, ',')) {
    constexpr std::string_view kMaxStaleness = "max_staleness=", kMinStaleness = "min_staleness=";
    static_assert(kMaxStaleness.size() == kMinStaleness.size());
    if (field == "or_next") {
      part->or_next = true;
    } else if (field.starts_with(kMaxStaleness) || field.starts_with(kMinStaleness)) {
      int64_t steps = 0;
      const char* const begin = field.data() + kMaxStaleness.size();
      const char* const stop = field.data() + field.size();
      const auto read = std::from_chars(begin, stop, steps);
      if (read.ec != std::errc() || read.ptr != stop) return false;
      if (field.starts_with(kMaxStaleness))
        part->max_staleness = steps;
      else
        part->min_staleness = steps;
    } else {
      return false;
    }
  }
  return true;
}

CLI::Option* AddDuration(CLI::App* app, const std::string& name, milliseconds* duration, const std::string& description) {
  const auto read = [name, duration](const std::string& text) {
    if (!ParseDuration(text, duration))
      throw CLI::ValidationError(name, "\"" + text + "\" is not a duration, e.g. 5, 2.5s, 250ms, 2m");
  };
  const std::string shown = Format("%gs", static_cast<double>(duration->count()) / 1e3);
  return app->add_option_function<std::string>(name, read, description)->type_name("DURATION")->default_str(shown);
}

CLI::Option* AddBytes(CLI::App* app, const std::string& name, std::optional<uint64_t>* bytes, const std::string& description) {
  const auto read = [name, bytes](const std::string& text) {
    uint64_t number = 0;
    if (!ParseBytes(text, &number)) throw CLI::ValidationError(name, "\"" + text + "\" is not a size, e.g. 4096, 64MiB, 1GB");
    *bytes = number;
  };
  return app->add_option_function<std::string>(name, read, description)->type_name("SIZE");
}

void AddBufferOptions(CLI::App* app, BufferOptions* o, const std::string& group) {
  const auto add = [&](const char* name, auto* option, const char* type, const char* description) {
    return app->add_option(name, *option, description)->type_name(type)->group(group);
  };
  const auto add_switch = [&](const std::string& name, std::optional<bool>* option, const std::string& description) {
    app->add_flag_function(
           "--" + name + ",!--no-" + name, [option](int64_t count) { *option = count > 0; }, description)
        ->group(group);
  };
  // CLI11 reads "-1" into an unsigned 64-bit number as 2^64 - 1.
  const CLI::Validator not_negative([](std::string& text) { return text.starts_with('-') ? "must not be negative" : ""; }, "");
  const auto one_of = [](std::vector<std::string> names) { return CLI::IsMember(std::move(names)).description(""); };
  add("--capacity-items", &o->capacity_items, "N", "Trajectories it holds (the paper's N)")->check(not_negative);
  AddBytes(app, "--capacity-bytes", &o->capacity_bytes,
           "Bytes of trajectories it holds, e.g. 64MiB; the older ones leave first")
      ->group(group);
  add("--policy", &o->policy, "NAME", "Preset of retention and selector: uniform | positive_bias")
      ->check(one_of({"uniform", "positive_bias"}));
  add("--retention", &o->retention, "NAME", "Who stays: fifo | positive_bias | best")
      ->check(one_of({kRetentionNames.begin(), kRetentionNames.end()}));
  add("--delta", &o->delta, "DECIMAL",
      "Share of the capacity kept for older items, in [0,1): positive_bias for correct ones, best for the highest rewards");
  add("--selector", &o->selector, "NAME", ("Who is drawn: " + JoinNames(kSelectorNames, " | ")).c_str())
      ->check(one_of({kSelectorNames.begin(), kSelectorNames.end()}));
  add("--priority-exponent", &o->priority_exponent, "X", "prioritized: a draw's weight is priority^X (default 1)");
  add("--staleness-decay", &o->staleness_decay, "STEPS", "prioritized, recency: times exp(-staleness / STEPS); 0: not");
  const auto add_duration = [&](const std::string& name, std::optional<milliseconds>* option, const std::string& description) {
    const auto read = [name, option](const std::string& text) {
      milliseconds duration{};
      if (!ParseDuration(text, &duration))
        throw CLI::ValidationError(name, "\"" + text + "\" is not a duration such as 90s or 30m");
      *option = duration;
    };
    app->add_option_function<std::string>(name, read, description)->type_name("DURATION")->group(group);
  };
  add("--unit", &o->unit, "NAME", "What is retained and drawn as one: trajectory | group (at creation)")
      ->check(one_of({kUnitNames.begin(), kUnitNames.end()}));
  add_duration("--max-age", &o->max_age, "Evict items once this old; 0: never. Seconds, or with ms, s, m");
  add_duration("--lease", &o->lease, "Hold what is drawn until it is acknowledged, so long at most; 0: do not");
  add_switch("closed", &o->closed, "Refuse inserts, and tell samples that would wait for one");
  add("--zero-spread", &o->zero_spread, "NAME", "Groups whose members all have one reward: keep | refuse")
      ->check(one_of({kZeroSpreadNames.begin(), kZeroSpreadNames.end()}));
  add("--parts", &o->parts, "T", "Parts of the buffer, one for each rank, which draws from its own");
  add("--prompt-history", &o->prompt_history, "N", "Prompts whose outcomes are remembered; 0: none");
  add("--level", &o->level, "NAME",
      "What inserts survive once answered: memory (nothing) | process (kill -9) | disk (power loss)")
      ->check(one_of({kLevelNames.begin(), kLevelNames.end()}));
  add("--evict-staleness", &o->evict_staleness, "STEPS", "Evict items once staler than this; -1: never");
  add("--max-staleness", &o->max_staleness, "STEPS", "Items staler than this are not drawn; -1: any are");
  add("--max-draws", &o->max_draws, "N", "Remove an item once drawn this often; 0: never");
  add("--correct-threshold", &o->correct_threshold, "REWARD",
      "A reward from here on is correct where the producer did not say");
  add("--replay-ratio", &o->replay_ratio, "Y", "Target draws per insert; 0: no pacing")->check(not_negative);
  add("--tolerance", &o->tolerance, "N", "How far draws and inserts may run apart")->check(not_negative);
  add("--min-size", &o->min_size, "N", "No draw before this many items are live")->check(not_negative);
  add("--max-draws-per-sample", &o->max_draws_per_sample, "N", "Largest sample; needed for pacing");
  add("--max-insert", &o->max_insert, "N", "Largest insert, in trajectories; needed for pacing");
  add_switch("pace-draws", &o->pace_draws, "Whether draws wait for inserts (default: yes, with --replay-ratio)");
  add_switch("pace-inserts", &o->pace_inserts, "Whether inserts wait for draws (default: yes, with --replay-ratio)");
  app->add_option_function<std::vector<std::string>>(
         "--view",
         [o](const std::vector<std::string>& texts) {
           o->views.emplace();
           for (const std::string& text : texts) {
             if (text == "none" && texts.size() == 1) return;
             if (!ParseView(text, &o->views->emplace_back()))
               throw CLI::ValidationError(
                   "--view", "\"" + text + "\" is not \"NAME: FILTER\" or \"NAME: FILTER | SELECTOR [priority_exponent=X] " +
                                 "[staleness_decay=STEPS]\"");
           }
         },
         "Items to draw from by themselves, e.g. \"positives: correct = yes, draws < 4\", \"hard: reward < 0.5, source = gsm8k "
         "| "
         "uniform_distinct\". Terms: correct reward priority draws tokens source zero_spread success attempts tag.NAME. Once "
         "for each; none: "
         "without")
      ->type_name("VIEW")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->group(group);
  add("--seed", &o->seed, "N", "Seed of the draws (default: random)")->check(not_negative);
}

}  // namespace replay::cli

int main(int argument_count, char** arguments) { return replay::cli::Main(argument_count, arguments); }
