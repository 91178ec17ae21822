// The oracles of "Efficient RL Training for LLMs with Experience Replay" (arXiv 2604.08706), asserted of the real daemon
// through the client library: what a trainer must see if buffer, selector, retention and their counts are right.
//
// The model, called lockstep here, is the synchronous one of the paper's theory (Section 4), drawing as in its experiments
// (Fig. 18, "with replacement"): each gradient step inserts R new rollouts, the oldest beyond N leave, then B are drawn
// uniformly.
//
//   x = N / R   steps that a rollout stays: the staleness horizon        y = B / R   mean uses of a rollout: the replay ratio
//
// N / R is whole, and nothing is drawn before the buffer is full: so every rollout sees x batches, and a slot of any of them is
// this rollout with probability 1 / N, independently of every other slot. All formulas below follow from that; "derived" says
// that the paper does not print them.
//
// What is asserted is counted here, from the draws by insertion number; the daemon's own counts must then be the same.
// Lockstep is sequential and its seeds are fixed, so it passes always or never. The bounds hold for any seed: chance exceeds
// them with probability 1e-6 (chi-square) or at five standard deviations.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "replay/client.h"
#include "tests/support/chi_square.h"
#include "tests/support/daemon.h"
#include "tests/support/replayctl.h"
#include "tests/support/sanitized.h"
#include "tests/support/value.h"

namespace replay::test {
namespace {

using namespace std::chrono_literals;

constexpr uint64_t kSeed = 20260409;
constexpr double kLeastP = 1e-6;
constexpr double kSigmas = 5;
// Sanitizers make a call some ten times dearer. The bounds know how much was drawn.
constexpr int Shortened(int steps) { return kSanitized ? steps / 4 : steps; }

Trajectory MakeRollout(const std::string& run, const std::string& id, int64_t version) {
  Trajectory rollout;
  rollout.trajectory_id = id;
  rollout.run_id = run;
  rollout.token_ids = {1, 2};
  rollout.prompt_length = 1;
  rollout.loss_mask = {0, 1};
  rollout.behaviour_logprobs = {NAN, -0.5f};
  rollout.version_segments = {{1, 2, version}};
  return rollout;
}

class Paper : public testing::Test {
 protected:
  BufferStats StatsOf(const std::string& buffer) { return Value(client_.Stats(buffer)).buffers.at(0); }

  Daemon daemon_{{.buffers = "[]", .io_threads = 2}};
  Client client_{{.address = daemon_.unix_address()}};
};

// The daemon observed just these values.
void ExpectHistogramOf(const std::vector<int64_t>& values, const Histogram& histogram) {
  std::vector<uint64_t> counts(histogram.bounds.size() + 1);
  for (const int64_t value : values)
    ++counts[static_cast<size_t>(std::lower_bound(histogram.bounds.begin(), histogram.bounds.end(), value) -
                                 histogram.bounds.begin())];
  EXPECT_EQ(counts, histogram.counts);
  EXPECT_EQ(std::accumulate(values.begin(), values.end(), 0.0), histogram.sum);
}

double CountOf(const std::string& name, const NamedCounts& counts) {
  for (const auto& [each, count] : counts)
    if (each == name) return static_cast<double>(count);
  return -1;
}

double ChiSquare(const std::vector<double>& observed, const std::vector<double>& expected) {
  double statistic = 0;
  for (size_t i = 0; i < expected.size(); ++i) statistic += std::pow(observed[i] - expected[i], 2) / expected[i];
  return statistic;
}

// Of Binomial(n, p) the probabilities of 0 … most.
std::vector<double> BinomialPmf(int n, double p, int most) {
  std::vector<double> pmf = {std::pow(1 - p, n)};
  for (int k = 1; k <= most; ++k) pmf.push_back(pmf.back() * (n - k + 1) / k * p / (1 - p));
  return pmf;
}

std::vector<double> PoissonPmf(double mean, int most) {
  std::vector<double> pmf = {std::exp(-mean)};
  for (int k = 1; k <= most; ++k) pmf.push_back(pmf.back() * mean / k);
  return pmf;
}

// P(an item of N is drawn at least once in so many slots).
double SeenIn(double slots, double items) { return 1 - std::pow(1 - 1 / items, slots); }

struct Rollout {
  int64_t inserted = 0;  // the step
  bool correct = false;
  std::vector<int64_t> uses{};  // the step of each
};

struct Use {
  uint64_t item = 0;
  int64_t step = 0;
  int64_t staleness = 0;
  int64_t steps_since_last_use = -1;
};

struct LockstepOptions {
  uint32_t capacity = 0;  // N
  uint32_t inserts = 0;   // R
  uint32_t draws = 0;     // B
  std::string buffer = "rollouts";
  BufferOptions rules = {};
  double success_rate = 0;  // of the rollouts
  int64_t lag = 0;          // generators work with the weights of so many steps ago
};

// One generator and one trainer in turns. Each draw's facts are held against what is known of the rollout here.
class Lockstep {
 public:
  // Creates the buffer and fills it.
  Lockstep(Client* client, const LockstepOptions& options) : client_(client), options_(options) {
    BufferOptions rules = options.rules;
    rules.capacity_items = options.capacity;
    rules.seed = kSeed;
    Value(client->CreateBuffer(options.buffer, rules));
    while (Insert() < options.capacity)
      if (step_ > options.capacity) throw std::runtime_error("the buffer does not become full");
    filled_ = rollouts_.size();
  }

  void Run(int64_t steps) {
    for (int64_t i = 0; i < steps; ++i) {
      Insert();
      Draw();
    }
  }

  const std::vector<Rollout>& rollouts() const { return rollouts_; }  // by insertion number - 1
  const std::vector<Use>& uses() const { return uses_; }
  int64_t step() const { return step_; }
  // Those that came when the buffer was full, so that each batch of theirs was drawn from N.
  std::span<const Rollout> FromFull() const { return std::span(rollouts_).subspan(filled_); }
  // With retention fifo.
  std::span<const Rollout> Evicted() const { return std::span(rollouts_).first(rollouts_.size() - options_.capacity); }
  std::span<const Rollout> EvictedFromFull() const { return Evicted().subspan(filled_); }

