@0xb7c2e94d10f8a365;

# The conversation between a client and replayd. Grammar of the bytes around these messages: schema/README.md and message.h.
# Fields are only ever added at the end.

using Cxx = import "/capnp/c++.capnp";
using Tag = import "trajectory.capnp".Tag;
$Cxx.namespace("replay::schema");

enum ErrorCode {
  ok @0;
  invalidArgument @1;     # The message names the field, the value and the rule.
  notFound @2;
  alreadyExists @3;
  timedOut @4;            # A wait ended by its deadline; waitReason says what it waited for.
  resourceExhausted @5;   # A limit of the server, named in the message.
  failedPrecondition @6;  # The state does not allow it, e.g. a policy version that is not newer.
  writerExpired @7;       # The server no longer knows what this writer has already inserted.
  corrupted @8;           # A checksum did not match.
  unavailable @9;         # Draining or shutting down: try elsewhere or later.
  bufferDropped @10;      # The buffer was dropped while the call waited.
  unsupportedVersion @11;
  protocolViolation @12;  # The conversation ends.
  internal @13;
  planExpired @14;        # The key's batch is no longer kept.
  keyReused @15;          # The key's batch was drawn with other arguments.
  closed @16;             # Nothing more is inserted into the buffer, and what it has cannot meet the request.
  storageFull @17;        # The disk has less free than storage.reserve_bytes: nothing was changed, try again later.
  storageFailed @18;      # The disk refused: whether it is stored all the same shows at the next start.
}

enum WaitReason {
  none @0;
  minSize @1;
  pacing @2;
  staleness @3;
  filter @4;
  groupIncomplete @5;
  memory @6;
  storage @7;
  draining @8;
  noProducer @9;
  version @10;
}

enum AcknowledgementLevel {
  memory @0;    # Survives nothing.
  process @1;   # Survives kill -9.
  disk @2;      # Survives power loss.
}

enum RetentionKind {
  fifo @0;
  positiveBias @1;
  best @2;              # The highest rewards.
}

enum SelectorKind {
  uniform @0;           # With replacement, the paper's.
  uniformDistinct @1;   # No repeats within a batch.
  lifo @2;
  fifo @3;
  epoch @4;             # None twice before all once.
  unusedFirst @5;       # Those drawn least often first.
  prioritized @6;       # With replacement, by priority and staleness.
  recency @7;           # With replacement, by staleness.
}

enum Unit {
  # What is retained and drawn as one.
  trajectory @0;
  group @1;             # A trajectory without a group is one of its own.
}

enum ZeroSpread {
  # What becomes of a group whose members all have one reward.
  keep @0;
  refuse @1;            # It is not stored; its insert succeeds.
}

struct View {
  # The items for which a filter holds, with a selector of their own.
  name @0 :Text;
  filter @1 :Text;                  # "correct = yes, reward >= 0.5"; server/filter.h has the grammar.
  selector @2 :SelectorKind;
  priorityExponent @3 :Float64 = 1;
  stalenessDecay @4 :Float64;
}

