#include "server/requests_archive.h"

#include <string>
#include <variant>

#include "server/frame_note.h"

namespace replay::server {

// Whoever adds a field to one of these adds it below as well, and counts up kArchiveFormat.
static_assert(sizeof(TrajectoryFacts) == 120 && sizeof(BufferOptions) == 256 && sizeof(ViewOptions) == 88 &&
                  sizeof(PolicyVersion) == 128 && sizeof(SamplePart) == 104 && sizeof(SampleRequest) == 200 &&
                  sizeof(DrawnItem) == 56 && sizeof(SampleResult) == 184 && sizeof(ItemUpdate) == 120 &&
                  sizeof(ReserveRequest) == 56 && sizeof(AcknowledgeRequest) == 40 && sizeof(CostReport) == 56 &&
                  sizeof(PromptOutcomes) == 40 && sizeof(StepWindow) == 32,
              "the functions below name every field");

void Persist(Archive& archive, FrameText& text) { archive(text.offset, text.size); }

void Persist(Archive& archive, TrajectoryFacts& facts) {
  archive(facts.id, facts.group, facts.run, facts.epoch, facts.min_version, facts.max_version, facts.token_count,
          facts.group_size, facts.index_in_group, facts.reward, facts.priority, facts.dataset_index, facts.correct,
          facts.has_tags, facts.column_count, facts.source);
}

void Persist(Archive& archive, NamedTag& tag) {
  auto kind = static_cast<uint8_t>(tag.value.index());
  archive(tag.name, kind);
  if (archive.loading()) {
    switch (kind) {
      case 0:
        tag.value = std::string();
        break;
      case 1:
        tag.value = int64_t{0};
        break;
      case 2:
        tag.value = 0.0;
        break;
      case 3:
        tag.value = false;
        break;
      default:
        return archive.Fail();
    }
  }
  std::visit([&archive](auto& value) { archive(value); }, tag.value);
}

void Persist(Archive& archive, Decimal& decimal) { archive(decimal.numerator, decimal.denominator); }

void Persist(Archive& archive, ViewOptions& options) {
  archive(options.name, options.filter, options.selector, options.priority_exponent, options.staleness_decay);
}

void Persist(Archive& archive, BufferOptions& options) {
  archive(options.unit, options.capacity_items, options.capacity_bytes, options.retention, options.delta, options.selector,
          options.priority_exponent, options.staleness_decay, options.max_staleness, options.max_draws, options.max_age_ms,
          options.evict_staleness, options.correct_threshold, options.views, options.closed, options.lease_ms,
          options.zero_spread, options.parts, options.prompt_history, options.level, options.replay_ratio, options.tolerance,
          options.tolerance_chosen, options.min_size, options.max_draws_per_sample, options.max_insert, options.pace_draws,
          options.pace_inserts, options.seed);
}

void Persist(Archive& archive, PolicyVersion& version) {
  archive(version.run_id, version.epoch, version.version, version.step, version.label, version.uri,
          version.published_at_unix_ns);
}

void Persist(Archive& archive, SamplePart& part) {
  archive(part.count, part.view, part.max_staleness, part.min_staleness, part.or_next, part.buffer);
}

void Persist(Archive& archive, SampleRequest& request) {
  archive(request.count, request.step, request.max_staleness, request.given_back, request.view, request.columns, request.parts,
          request.part_places, request.consumer, request.rank, request.world_size, request.holder);
}

void Persist(Archive& archive, DrawnItem& draw) {
  archive(draw.frame, draw.draw_count, draw.probability, draw.staleness, draw.steps_since_last_use, draw.item, draw.reward,
          draw.revision, draw.advantage);
}

void Persist(Archive& archive, SampleResult& result) {
  archive(result.draws, result.frames, result.columns, result.part_counts, result.candidates, result.unit_sizes, result.lease,
          result.step, result.withheld, result.payload_bytes, result.planned, result.given_back);
}

void Persist(Archive& archive, ItemUpdate& update) {
  archive(update.id, update.priority, update.reward, update.correct, update.revision, update.advantage, update.tags);
  update.columns.resize(archive.Count(update.columns.size()));
  for (Frame& column : update.columns) PersistColumn(archive, column);
}

void Persist(Archive& archive, ReserveRequest& request) {
  archive(request.group_id, request.action, request.size, request.lease_ms, request.deadline_ms, request.missing,
          request.batch);
}

void Persist(Archive& archive, AcknowledgeRequest& request) { archive(request.lease, request.items, request.give_back); }

void Persist(Archive& archive, CostReport& cost) {
  archive(cost.generation_seconds, cost.generated_trajectories, cost.generated_tokens, cost.training_seconds,
          cost.trained_draws, cost.trained_tokens, cost.workers, cost.trainers);
}

void Persist(Archive& archive, OutcomeCounts& counts) { archive(counts.correct, counts.incorrect); }

void Persist(Archive& archive, PromptOutcomes& outcomes) {
  archive(outcomes.dataset_index, outcomes.rollouts, outcomes.scored, outcomes.correct, outcomes.reward_sum);
}

void Persist(Archive& archive, StepWindow& window) { archive(window.step, window.max_staleness, window.min_staleness); }

}  // namespace replay::server