 private:
  // The version is not the step, so that a daemon which took one for the other would be found out.
  static int64_t VersionOf(int64_t step) { return 1000 + 3 * step; }
  int64_t CreatedAt(int64_t step) const { return std::max<int64_t>(0, step - options_.lag); }

  // How many live then.
  uint64_t Insert() {
    ++step_;
    Value(client_->PublishVersion({.run_id = options_.buffer, .version = VersionOf(step_), .step = step_}));
    std::vector<Trajectory> inserted;
    for (uint32_t i = 0; i < options_.inserts; ++i) {
      const bool correct = static_cast<double>(random_()) < options_.success_rate * 0x1p64;
      rollouts_.push_back({.inserted = step_, .correct = correct});
      inserted.push_back(MakeRollout(options_.buffer, std::to_string(rollouts_.size()), VersionOf(CreatedAt(step_))));
      inserted.back().correct = correct ? Correctness::kYes : Correctness::kNo;
    }
    const InsertReceipt receipt = Value(client_->Insert(options_.buffer, inserted, 20s));
    EXPECT_EQ(rollouts_.size() - inserted.size() + 1, receipt.first_item);
    return receipt.live;
  }

  void Draw() {
    const Batch batch = Value(client_->Sample(options_.buffer, {.count = options_.draws, .step = step_}, 20s));
    EXPECT_EQ(options_.draws, batch.draws.size());
    EXPECT_EQ(0u, batch.withheld);
    for (const replay::Draw& draw : batch.draws) {
      Rollout& rollout = rollouts_.at(draw.item - 1);
      const Use use{.item = draw.item,
                    .step = step_,
                    .staleness = step_ - CreatedAt(rollout.inserted),
                    .steps_since_last_use = rollout.uses.empty() ? -1 : step_ - rollout.uses.back()};
      rollout.uses.push_back(step_);
      uses_.push_back(use);
      EXPECT_EQ(use.staleness, draw.staleness);
      EXPECT_EQ(use.steps_since_last_use, draw.steps_since_last_use);
      EXPECT_EQ(rollout.uses.size(), draw.draw_count);
      EXPECT_EQ(1.0 / options_.capacity, draw.probability);
    }
  }

