// reserve, admit, acknowledge: groups that come in member by member, how much may be generated, and what is held.

#include <map>
#include <memory>

#include "client/cli/command.h"
#include "client/cli/format.h"

namespace replay::cli {
namespace {

struct ReserveArguments {
  std::string buffer;
  Reservation reservation;
  std::string missing = "drop";
  bool commit = false, drop = false;
};

int RunReserve(const Context& context, const ReserveArguments& arguments) {
  Client client(context.client_options());
  const std::string& id = arguments.reservation.group_id;
  const Result<ReservedGroup> group = arguments.commit ? client.CommitGroup(arguments.buffer, id)
                                      : arguments.drop
                                          ? client.DropGroup(arguments.buffer, id)
                                          : client.ReserveGroup(arguments.buffer, arguments.reservation, context.timeout);
  if (!group) return Fail(context, group.error());
  if (context.json) {
    PrintJson({{"group_id", id}, {"present", group->present}, {"size", group->size}, {"first_item", group->first_item}});
    return kOk;
  }
  const std::string members = Count(group->present) + " of " + Count(group->size) + " members";
  Print((arguments.commit ? "committed with " + members + ", from item " + std::to_string(group->first_item)
         : arguments.drop ? "dropped with " + members
                          : "reserved, " + members + " are there") +
        "\n");
  return kOk;
}

int RunAdmit(const Context& context, const std::string& buffer, const AdmissionRequest& request) {
  Client client(context.client_options());
  const Result<Admission> admission = client.Admit(buffer, request, context.timeout);
  if (!admission) return Fail(context, admission.error());
  if (context.json)
    PrintJson({{"credits", admission->credits}, {"live", admission->live}, {"reserved", admission->reserved}});
  else
    Print(std::to_string(admission->credits) + " trajectories may be generated; " + Count(admission->live) + " are live, " +
          Count(admission->reserved) + " reserved\n");
  return kOk;
}

int RunAcknowledge(const Context& context, const std::string& buffer, uint64_t lease, const std::vector<uint64_t>& items,
                   bool give_back) {
  Client client(context.client_options());
  const Result<uint32_t> ended = client.Acknowledge(buffer, lease, items, give_back);
  if (!ended) return Fail(context, ended.error());
  if (context.json)
    PrintJson({{"lease", lease}, {"ended", *ended}});
  else
    Print("the lease of " + Count(*ended) + " trajectories has ended\n");
  return kOk;
}

}  // namespace

void AddGroupCommands(CLI::App* app, Context* context) {
  const auto reserve = std::make_shared<ReserveArguments>();
  CLI::App* reserve_command = app->add_subcommand("reserve", "Announce a group whose members arrive one by one");
  reserve_command->footer(
      "Its members are inserted as `partial` (the client library's InsertMembers) and become visible together, when the group "
      "is\n"
      "complete or committed. Reserving it again renews its lease, as each member does.\n\nExamples:\n"
      "  replayctl reserve rollouts p7 --size 8 --lease 30s --deadline 5m --missing release\n"
      "  replayctl reserve rollouts p7 --commit");
  reserve_command->add_option("BUFFER", reserve->buffer, "Name of the buffer")->required();
  reserve_command->add_option("GROUP", reserve->reservation.group_id, "Group id")->required();
  reserve_command->add_option("--size", reserve->reservation.size, "Members it will have")->type_name("N");
  AddDuration(reserve_command, "--lease", &reserve->reservation.lease, "How long it lives without a sign of work on it");
  AddDuration(reserve_command, "--deadline", &reserve->reservation.deadline, "When it must be complete");
  reserve_command
      ->add_option("--missing", reserve->missing,
                   "What becomes of it when one of these ends: drop | release (with the members that are there) | wait")
      ->check(CLI::IsMember({"drop", "release", "wait"}).description(""))
      ->capture_default_str();
  reserve_command->add_option("--batch", reserve->reservation.batch, "Wait for admission, as `admit` does with this batch")
      ->type_name("N");
  CLI::Option* commit = reserve_command->add_flag("--commit", reserve->commit, "Complete with the members that are there");
  reserve_command->add_flag("--drop", reserve->drop, "Give it up, and its members")->excludes(commit);
  reserve_command->callback([=] {
    reserve->reservation.missing = reserve->missing == "drop"      ? MissingMembers::kDrop
                                   : reserve->missing == "release" ? MissingMembers::kRelease
                                                                   : MissingMembers::kWait;
    context->run = [=] { return RunReserve(*context, *reserve); };
  });

  struct Arguments {
    std::string buffer;
    AdmissionRequest admission;
    uint64_t lease = 0;
    std::vector<uint64_t> items;
    bool give_back = false;
  };
  const auto given = std::make_shared<Arguments>();
  CLI::App* admit = app->add_subcommand("admit", "How many trajectories may be generated so that none gets too stale");
  admit->footer(
      "(max_staleness + 1) * batch - live - reserved.\n\nExamples:\n"
      "  replayctl admit rollouts --batch 256\n"
      "  replayctl admit rollouts --batch 256 --count 64 --timeout 10m     wait until 64 are admitted");
  admit->add_option("BUFFER", given->buffer, "Name of the buffer")->required();
  admit->add_option("--batch", given->admission.batch, "Trajectories that a gradient step uses")->type_name("N")->required();
  admit->add_option("--count", given->admission.count, "Wait until so many are admitted (default: only ask)")->type_name("N");
  admit->add_option("--max-staleness", given->admission.max_staleness, "Instead of the buffer's, in gradient steps")
      ->type_name("STEPS");
  admit->callback([=] { context->run = [=] { return RunAdmit(*context, given->buffer, given->admission); }; });

  CLI::App* acknowledge = app->add_subcommand("acknowledge", "End the lease of what was drawn");
  acknowledge->footer(
      "What was drawn from a buffer with a lease is held until this, the end of the lease, or the end of the connection that\n"
      "sampled. `sample --json` shows the lease.\n\nExamples:\n"
      "  replayctl acknowledge queue 17\n"
      "  replayctl acknowledge queue 17 --give-back");
  acknowledge->add_option("BUFFER", given->buffer, "Name of the buffer")->required();
  acknowledge->add_option("LEASE", given->lease, "Number of the lease")->required();
  acknowledge->add_option("ITEM", given->items, "Insertion numbers (default: all of the lease)");
  acknowledge->add_flag("--give-back", given->give_back, "It was not used: as if it had not been drawn");
  acknowledge->callback([=] {
    context->run = [=] { return RunAcknowledge(*context, given->buffer, given->lease, given->items, given->give_back); };
  });
}

}  // namespace replay::cli