struct BufferOptions {
  # In CreateBuffer, 0 for a capacity, minSize or tolerance means "the default". AlterBuffer names the fields it changes.
  capacityItems @0 :UInt64;
  capacityBytes @1 :UInt64;
  retention @2 :RetentionKind;
  delta @3 :Text;                   # Decimal in [0,1), kept as written so that floor(delta*N) is exact.
  selector @4 :SelectorKind;
  maxDraws @5 :UInt32;              # 0: unbounded.
  correctThreshold @6 :Float64;     # With hasCorrectThreshold: reward >= threshold is correct where correct is unknown.
  hasCorrectThreshold @7 :Bool;
  replayRatio @8 :Float64;          # Target draws per insert; 0: no pacing.
  tolerance @9 :Float64;
  minSize @10 :UInt64;
  maxDrawsPerSample @11 :UInt32;
  maxInsert @12 :UInt32;
  paceDraws @13 :Bool = true;
  paceInserts @14 :Bool = true;
  seed @15 :UInt64;
  hasSeed @16 :Bool;
  priorityExponent @17 :Float64 = 1;
  stalenessDecay @18 :Float64;      # Gradient steps; 0: none.
  maxStaleness @19 :Int64;          # With hasMaxStaleness: what is staler is not drawn.
  hasMaxStaleness @20 :Bool;
  maxAgeMs @21 :UInt64;             # Evicted once this old; 0: never.
  evictStaleness @22 :Int64;        # With hasEvictStaleness: evicted once staler than this by the newest published step.
  hasEvictStaleness @23 :Bool;
  views @24 :List(View);
  unit @25 :Unit;                   # Of capacityItems, minSize and the count of a Sample. Cannot be altered.
  closed @26 :Bool;                 # Inserts are refused, and a Sample that would wait for one is told.
  leaseMs @27 :UInt64;              # What is drawn is held until it is acknowledged, so long at most; 0: not held.
  zeroSpread @28 :ZeroSpread;
  parts @29 :UInt32;                # Above 1: every rank draws from a part of its own.
  promptHistory @30 :UInt32;        # Prompts whose outcomes are remembered; 0: none.
  level @31 :AcknowledgementLevel = disk;  # Of inserts that ask for none.
}

struct Hello {
  protocolVersion @0 :UInt32;
  clientName @1 :Text;
  token @2 :Text;
}

struct HelloReply {
  protocolVersion @0 :UInt32;
  serverVersion @1 :Text;
  generation @2 :UInt64;            # New at each start that came up empty.
  maxFrameBytes @3 :UInt64;
  maxPayloadBytes @4 :UInt64;
}

struct CreateBuffer {
  name @0 :Text;
  options @1 :BufferOptions;
}

struct AlterBuffer {
  name @0 :Text;
  options @1 :BufferOptions;
  fields @2 :List(Text);            # The option names to change, spelled as in the configuration file.
}

struct DropBuffer {
  name @0 :Text;
}

struct ColumnSize {
  # A column frame of the payload. They follow the core frames, back to back.
  frame @0 :UInt32;                 # Of Insert and replies: index of its core frame; of Update: index of its update.
  bytes @1 :UInt32;
}

struct Insert {
  buffer @0 :Text;
  writerHigh @1 :UInt64;            # 128-bit random id of the writer; 0,0: no receipts are kept.
  writerLow @2 :UInt64;
  sequence @3 :UInt64;              # 1, 2, 3 … for each (writer, buffer).
  acknowledgedThrough @4 :UInt64;   # The writer has every receipt up to here; the server may forget them.
  frameBytes @5 :List(UInt32);      # Sizes of the core frames that follow as payload, back to back.
  partial @6 :Bool;                 # All are members of reserved groups, which need not be complete.
  columns @7 :List(ColumnSize);
  level @8 :AcknowledgementLevel;   # With hasLevel: what it is to survive once it is answered, instead of the buffer's.
  hasLevel @9 :Bool;
}

struct InsertReply {
  firstItem @0 :UInt64;             # Insertion number of the first trajectory; the others follow.
  count @1 :UInt32;
  duplicate @2 :Bool;               # The receipt of an earlier identical request.
  level @3 :AcknowledgementLevel;   # What the insert survives, as reached.
  live @4 :UInt64;
  refused @5 :UInt32;               # Not stored and not in count: of groups without reward spread, where the buffer refuses those.
  pending @6 :Bool;                 # With partial: a group is not complete yet. firstItem is 0 then.
}