  Client* const client_;
  const LockstepOptions options_;
  std::mt19937_64 random_{kSeed};
  int64_t step_ = -1;
  size_t filled_ = 0;
  std::vector<Rollout> rollouts_;
  std::vector<Use> uses_;
};

// Uses of a rollout ~ Binomial(x B, 1/N): never used (1 - 1/N)^(x B), mean y. (derived)
// Two rollouts share batches, and a slot is one or the other: their uses are a little negatively correlated. To first order
// that takes M u u^T / y from the covariance M (diag p - p p^T) of how many of M rollouts have k uses, u_k = (k - y) p_k: since
// the sum of all uses is given, one degree of freedom is lost. So chi-square with all K - 1 of them errs on the side of
// passing, and "too even" is asked with K - 2.
TEST_F(Paper, UsesOfARolloutAreBinomial) {
  constexpr int kN = 64, kR = 16, kB = 32;
  Lockstep lockstep(&client_, {.capacity = kN, .inserts = kR, .draws = kB});
  lockstep.Run(Shortened(6000));

  const auto evicted = lockstep.EvictedFromFull();
  const auto count = static_cast<double>(evicted.size());
  std::vector<double> observed, expected;
  double rest = count;
  for (const double p : BinomialPmf(kN / kR * kB, 1.0 / kN, 30)) {
    // The last class, of at least 10 rollouts: all that are used so often or more.
    if (rest - count * p < 10) break;
    expected.push_back(count * p);
    rest -= count * p;
  }
  expected.push_back(rest);
  observed.resize(expected.size());
  for (const Rollout& rollout : evicted) ++observed[std::min(rollout.uses.size(), observed.size() - 1)];
  const double statistic = ChiSquare(observed, expected);
  const auto classes = static_cast<int>(expected.size());
  ASSERT_GT(classes, 6);
  EXPECT_GT(ChiSquareTail(statistic, classes - 1), kLeastP) << statistic << " of " << classes;
  EXPECT_LT(ChiSquareTail(statistic, classes - 2), 1 - kLeastP) << "too even: " << statistic << " of " << classes;

  std::vector<int64_t> uses_of_evicted;
  for (const Rollout& rollout : lockstep.Evicted()) uses_of_evicted.push_back(static_cast<int64_t>(rollout.uses.size()));
  const BufferStats stats = StatsOf("rollouts");
  ExpectHistogramOf(uses_of_evicted, stats.item_draws);
  EXPECT_EQ(lockstep.uses().size(), stats.drawn);
  EXPECT_EQ(lockstep.rollouts().size(), stats.accepted);
}

// Uses ~ Poisson(y) for large N. (derived) Total variation distance of what M rollouts show from it, at most
//   (1 - e^-y) / N                  Binomial(x B, 1/N) from Poisson(y) (Barbour and Hall)
//   + sum_k sqrt(p_k / M) / 2       what sampling adds in the mean
//   + sqrt(2 y ln(1e6) / M)         and beyond it with probability 1e-6 (McDiarmid: the y M slots are independent, and another
//                                   item in one of them changes the distance by at most 2 / M)
// Were a rollout drawn at most once a batch, its uses would be Binomial(x, y/x), which is 0.07 away.
TEST_F(Paper, UsesApproachPoissonInALargeBuffer) {
  constexpr int kN = 1024, kR = 128, kB = 256;
  constexpr double kY = double{kB} / kR;
  Lockstep lockstep(&client_, {.capacity = kN, .inserts = kR, .draws = kB});
  lockstep.Run(Shortened(400));

  const auto evicted = lockstep.EvictedFromFull();
  const auto count = static_cast<double>(evicted.size());
  const std::vector<double> pmf = PoissonPmf(kY, 30);
  std::vector<double> observed(pmf.size());
  for (const Rollout& rollout : evicted) observed.at(rollout.uses.size()) += 1 / count;
  double distance = 0, of_sampling = 0;
  for (size_t k = 0; k < pmf.size(); ++k) {
    distance += std::abs(observed[k] - pmf[k]) / 2;
    of_sampling += std::sqrt(pmf[k] / count) / 2;
  }
  EXPECT_LT(distance, (1 - std::exp(-kY)) / kN + of_sampling + std::sqrt(2 * kY * std::log(1 / kLeastP) / count));
}

// First uses among the draws = (1 - (1 - 1/N)^(x B)) / y  ->  (1 - e^-y) / y, since of R rollouts a step just those ever used
// have a first use; never used are e^-y of the rollouts. (Fig. 2, bin "new"; derived) At the paper's mean replay ratios
// 1.78, 3.42 and 7.0: 0.47, 0.28, 0.14 of the draws are new, and 17 %, 3.3 %, 0.1 % of the rollouts never used.
// "Used at all" is negatively associated over rollouts, so the deviation is at most that of independent ones.
TEST_F(Paper, FirstUsesAreTheShareOfDrawsThatTheFormulaSays) {
  struct Regime {
    uint32_t inserts, draws;
    double new_share, never_used;  // as the paper's replay ratio has them, rounded
  };
  for (const Regime& regime : {Regime{90, 160, 0.47, 0.17}, {70, 240, 0.28, 0.033}, {40, 280, 0.14, 0.001}}) {
    const std::string name = "r" + std::to_string(regime.inserts);
    SCOPED_TRACE(name);
    constexpr uint32_t kN = 2520;
    Lockstep lockstep(&client_, {.capacity = kN, .inserts = regime.inserts, .draws = regime.draws, .buffer = name});
    const int64_t horizon = kN / regime.inserts;
    // All rollouts of the first batch that counts have seen only full ones.
    lockstep.Run(horizon);
    const int64_t since = lockstep.step();
    lockstep.Run(Shortened(400) + horizon);

    double draws = 0, first_uses = 0, all_first_uses = 0;
    for (const Use& use : lockstep.uses()) {
      const bool is_first = use.steps_since_last_use < 0;
      all_first_uses += is_first;
      if (use.step <= since) continue;
      ++draws;
      first_uses += is_first;
    }
    const double y = static_cast<double>(regime.draws) / regime.inserts;
    const double used = SeenIn(static_cast<double>(horizon) * regime.draws, kN);
    EXPECT_NEAR(regime.new_share, (1 - std::exp(-y)) / y, 0.005);
    EXPECT_NEAR((1 - std::exp(-y)) / y, used / y, 1e-3);
    // First uses of those inserted in the window, whenever they come, and at either end those of the N that come on its other
    // side: at most sqrt(N / 4).
    const double deviation = std::sqrt(used * (1 - used) * draws / y) + 2 * std::sqrt(kN / 4);
    EXPECT_NEAR(used / y, first_uses / draws, kSigmas * deviation / draws);

    const auto evicted = lockstep.EvictedFromFull();
    const auto never = std::count_if(evicted.begin(), evicted.end(), [](const Rollout& each) { return each.uses.empty(); });
    const auto count = static_cast<double>(evicted.size());
    EXPECT_NEAR(regime.never_used, 1 - used, 0.002);
    EXPECT_NEAR(1 - used, static_cast<double>(never) / count, kSigmas * std::sqrt(used * (1 - used) / count));

    const BufferStats stats = StatsOf(name);
    const auto& again = stats.reuse_gap.counts;
    EXPECT_EQ(all_first_uses, static_cast<double>(stats.drawn - std::accumulate(again.begin(), again.end(), uint64_t{0})));
  }
}

// Slots of a batch that repeat another = 1 - N (1 - (1 - 1/N)^B) / B: 28 % at N = 84 and B = 60, and the same where three
// trainers draw 20 each from a shard of 28, be it a buffer or a part of one. (its sharded buffers; derived) The daemon shows
// them as 0 steps since last use.
TEST_F(Paper, InBatchRepeatsAreTheSameInOneBufferAndInThreeShards) {
  struct Layout {
    const char* name;
    uint32_t buffers, parts;
  };
  for (const Layout& layout : {Layout{"one", 1, 1}, {"shards", 3, 1}, {"parts", 1, 3}}) {
    SCOPED_TRACE(layout.name);
    const uint32_t shards = layout.buffers * layout.parts;
    const uint32_t items = 84 / shards, draws = 60 / shards;
    std::vector<std::string> names;
    for (uint32_t buffer = 0; buffer < layout.buffers; ++buffer) {
      names.push_back(layout.name + std::to_string(buffer));
      const uint32_t capacity = items * layout.parts;
      Value(client_.CreateBuffer(names.back(), {.capacity_items = capacity, .seed = kSeed + buffer, .parts = layout.parts}));
      std::vector<Trajectory> rollouts;
      for (uint32_t i = 0; i < capacity; ++i) rollouts.push_back(MakeRollout("", std::to_string(i), 0));
      Value(client_.Insert(names.back(), rollouts, 20s));
    }
    const int steps = Shortened(3000);
    double repeats = 0, shown = 0;
    for (int step = 1; step <= steps; ++step) {
      for (const std::string& name : names) {
        std::set<uint64_t> others;
        for (uint32_t rank = 0; rank < layout.parts; ++rank) {
          const SampleOptions options{.count = draws, .step = step, .rank = rank, .world_size = layout.parts};
          const Batch batch = Value(client_.Sample(name, options, 20s));
          std::set<uint64_t> items_of_batch;
          for (const Draw& draw : batch.draws) {
            repeats += !items_of_batch.insert(draw.item).second;
            shown += draw.steps_since_last_use == 0;
            EXPECT_EQ(1.0 / items, draw.probability);
          }
          EXPECT_EQ(items_of_batch.size(), batch.trajectories.size());  // a frame travels once
          for (const uint64_t item : items_of_batch) EXPECT_TRUE(others.insert(item).second) << item << " is of two ranks";
        }
      }
    }
    const double seen = SeenIn(draws, items);
    const double formula = 1 - items * seen / draws;
    EXPECT_NEAR(0.28, formula, 0.005);
    EXPECT_EQ(repeats, shown);
    // Of a batch at most N seen (1 - seen), the variance if items were seen independently.
    const double deviation = std::sqrt(items * shards * seen * (1 - seen) * steps);
    EXPECT_NEAR(formula, repeats / (60.0 * steps), kSigmas * deviation / (60.0 * steps));
  }
}

// Staleness of a draw is uniform on 0 … x-1, mean (x-1)/2; with generators that are `lag` steps behind, on lag … lag+x-1.
// (its off-policiness; derived) R of the N have each age and slots are independent: chi-square is exact.
TEST_F(Paper, AgesAreUniformUpToTheHorizon) {
  constexpr uint32_t kN = 240, kR = 20, kB = 60, kX = kN / kR;
  for (const int64_t lag : {0, 3}) {
    const std::string name = "lag" + std::to_string(lag);
    Lockstep lockstep(&client_, {.capacity = kN, .inserts = kR, .draws = kB, .buffer = name, .lag = lag});
    const int steps = Shortened(800);
    lockstep.Run(steps);

    std::vector<double> observed(kX);
    std::vector<int64_t> ages;
    for (const Use& use : lockstep.uses()) {
      ages.push_back(use.staleness);
      ASSERT_TRUE(use.staleness >= lag && use.staleness < lag + kX) << use.staleness;
      ++observed[static_cast<size_t>(use.staleness - lag)];
    }
    const double statistic = ChiSquare(observed, std::vector<double>(kX, double{kB} * steps / kX));
    EXPECT_GT(ChiSquareTail(statistic, kX - 1), kLeastP) << name << ": " << statistic;
    EXPECT_LT(ChiSquareTail(statistic, kX - 1), 1 - kLeastP) << name << ": too even: " << statistic;
    ExpectHistogramOf(ages, StatsOf(name).staleness);
  }
}

// Steps between two uses in different batches are geometric, P(g) = q (1 - q)^(g-1) with q = 1 - (1 - 1/N)^B, until eviction.
// (Fig. 2: steps since last use; derived) Eviction cuts the gaps off, so what is asserted is the hazard: of the rollouts used
// at some step, not used in the next g - 1 and still there after g, a share q is used then. The hazards of one g or of several
// are uncorrelated, and rollouts of one batch negatively associated: chi-square with x - 1 degrees of freedom is conservative.
TEST_F(Paper, GapsBetweenUsesAreGeometricUntilEviction) {
  constexpr int64_t kN = 240, kR = 20, kB = 120, kX = kN / kR;
  Lockstep lockstep(&client_, {.capacity = kN, .inserts = kR, .draws = kB});
  lockstep.Run(Shortened(1000));

  std::vector<double> at_risk(kX), used(kX);  // by g
  for (const Rollout& rollout : lockstep.EvictedFromFull()) {
    for (size_t i = 0; i < rollout.uses.size(); ++i) {
      const bool has_next = i + 1 < rollout.uses.size();
      const int64_t gap = has_next ? rollout.uses[i + 1] - rollout.uses[i] : kX;
      if (gap == 0) continue;  // another slot of the same batch
      const int64_t last_batch = rollout.inserted + kX - 1;
      for (int64_t g = 1; g <= std::min(gap, last_batch - rollout.uses[i]); ++g) ++at_risk[static_cast<size_t>(g)];
      if (has_next) ++used[static_cast<size_t>(gap)];
    }
  }
  const double q = SeenIn(kB, kN);
  double statistic = 0;
  for (size_t g = 1; g < kX; ++g) statistic += std::pow(used[g] - q * at_risk[g], 2) / (at_risk[g] * q * (1 - q));
  EXPECT_GT(ChiSquareTail(statistic, kX - 1), kLeastP) << statistic;

  std::vector<int64_t> gaps;
  for (const Use& use : lockstep.uses())
    if (use.steps_since_last_use >= 0) gaps.push_back(use.steps_since_last_use);
  ExpectHistogramOf(gaps, StatsOf("rollouts").reuse_gap);
}

// Positive-bias keeps the (1 - delta) N freshest and of the others the delta N freshest correct ones. The paper's example: N = 8,
// and of t-9 … t the correct ones are t-8 t-7 t-5 t-4 t-2. What it prints follows from its rule for delta 0.25 to 0.5, not for
// the 0.75 beside it: that keeps one less, t-3 being neither correct nor among the two freshest.
TEST_F(Paper, PositiveBiasKeepsWhatTheWorkedExampleShows) {
  const std::map<std::string, std::string> kept = {{"0", "t-7 t-6 t-5 t-4 t-3 t-2 t-1 t "},
                                                   {"0.25", "t-8 t-7 t-5 t-4 t-3 t-2 t-1 t "},
                                                   {"0.375", "t-8 t-7 t-5 t-4 t-3 t-2 t-1 t "},
                                                   {"0.5", "t-8 t-7 t-5 t-4 t-3 t-2 t-1 t "},
                                                   {"0.75", "t-8 t-7 t-5 t-4 t-2 t-1 t "}};
  for (const auto& [delta, expected] : kept) {
    const std::string name = "delta" + delta;
    Value(client_.CreateBuffer(name, {.capacity_items = 8, .policy = "positive_bias", .delta = delta}));
    int age = 9;
    for (const char mark : std::string("xvvxvvxvxx")) {
      Trajectory rollout = MakeRollout("", age > 0 ? "t-" + std::to_string(age) : "t", 9 - age);
      rollout.correct = mark == 'v' ? Correctness::kYes : Correctness::kNo;
      Value(client_.Insert(name, {&rollout, 1}, 20s));
      --age;
    }
    std::string live;
    for (const StoredTrajectory& each : Value(client_.Scan(name, 0, 100)))
      live += std::string(each.trajectory.trajectory_id()) + " ";
    EXPECT_EQ(expected, live) << delta;
  }
}

// Positive-bias in the long run, with success rate p (derived): R p correct rollouts a step pass through a ring of delta N, so
//   a correct one stays x' = (N/R) ((1 - delta) + delta/p) steps, the maximum age, and is used y ((1 - delta) + delta/p) times,
//   an incorrect one y (1 - delta) times; the mean of both is y;   of the draws (1 - delta) p + delta are correct.
TEST_F(Paper, PositiveBiasSettlesWhereItsSuccessRateSays) {
  struct Setting {
    const char* delta;
    double d, p;
  };
  for (const Setting& setting : {Setting{"0.25", 0.25, 0.5}, {"0.5", 0.5, 0.25}}) {
    const std::string name = std::string("delta") + setting.delta;
    SCOPED_TRACE(name);
    const auto [text, d, p] = setting;
    constexpr uint32_t kN = 1600, kR = 80, kB = 160;
    constexpr double kX = double{kN} / kR, kY = double{kB} / kR;
    Lockstep lockstep(&client_, {.capacity = kN,
                                 .inserts = kR,
                                 .draws = kB,
                                 .buffer = name,
                                 .rules = {.policy = "positive_bias", .delta = text},
                                 .success_rate = p});
    // The oldest live item's, at each of so many steps.
    const int steps = Shortened(320);
    double oldest_age = 0;
    uint64_t oldest = 0;
    const auto step_on = [&] {
      lockstep.Run(1);
      oldest = Value(client_.Scan(name, 0, 1)).at(0).item;
    };
    for (int i = 0; i < steps; ++i) {
      step_on();
      oldest_age += static_cast<double>(lockstep.step() - lockstep.rollouts()[oldest - 1].inserted) / steps;
    }
    double correct_draws = 0;
    for (const Use& use : lockstep.uses()) correct_draws += lockstep.rollouts()[use.item - 1].correct;
    const auto draws = static_cast<double>(lockstep.uses().size());
    EXPECT_EQ(correct_draws, CountOf("sample_correct", StatsOf(name).outcomes));

    // The trials until delta N successes have deviation sqrt(delta N (1 - p)) / p. Ages some delta N / (p R) steps apart have
    // no rollouts in common. An age counts whole steps, half a step less in the mean than a rollout stays.
    const double horizon = kX * ((1 - d) + d / p);
    const double passage = d * kX / p;
    EXPECT_NEAR(horizon - 0.5, oldest_age, kSigmas * std::sqrt(d * kN * (1 - p)) / p / kR / std::sqrt(steps / passage));
    // Draws, and the rollouts that happened to be correct.
    const double fraction = (1 - d) * p + d;
    EXPECT_NEAR(fraction, correct_draws / draws,
                kSigmas * std::sqrt(fraction * (1 - fraction) / draws + (1 - d) * (1 - d) * p * (1 - p) / (kR * steps)));

    // The rollouts of these steps, when all of them have left.
    const size_t cohort = lockstep.FromFull().size();
    const auto last = static_cast<uint64_t>(lockstep.rollouts().size());
    for (int i = 0; oldest <= last && i < 3 * horizon; ++i) step_on();
    ASSERT_GT(oldest, last);
    double correct = 0, uses_of_correct = 0, uses_of_incorrect = 0;
    for (const Rollout& rollout : lockstep.FromFull().first(cohort)) {
      correct += rollout.correct;
      (rollout.correct ? uses_of_correct : uses_of_incorrect) += static_cast<double>(rollout.uses.size());
    }
    const auto count = static_cast<double>(cohort);
    // A mean of about Poisson counts, and for the correct ones that of how long they stayed.
    const double of_stay = std::pow(kY * d / p, 2) * (1 - p) / (p * count);
    const double of_correct = kY * ((1 - d) + d / p), of_incorrect = kY * (1 - d);
    EXPECT_NEAR(of_correct, uses_of_correct / correct, kSigmas * std::sqrt(of_correct / correct + of_stay));
    EXPECT_NEAR(of_incorrect, uses_of_incorrect / (count - correct), kSigmas * std::sqrt(of_incorrect / (count - correct)));
    EXPECT_NEAR(kY, (uses_of_correct + uses_of_incorrect) / count, kSigmas * std::sqrt(kY / count + of_stay * p * p));
  }
}

// Off-policiness is that of the oldest weights that had a part in the rollout, wherever in it they had it.
TEST_F(Paper, StalenessIsThatOfTheOldestSegment) {
  Value(client_.PublishVersion({.run_id = "run", .version = 4, .step = 40}));
  Value(client_.PublishVersion({.run_id = "run", .version = 9, .step = 90}));
  Value(client_.CreateBuffer("rollouts", {}));
  Trajectory rollout = MakeRollout("run", "updated in flight", 0);
  rollout.token_ids = {1, 2, 3};
  rollout.loss_mask = {0, 1, 1};
  rollout.behaviour_logprobs = {NAN, -0.5f, -0.5f};
  rollout.version_segments = {{1, 2, 9}, {2, 3, 4}};
  Value(client_.Insert("rollouts", {&rollout, 1}, 20s));
  for (const std::optional<int64_t> most : {std::optional<int64_t>(), std::optional<int64_t>(60)}) {
    const Batch batch = Value(client_.Sample("rollouts", {.count = 1, .step = 100, .max_staleness = most}, 0s));
    EXPECT_EQ(60, batch.draws.at(0).staleness);
    EXPECT_EQ(0u, batch.withheld);
  }
  const Result<Batch> withheld = client_.Sample("rollouts", {.count = 1, .step = 100, .max_staleness = 59}, 0s);
  ASSERT_FALSE(withheld);
  EXPECT_EQ(WaitReason::kStaleness, withheld.error().reason) << withheld.error().ToString();
  Value(client_.AlterBuffer("rollouts", {.max_staleness = 59}));
  EXPECT_FALSE(client_.Sample("rollouts", {.count = 1, .step = 100}, 0s));
  EXPECT_EQ(60, Value(client_.Sample("rollouts", {.count = 1, .step = 99}, 0s)).draws.at(0).staleness + 1);
  const BufferStats stats = StatsOf("rollouts");
  EXPECT_EQ(4, stats.oldest_version);
  ExpectHistogramOf({60, 60, 59}, stats.staleness);
}

// The baseline without a buffer: what is newest is drawn first, once, and is gone when it has been trained on. B = R, and a
// backlog from before that waits until nothing newer is left. (Listing 1)
TEST_F(Paper, TheBaselineUsesTheNewestFirstAndEachOnce) {
  constexpr uint32_t kR = 6, kSteps = 8;
  Value(client_.CreateBuffer("queue", {.capacity_items = 1000, .selector = "lifo", .max_draws = 1, .lease = 60s}));
  uint64_t inserted = 0;
  const auto insert = [&] {
    std::vector<Trajectory> rollouts;
    for (uint32_t i = 0; i < kR; ++i) rollouts.push_back(MakeRollout("", std::to_string(++inserted), 0));
    Value(client_.Insert("queue", rollouts, 20s));
  };
  const auto use = [&](int64_t step) {
    const Batch batch = Value(client_.Sample("queue", {.count = kR, .step = step}, 0s));
    std::vector<uint64_t> items;
    for (const Draw& draw : batch.draws) {
      items.push_back(draw.item);
      EXPECT_EQ(std::to_string(draw.item), batch.trajectory(draw).trajectory_id());
      EXPECT_EQ(1.0, draw.probability);
      EXPECT_EQ(1u, draw.draw_count);
      EXPECT_EQ(-1, draw.steps_since_last_use);
    }
    EXPECT_EQ(kR, Value(client_.Acknowledge("queue", batch.lease)));
    return items;
  };
  const auto newest = [](uint64_t item) {
    std::vector<uint64_t> items;
    for (uint32_t i = 0; i < kR; ++i) items.push_back(item - i);
    return items;
  };
  insert();  // the backlog
  for (uint32_t step = 1; step <= kSteps; ++step) {
    insert();
    EXPECT_EQ(newest(inserted), use(step)) << "step " << step;
  }
  EXPECT_EQ(newest(kR), use(kSteps + 1));
  EXPECT_FALSE(client_.Sample("queue", {.count = 1}, 0s));

  const BufferStats stats = StatsOf("queue");
  EXPECT_EQ(0u, stats.items + stats.held + stats.leases);
  EXPECT_EQ(inserted, stats.accepted);
  EXPECT_EQ(inserted, stats.drawn) << "replay ratio 1";
  ExpectHistogramOf(std::vector<int64_t>(inserted, 1), stats.item_draws);
  ExpectHistogramOf({}, stats.reuse_gap);
  EXPECT_EQ(static_cast<double>(inserted), CountOf("max_draws", stats.removed));
}

// mu = (generation seconds / rollouts) / (training seconds / draws), and W / T, of all reports together; as replayctl shows them.
TEST_F(Paper, CostsThatAreReportedAddUpToMu) {
  Value(client_.CreateBuffer("rollouts", {}));
  const auto shown = [this] { return ReplayctlJson(daemon_, "stats rollouts").at("buffers").at(0); };
  EXPECT_TRUE(shown().at("mu").is_null());
  EXPECT_TRUE(shown().at("workers_per_trainer").is_null());
  Client trainer({.address = daemon_.address()});
  Value(client_.ReportCost("rollouts", {.generation_seconds = 2.5, .generated_trajectories = 40, .workers = 6}));
  Value(trainer.ReportCost("rollouts", {.training_seconds = 1, .trained_draws = 80, .trainers = 2}));
  Value(client_.ReportCost("rollouts", {.generation_seconds = 7.5, .generated_trajectories = 60, .workers = 6}));
  Value(trainer.ReportCost("rollouts", {.training_seconds = 3, .trained_draws = 120, .trainers = 2}));
  const BufferStats stats = StatsOf("rollouts");
  EXPECT_EQ(10.0, stats.generation_seconds);
  EXPECT_EQ(100u, stats.generated_trajectories);
  EXPECT_EQ(4.0, stats.training_seconds);
  EXPECT_EQ(200u, stats.trained_draws);
  EXPECT_EQ(6u, stats.workers);
  EXPECT_EQ(2u, stats.trainers);
  EXPECT_EQ(5.0, shown().at("mu").get<double>());
  EXPECT_EQ(3.0, shown().at("workers_per_trainer").get<double>());
  EXPECT_NE(std::string::npos, Replayctl(daemon_, "stats rollouts").find("mu 5, W/T 6/2"));
}

// The paper's example of steps since last use: "used once in batch 3 and three times in batch 5" is new, 2, 0, 0. A priority of
// 0 keeps one of two rollouts out of a batch, so that this can be said of chosen batches.
TEST_F(Paper, StepsSinceLastUseFollowTheExample) {
  Value(client_.CreateBuffer("rollouts", {.capacity_items = 2, .selector = "prioritized"}));
  const std::vector<Trajectory> rollouts = {MakeRollout("", "example", 0), MakeRollout("", "other", 0)};
  Value(client_.Insert("rollouts", rollouts, 20s));
  std::map<std::string, std::string> since_last_use;
  const auto batch_of = [&](const std::string& id, int64_t step, uint32_t count) {
    const std::vector<ItemUpdate> updates = {{.trajectory_id = "example", .priority = id == "example" ? 1.0f : 0.0f},
                                             {.trajectory_id = "other", .priority = id == "other" ? 1.0f : 0.0f}};
    Value(client_.Update("rollouts", updates));
    const Batch batch = Value(client_.Sample("rollouts", {.count = count, .step = step}, 20s));
    for (const Draw& draw : batch.draws) {
      EXPECT_EQ(id, batch.trajectory(draw).trajectory_id());
      EXPECT_EQ(1.0, draw.probability);
      since_last_use[id] += draw.steps_since_last_use < 0 ? "new " : std::to_string(draw.steps_since_last_use) + " ";
    }
  };
  batch_of("other", 1, 2);
  batch_of("example", 3, 1);
  batch_of("other", 4, 1);
  batch_of("example", 5, 3);
  EXPECT_EQ("new 2 0 0 ", since_last_use["example"]);
  EXPECT_EQ("new 0 3 ", since_last_use["other"]);
  const BufferStats stats = StatsOf("rollouts");
  ExpectHistogramOf({2, 0, 0, 0, 3}, stats.reuse_gap);
  // Replay ratios of 4 and 3.
  EXPECT_EQ(3.5, static_cast<double>(stats.drawn) / static_cast<double>(stats.accepted));
}

// --- Not in lockstep ---------------------------------------------------------------------------------------------------------

// A generator on a thread of its own: one rollout after the other, as fast as pacing lets it, until told to stop. A rollout's
// version is its insertion number.
class FreeGenerator {
 public:
  static float PriorityOf(uint64_t item) { return static_cast<float>(1 + item % 3); }
  static bool IsGood(uint64_t item) { return item % 5 > 0; }  // its reward is 1, otherwise 0

