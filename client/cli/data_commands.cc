// import (insert), sample, get, delete, export: trajectories in and out.

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <utility>

#include "client/cli/beside_view.h"
#include "client/cli/command.h"
#include "client/cli/format.h"
#include "client/cli/importer.h"
#include "client/cli/json.h"
#include "client/cli/progress.h"

namespace replay::cli {
namespace {

constexpr size_t kIdsPerRequest = 256;    // The server takes 512.
constexpr uint32_t kItemsPerPage = 1024;  // The server ends a page earlier by its bytes.

constexpr const char* kFormatHelp = R"(Format: JSON Lines, one trajectory a line, L = number of tokens:
  {"trajectory_id":"p7-2", "group_id":"p7", "group_size":4, "index_in_group":2,
   "token_ids":[1,15,9,204,2], "prompt_length":2, "loss_mask":[0,0,1,1,1],        [L], both are needed
   "behaviour_logprobs":[null,null,-0.1,-2.3,-0.7],          [L] or []; null: NaN, not generated
   "version_segments":[[2,5,12]],                            [begin, end, policy version]
   "segments":[[0,2,"user",false],[2,5,"assistant",true]],   [begin, end, role, trainable]; roles: system user
                                                             assistant tool
   "reward":1.0, "named_rewards":{"format":0.5}, "correct":"yes", "advantage":null, "status":"completed",
   "tags":{"level":3,"topic":"algebra"}, "run_id":"", "epoch":0, "rollout_id":"", "part_index":0, "part_count":0,
   "source":"gsm8k", "dataset_index":17, "temperature":1.0, "created_at_unix_ns":0, "opaque_base64":"",
   "priority":1.0,                                           at first, for selector prioritized: 0 (never drawn) to 1e9
   "columns":{"ref_logprobs":{"type":"f32","alignment":"token","shape":[5],"values":[0.0,0.0,-0.1,-2.3,-0.7]}}}
  correct: "yes" | "no" | "unknown", or true | false | null. advantage: null, a number, or a list [L].
  status: completed truncated_length truncated_turns aborted failed_parse failed_timeout failed_environment.
  Floats have as many digits as give the same 32-bit float back; "Infinity", "-Infinity", and the bits of an unusual
  NaN as "0x7fc00001", are strings. A tag is an integer without ".", a real with "." or "e". Unknown and repeated keys
  are errors.
  A column's values are one list, row by row, true and false of type bool; or, in their place, "base64" of their bytes,
  little-endian, as of f16 and bf16 always. type: bool u8 i8 u16 i16 i32 i64 f16 bf16 f32 f64. alignment: "token" (if
  missing; shape begins with L), "row" (any shape), "ragged" (with "offsets" [L + 1] into the first dimension). shape: if
  missing, one dimension of all values.)";

// {"item":7,...,"trajectory":{...}}, without taking the trajectory's text through a parser.
void PrintWithTrajectory(const Json& about, const Trajectory& trajectory) {
  std::string line = about.dump();
  line.back() = ',';
  line += "\"trajectory\":";
  AppendJson(trajectory, &line);
  Print(line + "}\n");
}

// --- sample, get, delete ---------------------------------------------------------------------------------------------------

std::string Shown(float number) { return Format("%g", static_cast<double>(number)); }

int RunSample(const Context& context, const std::string& buffer, const SampleOptions& options, bool acknowledge) {
  Client client(context.client_options());
  const Result<Batch> batch = client.Sample(buffer, options, context.timeout);
  if (!batch) return Fail(context, batch.error());
  Table table({">SLOT", ">ITEM", "TRAJECTORY", "GROUP", ">TOKENS", ">REWARD", "CORRECT", ">STALENESS", ">DRAWS", ">LAST USE",
               ">PROBABILITY", options.columns.empty() ? "" : "COLUMNS"});
  for (size_t slot = 0; slot < batch->draws.size(); ++slot) {
    const Draw& draw = batch->draws[slot];
    const TrajectoryView& view = batch->trajectory(draw);
    const bool is_first_use = draw.steps_since_last_use < 0;
    if (context.json) {
      PrintWithTrajectory({{"slot", slot},
                           {"item", draw.item},
                           {"draw_count", draw.draw_count},
                           {"reward", draw.reward},
                           {"revision", draw.revision},
                           {"advantage", draw.advantage ? Json(*draw.advantage) : Json(nullptr)},
                           {"probability", draw.probability},
                           {"importance_weight", batch->importance_weight(draw)},
                           {"staleness", draw.staleness},
                           {"steps_since_last_use", is_first_use ? Json(nullptr) : Json(draw.steps_since_last_use)},
                           {"step", batch->step},
                           {"part", draw.part},
                           {"planned", batch->planned},
                           {"lease", batch->lease},
                           {"columns", JsonOf(view.columns())}},
                          view.ToTrajectory());
    } else {
      table.Add({std::to_string(slot), std::to_string(draw.item), Printable(view.trajectory_id(), 40),
                 Printable(view.group_id(), 24), Count(view.token_ids().size()), Shown(view.reward()),
                 std::string(ToString(view.correct())), std::to_string(draw.staleness), std::to_string(draw.draw_count),
                 is_first_use ? "-" : std::to_string(draw.steps_since_last_use), Format("%.4g", draw.probability),
                 TextOf(view, options.columns)});
    }
  }
  if (batch->lease != 0 && acknowledge)
    if (const Result<uint32_t> ended = client.Acknowledge(buffer, batch->lease); !ended) return Fail(context, ended.error());
  if (context.json) return kOk;
  Print(table.ToString());
  Print("for step " + std::to_string(batch->step) + (batch->planned ? ", as drawn before" : "") +
        (batch->withheld ? ", " + Count(batch->withheld) + " items withheld as too new" : "") +
        (batch->lease == 0 ? ""
         : acknowledge     ? ", acknowledged"
                           : ", given back now (--acknowledge: used)") +
        "\n");
  return kOk;
}

std::string Description(const StoredTrajectory& stored) {
  constexpr size_t kTokensShown = 16;
  const Trajectory t = stored.trajectory.ToTrajectory();
  std::string text = Printable(t.trajectory_id, 128) + "\n";
  const auto line = [&text](const char* name, const std::string& value) { text += Format("  %-18s ", name) + value + "\n"; };
  line("item", std::to_string(stored.item) + ", drawn " + Count(stored.draw_count) + " times, " +
                   Bytes(uint64_t{stored.trajectory.frame_bytes().size()}));
  if (!t.group_id.empty()) line("group", Printable(t.group_id) + Format(", member %u of %u", t.index_in_group, t.group_size));
  if (!t.run_id.empty() || t.epoch != 0) line("run", Printable(t.run_id) + ", epoch " + std::to_string(t.epoch));
  std::string tokens = Count(t.token_ids.size()) + ", prompt " + Count(t.prompt_length) + ":";
  for (size_t i = 0; i < std::min(kTokensShown, t.token_ids.size()); ++i) tokens += " " + std::to_string(t.token_ids[i]);
  line("tokens", tokens + (t.token_ids.size() > kTokensShown ? " ..." : ""));
  line("trained tokens", Count(static_cast<uint64_t>(std::count(t.loss_mask.begin(), t.loss_mask.end(), 1))));
  std::string versions;
  for (const VersionSegment& s : t.version_segments)
    versions += (versions.empty() ? "" : ", ") + std::to_string(s.version) + Format(" of tokens %u to %u", s.begin, s.end);
  if (!versions.empty()) line("versions", versions);
  line("reward", Shown(t.reward) + ", correct " + std::string(ToString(t.correct)) + ", " + std::string(ToString(t.status)));
  if (!t.source.empty()) line("source", Printable(t.source) + " " + std::to_string(t.dataset_index));
  if (!t.tags.empty()) line("tags", Count(t.tags.size()) + " (see --json)");
  if (stored.revision > 0)
    line("updated", Count(stored.revision) + " times, reward " + Shown(stored.reward) +
                        (stored.late_tags.empty() ? "" : ", " + Count(stored.late_tags.size()) + " tags (see --json)"));
  for (const ColumnView& column : stored.trajectory.columns())
    line("column", std::string(column.name()) + " " + TextOf(column));
  return text;
}

int RunGet(const Context& context, const std::string& buffer, const std::vector<std::string>& ids,
           const std::vector<std::string>& columns) {
  Client client(context.client_options());
  uint64_t found = 0;
  for (size_t begin = 0; begin < ids.size(); begin += kIdsPerRequest) {
    const std::span<const std::string> part = std::span(ids).subspan(begin, std::min(kIdsPerRequest, ids.size() - begin));
    const Result<std::vector<StoredTrajectory>> stored = client.Get(buffer, part, columns);
    if (!stored) return Fail(context, stored.error());
    found += stored->size();
    for (const StoredTrajectory& one : *stored) {
      if (context.json) {
        PrintWithTrajectory({{"item", one.item},
                             {"draw_count", one.draw_count},
                             {"reward", one.reward},
                             {"revision", one.revision},
                             {"late_tags", JsonOf(one.late_tags)},
                             {"columns", JsonOf(one.trajectory.columns())}},
                            one.trajectory.ToTrajectory());
      } else {
        Print(Description(one));
      }
    }
  }
  if (found == ids.size()) return kOk;
  return Fail(context, {.code = ErrorCode::kNotFound,
                        .message = std::to_string(ids.size() - found) + " of " + std::to_string(ids.size()) +
                                   " ids are not in buffer \"" + buffer + "\""});
}

int RunDelete(const Context& context, const std::string& buffer, const std::vector<std::string>& ids) {
  Client client(context.client_options());
  uint64_t deleted = 0;
  for (size_t begin = 0; begin < ids.size(); begin += kIdsPerRequest) {
    const Result<uint32_t> count =
        client.Delete(buffer, std::span(ids).subspan(begin, std::min(kIdsPerRequest, ids.size() - begin)));
    if (!count) return Fail(context, count.error());
    deleted += *count;
  }
  if (context.json) {
    PrintJson({{"deleted", deleted}, {"requested", ids.size()}});
  } else {
    Print("deleted " + Count(deleted) + " of " + Count(ids.size()) + "\n");
  }
  return deleted == ids.size() ? kOk : kFailed;
}

// --- export ----------------------------------------------------------------------------------------------------------------

// Where an export goes: standard output, or a file that appears under its name only when it is complete.
class Output {
 public:
  explicit Output(const std::string& path) : path_(path), partial_(path + ".partial"), file_(stdout) {
    if (is_stdout()) return;
    file_ = std::fopen(partial_.c_str(), "we");
    if (!file_) Refuse();
  }
  ~Output() {
    if (is_stdout()) return;
    if (file_) std::fclose(file_);
    if (!kept_) std::remove(partial_.c_str());
  }
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;
  bool is_stdout() const { return path_ == "-"; }
  void Write(std::string_view text) {
    if (std::fwrite(text.data(), 1, text.size(), file_) != text.size()) Refuse();
  }
  void Keep() {
    if (is_stdout()) return FlushOutput();
    if (std::fflush(file_) != 0 || fsync(fileno(file_)) != 0) Refuse();
    if (std::fclose(std::exchange(file_, nullptr)) != 0 || std::rename(partial_.c_str(), path_.c_str()) != 0) Refuse();
    kept_ = true;
  }