struct SamplePart {
  count @0 :UInt32;
  view @1 :Text;                    # Empty: the whole buffer, by its selector.
  maxStaleness @2 :Int64;           # With hasMaxStaleness: beside that of the Sample and the buffer, the smallest counts.
  hasMaxStaleness @3 :Bool;
  orNext @4 :Bool;                  # What is lacking is drawn by the next part, instead of waiting for it.
  buffer @5 :Text;                  # Empty: that of the Sample.
  minStaleness @6 :Int64;           # Nothing fresher, in gradient steps; 0: any.
}

struct Sample {
  buffer @0 :Text;
  count @1 :UInt32;                 # With parts: 0 or the sum of theirs.
  step @2 :Int64;                   # With hasStep: the gradient step that will use the batch.
  hasStep @3 :Bool;
  givenBack @4 :UInt32;             # Draws of earlier batches that were never used, credited to pacing.
  maxStaleness @5 :Int64;           # With hasMaxStaleness: beside that of the buffer, the smaller one counts.
  hasMaxStaleness @6 :Bool;
  view @7 :Text;                    # Without parts: draw from this view.
  parts @8 :List(SamplePart);       # A composed batch: all parts or none.
  # With a consumer, (consumer, step) is a key: all ranks share one draw, each gets `count` slots of it, and gets the same ones when
  # it asks again, which counts as no draw. It needs hasStep, worldSize > 0 and rank < worldSize.
  consumer @9 :Text;
  rank @10 :UInt32;
  worldSize @11 :UInt32;
  columns @12 :List(Text);          # Names of the column frames to send along, where an item has them.
}

struct Draw {
  # One slot of a batch.
  frame @0 :UInt32;                 # Index into SampleReply.frameBytes; equal for repeats within the batch.
  drawCount @1 :UInt32;             # Including this draw.
  probability @2 :Float64;          # P(this slot returns this item | the state when Sample began).
  staleness @3 :Int64;              # Gradient steps.
  stepsSinceLastUse @4 :Int64;      # -1: never drawn before.
  item @5 :UInt64;                  # Insertion number.
  reward @6 :Float32;               # As updated last; the frame keeps what was inserted.
  revision @7 :UInt32;              # How often the item was updated.
  advantage @8 :Float32;            # With hasAdvantage: as updated last, in place of that in the frame.
  hasAdvantage @9 :Bool;
}

struct SampleReply {
  draws @0 :List(Draw);
  frameBytes @1 :List(UInt32);      # Distinct frames, in the order they follow as payload.
  step @2 :Int64;                   # The step staleness was measured against.
  withheld @3 :UInt64;              # Live items that could not be drawn: newer than step, too stale, or of an older epoch.
  partCounts @4 :List(UInt32);      # Of a composed batch: the draws of each part, one part behind the other.
  planned @5 :Bool;                 # Drawn before, for this key: counted then.
  unitSizes @6 :List(UInt32);       # Where groups are drawn: the draws of each, one group behind the other.
  lease @7 :UInt64;                 # Of a buffer with leases: what Acknowledge names. 0: not held.
  columns @8 :List(ColumnSize);
  candidates @9 :List(UInt64);      # Of each part, or of the batch that has none: what could be drawn, in units.
}

struct Get {
  buffer @0 :Text;
  ids @1 :List(Text);
  afterItem @2 :UInt64;             # Without ids: the items with a higher insertion number, oldest first …
  limit @3 :UInt32;                 # … at most this many. This is how a buffer is exported.
  columns @4 :List(Text);           # As in Sample.
}

struct LateTags {
  tags @0 :List(Tag);
}

struct GetReply {
  found @0 :List(UInt32);           # Index into Get.ids of each frame (with ids).
  items @1 :List(UInt64);           # Insertion number of each frame.
  drawCounts @2 :List(UInt32);
  frameBytes @3 :List(UInt32);
  more @4 :Bool;                    # Without ids: newer items exist.
  columns @5 :List(ColumnSize);
  # What Update wrote, for each frame.
  rewards @6 :List(Float32);
  revisions @7 :List(UInt32);
  lateTags @8 :List(LateTags);      # Empty if no item of the reply has any.
}