  explicit FreeGenerator(const std::string& address) : client_({.address = address}) {}
  ~FreeGenerator() { Stop(); }
  void Stop() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
  }

 private:
  void Run() {
    for (uint64_t item = 1; !stop_;) {
      Trajectory rollout = MakeRollout("", std::to_string(item), static_cast<int64_t>(item));
      rollout.priority = PriorityOf(item);
      rollout.reward = IsGood(item);
      // It waits shortly, to hear of the end.
      const auto receipt = client_.Insert("rollouts", {&rollout, 1}, 50ms);
      if (!receipt && receipt.error().reason == WaitReason::kPacing) continue;
      ASSERT_TRUE(receipt) << receipt.error().ToString();
      ASSERT_EQ(item++, receipt->first_item);
    }
  }

  Client client_;
  std::atomic<bool> stop_ = false;
  std::thread thread_{[this] { Run(); }};  // last: it uses the others
};

// y = draws / inserts where nobody takes turns and pacing holds the ratio (the paper's W and T by y = mu T / W): within the
// tolerance, whatever the two sides do. Inserts that only fill the buffer do not count.
TEST_F(Paper, FreeRunningSidesKeepTheReplayRatio) {
  constexpr double kY = 1.78, kTolerance = 40;
  constexpr uint32_t kN = 84, kB = 60;
  Value(client_.CreateBuffer("rollouts", {.capacity_items = kN,
                                          .replay_ratio = kY,
                                          .tolerance = kTolerance,
                                          .min_size = kN,
                                          .max_draws_per_sample = kB,
                                          .max_insert = 1,
                                          .seed = kSeed}));
  FreeGenerator generator(daemon_.unix_address());
  const int steps = Shortened(400);
  for (int step = 0; step < steps; ++step) Value(client_.Sample("rollouts", {.count = kB}, 20s));
  const double drawn = double{kB} * steps;
  generator.Stop();
  const BufferStats stats = StatsOf("rollouts");
  EXPECT_EQ(drawn, static_cast<double>(stats.drawn));
  EXPECT_NEAR(kY * static_cast<double>(stats.accepted - kN), drawn, kTolerance);
}

// What a batch may draw, by the definition of its selector (server/README.md), if the live items are newest - N + 1 … newest.
// The slots of a batch come in stages: `taken` of them from an urn, with repeats or without; a selector that goes by passes or
// by uses empties one urn before it turns to the next.
class Urns {
 public:
  static constexpr uint64_t kN = 240;
  struct Stage {
    std::vector<uint64_t> items{};  // ascending
    std::vector<double> chances{};  // of each in any slot of the stage, sum 1
    uint32_t taken = 0;
    bool repeats = false;
  };