 private:
  [[noreturn]] void Refuse() const {
    throw OutputError{.error_number = errno, .path = is_stdout() ? "standard output" : path_};
  }

  const std::string path_, partial_;
  std::FILE* file_;
  bool kept_ = false;
};

int RunExport(const Context& context, const std::string& buffer, const std::string& path,
              const std::vector<std::string>& columns) {
  Client client(context.client_options());
  const Result<ServerStats> stats = client.Stats(buffer);
  if (!stats) return Fail(context, stats.error());
  if (stats->buffers.size() != 1)
    return Fail(context, {.code = ErrorCode::kNotFound, .message = "there is no buffer \"" + buffer + "\""});
  // Insertion numbers count accepted items from 1. Stopping at today's last one, an export ends although others go on inserting.
  const uint64_t last = stats->buffers[0].accepted;
  Output output(path);
  const StopRequest stop;
  std::optional<Progress> progress;
  if (!output.is_stdout() || isatty(STDOUT_FILENO) != 1) progress.emplace("export", stats->buffers[0].items);

  uint64_t exported = 0, bytes = 0;
  std::string line;
  for (uint64_t after = 0; after < last && !stop.stopped();) {
    const Result<std::vector<StoredTrajectory>> page = client.Scan(buffer, after, kItemsPerPage, columns);
    if (!page) return Fail(context, page.error());
    if (page->empty()) break;
    for (const StoredTrajectory& stored : *page) {
      after = stored.item;
      if (stored.item > last) break;
      line.clear();
      AppendJson(stored.trajectory.ToTrajectory(), &line);
      line += '\n';
      output.Write(line);
      bytes += line.size();
      ++exported;
      if (progress) progress->Update(exported, exported);
    }
  }
  progress.reset();
  if (stop.stopped()) {
    Say("interrupted after " + Count(exported) + " trajectories");
    return kInterrupted;
  }
  output.Keep();
  if (context.json && !output.is_stdout())
    PrintJson({{"buffer", buffer}, {"file", path}, {"exported", exported}, {"bytes", bytes}});
  if (!context.json) Say("exported " + Count(exported) + " trajectories, " + Bytes(bytes));
  return kOk;
}

}  // namespace