struct Delete {
  buffer @0 :Text;
  ids @1 :List(Text);
}

struct DeleteReply {
  deleted @0 :UInt32;
}

struct ItemUpdate {
  # What is known later than the insert. The frame does not change.
  id @0 :Text;
  priority @1 :Float32;             # With hasPriority: 0 to 1e9.
  hasPriority @2 :Bool;
  reward @3 :Float32;               # With hasReward.
  hasReward @4 :Bool;
  correct @5 :UInt8;                # With hasCorrect: a Correctness of trajectory.capnp.
  hasCorrect @6 :Bool;
  revision @7 :UInt32;              # With hasRevision: only if the item has this one.
  hasRevision @8 :Bool;
  advantage @9 :Float32;            # With hasAdvantage. One for each token is a column.
  hasAdvantage @10 :Bool;
  tags @11 :List(Tag);              # Each in place of the one of its name.
}

struct Update {
  buffer @0 :Text;
  updates @1 :List(ItemUpdate);     # Each by itself, in this order.
  columns @2 :List(ColumnSize);     # Each in place of the one of its name.
}

struct UpdateReply {
  # One for each update.
  outcomes @0 :List(UInt8);         # 0: done; 1: no such item is live; 2: it has another revision.
  revisions @1 :List(UInt32);       # Of the item, now.
}

enum MissingMembers {
  # What becomes of a reserved group that is not complete when its lease or its deadline ends.
  drop @0;              # Its members are removed.
  release @1;           # It becomes a group of those that are there.
  wait @2;              # It goes on waiting.
}

struct ReserveGroup {
  # Announces a group whose members arrive by several Inserts (partial). They become visible together, when the group is complete.
  enum Action {
    reserve @0;         # Or, by whoever asks again with the same arguments: renew the lease.
    commit @1;          # The group is complete with the members that are there.
    drop @2;
  }
  buffer @0 :Text;
  groupId @1 :Text;
  action @2 :Action;
  # Of reserve:
  size @3 :UInt32;
  leaseMs @4 :UInt32;               # Renewed by each member and by asking again.
  deadlineMs @5 :UInt32;            # From the first request; never renewed.
  missing @6 :MissingMembers;
  batch @7 :UInt32;                 # Above 0: waits for admission first, see Admit.
}

struct ReserveGroupReply {
  present @0 :UInt32;               # Members that are there.
  size @1 :UInt32;
  firstItem @2 :UInt64;             # Of commit: insertion number of the first member.
}

struct Admit {
  # How many trajectories may be generated now so that, at `batch` a gradient step, none is too stale when its turn comes:
  # (maxStaleness + 1) * batch - live - reserved. Waits until there are `count`.
  buffer @0 :Text;
  count @1 :UInt32;                 # 0: only asks.
  batch @2 :UInt32;
  maxStaleness @3 :Int64;           # With hasMaxStaleness: instead of the buffer's.
  hasMaxStaleness @4 :Bool;
}

struct AdmitReply {
  credits @0 :Int64;                # Negative: there are too many already.
  live @1 :UInt64;
  reserved @2 :UInt64;              # Members of reserved groups, present or still to come.
}

struct Acknowledge {
  # Ends the lease of what was drawn: it was used, and leaves once it has had maxDraws.
  buffer @0 :Text;
  lease @1 :UInt64;
  items @2 :List(UInt64);           # Insertion numbers; empty: all of the lease.
  giveBack @3 :Bool;                # It was not used: as if it had not been drawn.
}

struct AcknowledgeReply {
  count @0 :UInt32;                 # Trajectories whose lease ended by this.
}

struct History {
  # What became of the rollouts of each prompt. A prompt is a source and a datasetIndex of 0 or more.
  buffer @0 :Text;
  source @1 :Text;
  afterIndex @2 :Int64 = -1;        # Prompts of this source with a higher datasetIndex, in order …
  limit @3 :UInt32;                 # … at most this many.
}