  // Of all live items, or only of the good ones.
  Urns(std::string selector, bool only_good) : selector_(std::move(selector)), only_good_(only_good) {}

  std::vector<Stage> StagesOf(uint64_t newest, uint32_t count) {
    std::vector<uint64_t> live;
    for (uint64_t item = newest + 1 - kN; item <= newest; ++item)
      if (!only_good_ || FreeGenerator::IsGood(item)) live.push_back(item);
    if (selector_ != "epoch" && selector_ != "unused_first")
      return {MakeStage(live, newest, count, selector_ != "uniform_distinct")};
    // Who joins in the middle of a pass is in it at once.
    level_.resize(newest + 1, selector_ == "epoch" ? pass_ : 0);
    std::vector<Stage> stages;
    std::vector<uint32_t> level;  // of `live`
    for (const uint64_t item : live) level.push_back(level_[item]);
    while (count > 0) {
      pass_ = *std::min_element(level.begin(), level.end());
      std::vector<uint64_t> urn;
      for (size_t i = 0; i < live.size(); ++i)
        if (level[i] == pass_) urn.push_back(live[i]);
      stages.push_back(MakeStage(urn, newest, std::min(count, static_cast<uint32_t>(urn.size())), false));
      count -= stages.back().taken;
      if (count > 0)
        for (uint32_t& each : level) each = std::max(each, pass_ + 1);  // all of the urn are drawn
    }
    return stages;
  }
  void OnDraw(uint64_t item) {
    if (item < level_.size()) ++level_[item];
  }

