// update: what is known of trajectories later than their insert.

#include <algorithm>
#include <charconv>
#include <memory>
#include <utility>

#include "client/cli/column_json.h"
#include "client/cli/command.h"
#include "client/cli/format.h"
#include "client/cli/line_reader.h"

namespace replay::cli {
namespace {

constexpr size_t kIdsPerRequest = 256;  // The server takes 512.

// "level=3": an integer, "share=0.5": a real, "hard=true": a flag, anything else: text. False: there is no "=", or no name.
bool ParseTag(const std::string& text, std::pair<std::string, TagValue>* tag) {
  const size_t at = text.find('=');
  if (at == std::string::npos || at == 0) return false;
  tag->first = text.substr(0, at);
  const std::string value = text.substr(at + 1);
  const auto read = [&value](auto* number) {
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), *number);
    return error == std::errc() && end == value.data() + value.size();
  };
  int64_t integer = 0;
  double real = 0;
  if (value == "true" || value == "false")
    tag->second = value == "true";
  else if (read(&integer))
    tag->second = integer;
  else if (read(&real))
    tag->second = real;
  else
    tag->second = value;
  return true;
}

using ColumnFiles = std::vector<std::pair<std::string, std::string>>;  // name and path

// kOk, or the exit code of what has been told.
int ReadColumnFiles(const Context& context, const ColumnFiles& files, std::vector<Column>* columns) {
  for (const auto& [name, path] : files) {
    LineReader lines(path);
    std::string text;
    for (std::string_view line; lines.Next(&line);) text.append(line).append("\n");
    if (!lines.error().empty()) {
      Say(lines.error());
      return kIo;
    }
    Result<Column> column = ColumnFromJson(name, text);
    if (!column) return Fail(context, column.error(), path, kBadData);
    columns->push_back(std::move(*column));
  }
  return kOk;
}

int RunUpdate(const Context& context, const std::string& buffer, std::vector<std::string> ids, ItemUpdate update,
              const ColumnFiles& files) {
  if (const int failed = ReadColumnFiles(context, files, &update.columns); failed != kOk) return failed;
  std::vector<ItemUpdate> updates;
  for (std::string& id : ids) {
    update.trajectory_id = std::move(id);
    updates.push_back(update);
  }
  Client client(context.client_options());
  uint64_t updated = 0;
  for (size_t begin = 0; begin < updates.size(); begin += kIdsPerRequest) {
    const auto some = std::span(updates).subspan(begin, std::min(kIdsPerRequest, updates.size() - begin));
    const Result<std::vector<UpdateResult>> results = client.Update(buffer, some);
    if (!results) return Fail(context, results.error());
    for (size_t i = 0; i < results->size(); ++i) {
      const UpdateResult& result = (*results)[i];
      const bool done = result.outcome == UpdateResult::Outcome::kDone;
      const std::string what = done                                                 ? "updated"
                               : result.outcome == UpdateResult::Outcome::kNotThere ? "not there"
                                                                                    : "has another revision";
      updated += done;
      if (context.json)
        PrintJson({{"trajectory_id", some[i].trajectory_id}, {"outcome", what}, {"revision", result.revision}});
      else if (!done)
        Print(Printable(some[i].trajectory_id) + ": " + what + (result.revision > 0 ? ", " + Count(result.revision) : "") +
              "\n");
    }
  }
  if (!context.json) Print("updated " + Count(updated) + " of " + Count(updates.size()) + "\n");
  return updated == updates.size() ? kOk : kFailed;
}

}  // namespace

void AddUpdateCommand(CLI::App* app, Context* context) {
  struct Arguments {
    std::string buffer, correct;
    std::vector<std::string> ids;
    ItemUpdate update;
    ColumnFiles columns;
  };
  const auto given = std::make_shared<Arguments>();
  CLI::App* update =
      app->add_subcommand("update", "Write what is known later: priority, reward, correctness, advantage, tags, columns");
  update->footer(
      "The trajectory itself does not change; draws tell the new reward and advantage, and the item's revision, which counts\n"
      "updates. With --json a line for each id: trajectory_id, outcome, revision. A column's file has one JSON object, as the\n"
      "columns of import --help, e.g. {\"type\":\"f32\",\"values\":[0.0,0.0,-0.1,-2.3,-0.7]}, one for each token.\n\n"
      "Examples:\n"
      "  replayctl update rollouts p7-2 p7-3 --priority 0.5\n"
      "  replayctl update rollouts p7-2 --reward 1 --correct yes --revision 0\n"
      "  replayctl update rollouts p7-2 --advantage -0.25 --tag level=3 --tag topic=algebra\n"
      "  replayctl update rollouts p7-2 --column ref_logprobs=p7-2.json");
  update->add_option("BUFFER", given->buffer, "Name of the buffer")->required();
  update->add_option("ID", given->ids, "Trajectory ids")->required();
  update->add_option("--priority", given->update.priority, "For the selector prioritized: 0 (never drawn) to 1e9");
  update->add_option("--reward", given->update.reward, "Decides about correctness anew where nobody said it");
  update->add_option("--correct", given->correct, "yes | no | unknown")
      ->check(CLI::IsMember({"yes", "no", "unknown"}).description(""));
  update->add_option("--advantage", given->update.advantage, "In place of the trajectory's, one for all tokens");
  update
      ->add_option_function<std::vector<std::string>>(
          "--tag",
          [given](const std::vector<std::string>& texts) {
            for (const std::string& text : texts)
              if (!ParseTag(text, &given->update.tags.emplace_back()))
                throw CLI::ValidationError("--tag", "\"" + text + "\" is not NAME=VALUE, e.g. level=3");
          },
          "In place of the tag of that name: NAME=VALUE, the value being an integer, a real, true or false, or text. Once for "
          "each")
      ->type_name("TAG")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  update
      ->add_option_function<std::vector<std::string>>(
          "--column",
          [given](const std::vector<std::string>& texts) {
            for (const std::string& text : texts) {
              const size_t at = text.find('=');
              if (at == std::string::npos || at == 0 || at + 1 == text.size())
                throw CLI::ValidationError("--column", "\"" + text + "\" is not NAME=FILE, e.g. ref_logprobs=p7-2.json");
              given->columns.emplace_back(text.substr(0, at), text.substr(at + 1));
            }
          },
          "Of one trajectory, in place of its column of that name: NAME=FILE; - is standard input. Once for each")
      ->type_name("NAME=FILE")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  update->add_option("--revision", given->update.revision, "Only if the item has this revision");
  update->callback([=] {
    if (!given->correct.empty())
      given->update.correct = given->correct == "yes"  ? Correctness::kYes
                              : given->correct == "no" ? Correctness::kNo
                                                       : Correctness::kUnknown;
    if (!given->columns.empty() && given->ids.size() > 1)
      throw CLI::ValidationError("--column",
                                 "there are " + std::to_string(given->ids.size()) + " ids: a column belongs to one trajectory");
    context->run = [=] { return RunUpdate(*context, given->buffer, given->ids, given->update, given->columns); };
  });
}

}  // namespace replay::cli