void AddDataCommands(CLI::App* app, Context* context) {
  const auto add = [app](const std::string& name, const std::string& description, const std::string& footer) {
    CLI::App* command = app->add_subcommand(name, description);
    command->footer(footer);
    return command;
  };

  const auto import_arguments = std::make_shared<ImportArguments>();
  CLI::App* import_command =
      add("import", "Insert trajectories from JSON Lines",
          std::string("Consecutive lines of one group_id are inserted as one group, whole or not at all. The first wrong "
                      "line ends the\nimport; what stands before it is stored.\n\n") +
              kFormatHelp +
              "\n\nExamples:\n"
              "  replayctl import rollouts trajectories.jsonl\n"
              "  zcat trajectories.jsonl.gz | replayctl import rollouts -\n"
              "  replayctl export old | replayctl import new --create --capacity-items 5000\n"
              "  replayctl import rollouts trajectories.jsonl --skip-existing     go on after an interruption");
  import_command->alias("insert");
  import_command->add_option("BUFFER", import_arguments->buffer, "Name of the buffer")->required();
  import_command->add_option("FILE", import_arguments->path, "File to read; - is standard input")->capture_default_str();
  import_command->add_option("--batch", import_arguments->batch, "Trajectories a request; groups stay whole")
      ->check(CLI::Range(1, 8192))
      ->type_name("N")
      ->capture_default_str();
  import_command->add_flag("--skip-existing", import_arguments->skip_existing, "Leave out what the buffer already holds");
  import_command->add_flag("--create", import_arguments->create,
                           "Create the buffer if it does not exist, with the options below");
  AddBufferOptions(import_command, &import_arguments->options, "Buffer options, with --create");
  import_command->callback([=] { context->run = [=] { return Importer(*context, *import_arguments).Run(); }; });

  struct Arguments {
    std::string buffer, path = "-";
    std::vector<std::string> ids, columns;
    SampleOptions sample;
    bool acknowledge = false;
  };
  const auto given = std::make_shared<Arguments>();
  const auto add_columns = [](CLI::App* command, std::vector<std::string>* names) {
    command->add_option("--column", *names, "With this column, where a trajectory has it. Once for each")
        ->type_name("NAME")
        ->expected(1)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  };
  const auto add_buffer = [given](CLI::App* command) {
    command->add_option("BUFFER", given->buffer, "Name of the buffer")->required();
  };

  CLI::App* sample =
      add("sample", "Draw trajectories, as a trainer would (they count as draws)",
          "With --json a line for each slot: slot, item, draw_count, reward, revision, advantage (null: as in the "
          "trajectory),\nprobability, importance_weight (1 / (candidates * probability)), staleness, steps_since_last_use "
          "(null: first use),\nstep, part, planned, lease, columns, trajectory (as in import --help).\n\n"
          "Examples:\n"
          "  replayctl sample rollouts -n 4\n"
          "  replayctl sample rollouts -n 64 --step 120 --timeout 0 --json | jq .trajectory.reward\n"
          "  replayctl sample rollouts --part 16:positives,or_next --part 48\n"
          "  replayctl sample rollouts --part 48:,min_staleness=4,or_next --part 16:,max_staleness=3\n"
          "  replayctl sample rollouts --part 48 --part 16:frozen/");
  add_buffer(sample);
  sample->add_option("-n,--count", given->sample.count, "Draws")
      ->check(CLI::Range(1, 65'536))
      ->type_name("N")
      ->capture_default_str();
  sample->add_option("--step", given->sample.step, "Gradient step that will use them (default: the newest published)");
  sample->add_option("--max-staleness", given->sample.max_staleness, "Draw nothing staler than this, in gradient steps");
  sample->add_option("--view", given->sample.view, "Draw from this view of the buffer")->type_name("NAME");
  sample
      ->add_option_function<std::vector<std::string>>(
          "--part",
          [given](const std::vector<std::string>& texts) {
            for (const std::string& text : texts)
              if (!ParsePart(text, &given->sample.parts.emplace_back()))
                throw CLI::ValidationError(
                    "--part", "\"" + text +
                                  "\" is not COUNT[:[BUFFER/]VIEW][,max_staleness=STEPS][,min_staleness=STEPS][,or_next], "
                                  "e.g. 16:positives,or_next or 8:frozen/");
          },
          "A part of a composed batch, instead of -n and --view: "
          "COUNT[:[BUFFER/]VIEW][,max_staleness=STEPS][,min_staleness=STEPS][,or_next]; "
          "BUFFER/ alone is all of another buffer; with or_next the next part draws what is lacking. Once for each")
      ->type_name("PART")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  sample
      ->add_option("--consumer", given->sample.consumer,
                   "A batch that is the same when asked for again: one draw for all ranks of this name and --step")
      ->type_name("NAME");
  sample->add_flag("--acknowledge", given->acknowledge,
                   "Of a buffer with a lease: they are used; without, they are given back when this command ends");
  sample->add_option("--rank", given->sample.rank, "With --consumer, or of a buffer with parts: whose part of it")
      ->type_name("N")
      ->capture_default_str();
  sample->add_option("--world-size", given->sample.world_size, "Likewise: how many ranks share it")
      ->type_name("N")
      ->capture_default_str();
  add_columns(sample, &given->sample.columns);
  sample->callback(
      [=] { context->run = [=] { return RunSample(*context, given->buffer, given->sample, given->acknowledge); }; });

  CLI::App* get =
      add("get", "Look at trajectories by id (counts as no draw)",
          "With --json a line for each: item, draw_count, reward, revision and late_tags as updated, columns, trajectory\n"
          "(as in import --help).\n\n"
          "Examples:\n  replayctl get rollouts p7-2 p7-3\n  replayctl get rollouts p7-2 --json | jq .trajectory.token_ids");
  add_buffer(get);
  get->add_option("ID", given->ids, "Trajectory ids")->required();
  add_columns(get, &given->columns);
  get->callback([=] { context->run = [=] { return RunGet(*context, given->buffer, given->ids, given->columns); }; });

  CLI::App* remove = add("delete", "Remove trajectories by id", "Examples:\n  replayctl delete rollouts p7-2 p7-3");
  add_buffer(remove);
  remove->add_option("ID", given->ids, "Trajectory ids")->required();
  remove->callback([=] { context->run = [=] { return RunDelete(*context, given->buffer, given->ids); }; });

  AddUpdateCommand(app, context);

  CLI::App* export_command =
      add("export", "Write a buffer as JSON Lines, oldest first",
          "Every field as it was inserted, to the bit, and the columns that are named, as `import` reads it (see import "
          "--help).\nWhat is inserted meanwhile is left out.\n\nExamples:\n"
          "  replayctl export rollouts -o rollouts.jsonl\n"
          "  replayctl export rollouts --column ref_logprobs --column image -o rollouts.jsonl\n"
          "  replayctl export rollouts | gzip > rollouts.jsonl.gz");
  add_buffer(export_command);
  export_command->add_option("-o,--output", given->path, "File to write, once complete; - is standard output")
      ->type_name("FILE")
      ->capture_default_str();
  add_columns(export_command, &given->columns);
  export_command->callback(
      [=] { context->run = [=] { return RunExport(*context, given->buffer, given->path, given->columns); }; });
}

}  // namespace replay::cli