 private:
  Stage MakeStage(const std::vector<uint64_t>& items, uint64_t newest, uint32_t taken, bool repeats) const {
    Stage stage{.items = items, .taken = taken, .repeats = repeats};
    for (const uint64_t item : items) stage.chances.push_back(WeightOf(item, newest - item));
    const double sum = std::accumulate(stage.chances.begin(), stage.chances.end(), 0.0);
    for (double& chance : stage.chances) chance /= sum;
    return stage;
  }
  double WeightOf(uint64_t item, uint64_t age) const {
    if (selector_ == "prioritized")
      return std::pow(FreeGenerator::PriorityOf(item), 1.5) * std::exp(-static_cast<double>(age) / 100);
    return selector_ == "recency" ? std::exp(-static_cast<double>(age) / 60) : 1;
  }

  const std::string selector_;
  const bool only_good_;
  uint32_t pass_ = 0;            // the level of the urn that was drawn from last
  std::vector<uint32_t> level_;  // by item: epoch, the pass it is to be drawn in; unused_first, its uses
};

// The draws that fell into each of some classes of items, against what they should be.
//
//   statistic = sum over classes (O - E)^2 / V     E = sum over stages taken f    f = chance of the class in the stage's urn
//                                                  V = sum over stages s f        s = taken (n - taken) / (n - 1) of n items,
//                                                                                     or taken, with repeats
// The state may change in any way between two Samples, as long as it does not depend on the draw yet to come: O - E is then a
// sum of martingale differences with covariance sum s (diag f - f f^T), at most diag V - V V^T / sum s. So the statistic is at
// most about chi-square with one degree of freedom less than there are classes.
class Ledger {
 public:
  Ledger(size_t classes, size_t (*class_of)(uint64_t item, uint64_t newest))
      : class_of_(class_of), observed_(classes), expected_(classes), variance_(classes) {}