struct PromptOutcomes {
  datasetIndex @0 :Int64;
  rollouts @1 :UInt64;
  scored @2 :UInt64;                # Of rollouts: correctness known.
  correct @3 :UInt64;
  rewardSum @4 :Float64;            # As inserted.
}

struct HistoryReply {
  prompts @0 :List(PromptOutcomes);
  more @1 :Bool;
}

struct PolicyVersion {
  runId @0 :Text;
  epoch @1 :UInt64;
  version @2 :Int64;
  step @3 :Int64;
  label @4 :Text;
  uri @5 :Text;
  publishedAtUnixNs @6 :Int64;
}

struct WaitVersion {
  runId @0 :Text;
  epoch @1 :UInt64;                 # Answers with the newest version that is later than (epoch, version).
  version @2 :Int64;
  hasVersion @3 :Bool;              # False: any published version will do.
}

struct ReportCost {
  buffer @0 :Text;
  generationSeconds @1 :Float64;
  generatedTrajectories @2 :UInt64;
  generatedTokens @3 :UInt64;
  trainingSeconds @4 :Float64;
  trainedDraws @5 :UInt64;
  trainedTokens @6 :UInt64;
  workers @7 :UInt32;               # W and T as the reporter counts itself; 0: not a producer.
  trainers @8 :UInt32;
}

struct Stats {
  buffer @0 :Text;                  # Empty: all.
}

struct NamedCount {
  name @0 :Text;
  count @1 :UInt64;
}

struct Histogram {
  bounds @0 :List(Float64);         # Upper bounds, inclusive; the last bucket is unbounded.
  counts @1 :List(UInt64);          # One more than bounds, not cumulative.
  sum @2 :Float64;
}

struct Breakdown {
  # The trajectories of one source, one bucket of lengths, or one number of draws.
  name @0 :Text;
  live @1 :UInt64;
  inserted @2 :UInt64;
  withheld @3 :UInt64;              # Of live: not to be drawn by the last Sample.
  removed @4 :List(NamedCount);     # By reason.
}

struct BufferStats {
  name @0 :Text;
  options @1 :BufferOptions;
  items @2 :UInt64;
  bytes @3 :UInt64;                 # Of the frames of live items.
  indexBytes @4 :UInt64;
  tokens @5 :UInt64;
  positiveItems @6 :UInt64;         # Of items: in the positive ring.
  scored @7 :UInt64;                # Of items: correctness known.
  correct @8 :UInt64;
  offered @9 :UInt64;               # = accepted + duplicate + rejected
  accepted @10 :UInt64;             # = items + removed
  duplicate @11 :UInt64;
  rejected @12 :UInt64;
  removed @13 :List(NamedCount);    # By reason.
  drawn @14 :UInt64;
  samples @15 :UInt64;
  tokensInserted @16 :UInt64;
  tokensDrawn @17 :UInt64;
  withheld @18 :UInt64;
  staleness @19 :Histogram;
  reuseGap @20 :Histogram;
  itemDraws @21 :Histogram;         # Draws an item had when it was removed.
  outcomes @22 :List(NamedCount);   # insert_correct, insert_incorrect, sample_…, remove_…
  oldestVersion @23 :Int64;
  newestVersion @24 :Int64;
  consumerStep @25 :Int64;
  pacingBalance @26 :Float64;
  waitingInserts @27 :UInt64;
  waitingSamples @28 :UInt64;
  generationSeconds @29 :Float64;
  generatedTrajectories @30 :UInt64;
  trainingSeconds @31 :Float64;
  trainedDraws @32 :UInt64;
  workers @33 :UInt32;
  trainers @34 :UInt32;
  producers @35 :UInt32;            # Connections that have inserted.
  consumers @36 :UInt32;
  views @37 :List(NamedCount);      # Live items of each view.
  groups @38 :UInt64;               # Live groups, where they are the unit.
  reservedGroups @39 :UInt64;
  pending @40 :UInt64;              # Members of reserved groups that are there; not in items.
  held @41 :UInt64;                 # Items (or groups, where they are the unit) under a lease.
  leases @42 :UInt64;
  expiredLeases @43 :UInt64;
  zeroSpread @44 :UInt64;           # Of items: of a group without reward spread.
  zeroSpreadRefused @45 :UInt64;
  sources @46 :List(Breakdown);
  lengths @47 :List(Breakdown);
  draws @48 :List(Breakdown);
  columnBytes @49 :UInt64;
  columns @50 :List(NamedCount);    # Column frames by name.
  prompts @51 :UInt64;
  expiredGroups @52 :UInt64;        # Reserved groups whose lease or deadline ended: dropped, or released as they were.
  spilledItems @53 :UInt64;         # Of items: their frames are on disk only.
  spilledBytes @54 :UInt64;         # Of bytes.
}

