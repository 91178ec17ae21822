// history: what became of the rollouts of each prompt.

#include <memory>
#include <utility>

#include "client/cli/command.h"
#include "client/cli/format.h"

namespace replay::cli {
namespace {

constexpr uint32_t kPromptsPerPage = 4096;  // as many as the server gives

struct Arguments {
  std::string buffer, source;
  int64_t after = -1;
  uint64_t limit = UINT64_MAX;
};

int RunHistory(const Context& context, const Arguments& given) {
  Client client(context.client_options());
  Table table({">INDEX", ">ROLLOUTS", ">SCORED", ">CORRECT", ">SUCCESS", ">MEAN REWARD"});
  uint64_t left = given.limit;
  int64_t after = given.after;
  for (bool more = true; more && left > 0;) {
    const auto limit = static_cast<uint32_t>(std::min<uint64_t>(left, kPromptsPerPage));
    const Result<HistoryPage> page = client.History(given.buffer, given.source, after, limit);
    if (!page) return Fail(context, page.error());
    for (const PromptOutcomes& prompt : page->prompts) {
      const auto share = [](double part, uint64_t whole) { return whole ? part / static_cast<double>(whole) : 0; };
      const double success = share(static_cast<double>(prompt.correct), prompt.scored);
      if (context.json) {
        PrintJson({{"dataset_index", prompt.dataset_index},
                   {"rollouts", prompt.rollouts},
                   {"scored", prompt.scored},
                   {"correct", prompt.correct},
                   {"success", prompt.scored ? Json(success) : Json(nullptr)},
                   {"reward_sum", prompt.reward_sum}});
      } else {
        table.Add({std::to_string(prompt.dataset_index), Count(prompt.rollouts), Count(prompt.scored), Count(prompt.correct),
                   prompt.scored ? Format("%.3f", success) : "-", Format("%.4g", share(prompt.reward_sum, prompt.rollouts))});
      }
      after = prompt.dataset_index;
    }
    left -= std::min<uint64_t>(left, page->prompts.size());
    more = page->more;
  }
  if (!context.json) Print(table.ToString());
  return kOk;
}

}  // namespace

void AddHistoryCommand(CLI::App* app, Context* context) {
  CLI::App* history = app->add_subcommand("history", "What became of the rollouts of each prompt");
  history->footer(
      "Of a buffer with --prompt-history: the prompts of one source (dataset_index of 0 or more), by index, also those whose\n"
      "rollouts have left the buffer. SUCCESS is CORRECT / SCORED. With --json a line for each: dataset_index, rollouts, "
      "scored,\n"
      "correct, success (null: nothing is scored), reward_sum.\n\n"
      "Examples:\n"
      "  replayctl history rollouts --source gsm8k --limit 20\n"
      "  replayctl history rollouts --source gsm8k --json | jq 'select(.success < 0.2) | .dataset_index'");
  const auto given = std::make_shared<Arguments>();
  history->add_option("BUFFER", given->buffer, "Name of the buffer")->required();
  history->add_option("--source", given->source, "Source of the prompts; trajectories without one have \"\"")
      ->type_name("NAME")
      ->required();
  history->add_option("--after", given->after, "Only those with a higher index")->type_name("INDEX");
  history->add_option("--limit", given->limit, "At most this many (default: all)")->type_name("N")->check(CLI::PositiveNumber);
  history->callback([=] { context->run = [=] { return RunHistory(*context, *given); }; });
}

}  // namespace replay::cli