  void Expect(const Urns::Stage& stage, uint64_t newest) {
    const auto items = static_cast<double>(stage.items.size()), taken = static_cast<double>(stage.taken);
    const double spread = stage.repeats ? taken : items == 1 ? 0 : taken * (items - taken) / (items - 1);
    for (size_t i = 0; i < stage.items.size(); ++i) {
      const size_t of = class_of_(stage.items[i], newest);
      expected_[of] += taken * stage.chances[i];
      variance_[of] += spread * stage.chances[i];
    }
  }
  void Observe(uint64_t item, uint64_t newest) { ++observed_[class_of_(item, newest)]; }
  void Check() const {
    double statistic = 0;
    for (size_t i = 0; i < observed_.size(); ++i) {
      ASSERT_GT(variance_[i], 0) << "class " << i << " is never drawn from";
      statistic += std::pow(observed_[i] - expected_[i], 2) / variance_[i];
    }
    EXPECT_GT(ChiSquareTail(statistic, static_cast<int>(observed_.size()) - 1), kLeastP)
        << statistic << " of " << observed_.size() << " classes";
  }

 private:
  size_t (*const class_of_)(uint64_t item, uint64_t newest);
  std::vector<double> observed_, expected_, variance_;
};

// The selector, and whether it draws from a view of the good rollouts.
class PaperSelectors : public Paper, public testing::WithParamInterface<std::tuple<const char*, bool>> {};
INSTANTIATE_TEST_SUITE_P(
    All, PaperSelectors,
    testing::Combine(testing::Values("uniform", "uniform_distinct", "prioritized", "recency", "epoch", "unused_first"),
                     testing::Bool()),
    [](const auto& name) { return std::string(std::get<0>(name.param)) + (std::get<1>(name.param) ? "_of_a_view" : ""); });

// What is drawn while another thread inserts and the oldest leave. How far that thread has come when a Sample begins is chance;
// but the reply tells: rollouts carry their own insertion number as version, none is published, so the `step` that staleness is
// measured against is the number of the newest item. With retention fifo and a full buffer (min_size) that is the whole state.
// So each draw's probability is known and compared, and the draws are held against them by chi-square. The two sides are paced,
// or one of them would be done before the other began.
TEST_P(PaperSelectors, DrawByTheirProbabilitiesWhileAnotherThreadInserts) {
  constexpr uint32_t kMaxDraws = 24;
  const auto [selector, of_a_view] = GetParam();
  BufferOptions options{.capacity_items = Urns::kN,
                        .selector = selector,
                        .replay_ratio = 8,
                        .tolerance = 64,
                        .min_size = Urns::kN,
                        .max_draws_per_sample = kMaxDraws,
                        .max_insert = 1,
                        .seed = kSeed};
  if (*options.selector == "prioritized") options.priority_exponent = 1.5, options.staleness_decay = 100;
  if (*options.selector == "recency") options.staleness_decay = 60;
  if (of_a_view) {
    options.views = std::vector<ViewOptions>{{.name = "good",
                                              .filter = "reward >= 1",
                                              .selector = selector,
                                              .priority_exponent = options.priority_exponent.value_or(1),
                                              .staleness_decay = options.staleness_decay.value_or(0)}};
    options.selector = "uniform", options.priority_exponent = std::nullopt, options.staleness_decay = std::nullopt;
  }
  Value(client_.CreateBuffer("rollouts", options));
  FreeGenerator generator(daemon_.unix_address());

  Urns urns(selector, of_a_view);
  // By age and priority; and by place in a ring of N: an item comes when the one N before it goes, and may take its place in
  // whatever the selector keeps.
  Ledger by_age(24, [](uint64_t item, uint64_t newest) { return (newest - item) * 8 / Urns::kN * 3 + item % 3; });
  Ledger by_place(48, [](uint64_t item, uint64_t) { return item % Urns::kN * 48 / Urns::kN; });
  std::mt19937_64 random(kSeed);
  std::set<uint64_t> states;
  const int batches = Shortened(8000);
  for (int i = 0; i < batches; ++i) {
    const auto count = static_cast<uint32_t>(1 + random() % kMaxDraws);
    const Batch batch = Value(client_.Sample("rollouts", {.count = count, .view = of_a_view ? "good" : ""}, 20s));
    ASSERT_EQ(count, batch.draws.size());
    const auto newest = static_cast<uint64_t>(batch.step);
    states.insert(newest);
    auto draw = batch.draws.begin();
    for (const Urns::Stage& stage : urns.StagesOf(newest, count)) {
      for (Ledger* ledger : {&by_age, &by_place}) ledger->Expect(stage, newest);
      std::set<uint64_t> taken;
      for (const auto end = draw + stage.taken; draw != end; ++draw) {
        ASSERT_EQ(batch.step, static_cast<int64_t>(draw->item) + draw->staleness);
        const auto at = std::lower_bound(stage.items.begin(), stage.items.end(), draw->item);
        ASSERT_TRUE(at != stage.items.end() && *at == draw->item) << draw->item << " is not to be drawn yet, or not live";
        ASSERT_NEAR(stage.chances[static_cast<size_t>(at - stage.items.begin())], draw->probability, 1e-12);
        ASSERT_TRUE(taken.insert(draw->item).second || stage.repeats) << draw->item << " repeats";
        for (Ledger* ledger : {&by_age, &by_place}) ledger->Observe(draw->item, newest);
        urns.OnDraw(draw->item);
      }
    }
  }
  generator.Stop();
  by_age.Check();
  by_place.Check();
  // That it was concurrent: pacing lets neither side be more than 2 * tolerance draws ahead, some 10 batches.
  EXPECT_GT(states.size(), static_cast<size_t>(batches) / 20);
  EXPECT_GT(*states.rbegin(), 2 * Urns::kN);
}

}  // namespace
}  // namespace replay::test