struct ServerStats {
  version @0 :Text;
  generation @1 :UInt64;
  uptimeSeconds @2 :Float64;
  connections @3 :UInt64;
  acceptedConnections @4 :UInt64;
  memoryUsedBytes @5 :UInt64;
  memoryLimitBytes @6 :UInt64;
  requests @7 :List(NamedCount);    # By verb.
  errors @8 :List(NamedCount);      # By code.
}

struct StatsReply {
  server @0 :ServerStats;
  buffers @1 :List(BufferStats);
}

struct Waiters {
  buffer @0 :Text;                  # Empty: all.
}

struct Waiter {
  buffer @0 :Text;
  verb @1 :Text;
  reason @2 :WaitReason;
  detail @3 :Text;                  # "12 of 64 items present"
  waitedMs @4 :UInt64;
  remainingMs @5 :UInt64;
  peer @6 :Text;
}

struct WaitersReply {
  waiters @0 :List(Waiter);
}

struct Versions {
  runId @0 :Text;                   # Empty: all runs.
}

struct VersionsReply {
  versions @0 :List(PolicyVersion); # Newest last.
}

struct Request {
  id @0 :UInt64;                    # Echoed.
  timeoutMs @1 :UInt32;             # Longest wait of this call; 0: now. The daemon may end it earlier (limits.max_wait).
  union {
    hello @2 :Hello;
    createBuffer @3 :CreateBuffer;
    alterBuffer @4 :AlterBuffer;
    dropBuffer @5 :DropBuffer;
    insert @6 :Insert;
    sample @7 :Sample;
    get @8 :Get;
    delete @9 :Delete;
    publishVersion @10 :PolicyVersion;
    waitVersion @11 :WaitVersion;
    reportCost @12 :ReportCost;
    stats @13 :Stats;
    waiters @14 :Waiters;
    versions @15 :Versions;
    ping @16 :Void;
    update @17 :Update;
    reserveGroup @18 :ReserveGroup;
    admit @19 :Admit;
    acknowledge @20 :Acknowledge;
    history @21 :History;
  }
}

struct Reply {
  id @0 :UInt64;
  code @1 :ErrorCode;
  waitReason @2 :WaitReason;
  message @3 :Text;
  union {
    none @4 :Void;                  # Errors, and verbs that only succeed.
    hello @5 :HelloReply;
    insert @6 :InsertReply;
    sample @7 :SampleReply;
    get @8 :GetReply;
    delete @9 :DeleteReply;
    version @10 :PolicyVersion;     # PublishVersion and WaitVersion.
    stats @11 :StatsReply;
    waiters @12 :WaitersReply;
    versions @13 :VersionsReply;
    update @14 :UpdateReply;
    reserveGroup @15 :ReserveGroupReply;
    admit @16 :AdmitReply;
    acknowledge @17 :AcknowledgeReply;
    history @18 :HistoryReply;
  }
}
