@0xd1f6a3c5b8e24790;

# One rollout, as the generator built it: the core frame. The frame on the wire is the frame in memory and
# the frame on disk, so fields may be added at the end and never renumbered, removed or given another meaning.
#
# Lengths: tokenIds, lossMask, behaviourLogprobs and a per-token advantage all have L entries, L = number of tokens.
# Heavy data (routed experts, images, reference log-probs) does not belong here: it travels in column frames.

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("replay::schema");

enum Correctness {
  unknown @0;   # Never counted as correct.
  no @1;
  yes @2;
}

enum Status {
  completed @0;
  truncatedLength @1;
  truncatedTurns @2;
  aborted @3;
  failedParse @4;
  failedTimeout @5;
  failedEnvironment @6;
}

enum Role {
  system @0;
  user @1;
  assistant @2;
  tool @3;
}

struct Segment {
  # Tokens [begin, end) were written by `role`; `trainable` ones carry a gradient.
  begin @0 :UInt32;
  end @1 :UInt32;
  role @2 :Role;
  trainable @3 :Bool;
}

struct VersionSegment {
  # Tokens [begin, end) were sampled from policy `version`. Weights may change in the middle of a rollout.
  begin @0 :UInt32;
  end @1 :UInt32;
  version @2 :Int64;
}

struct NamedReward {
  name @0 :Text;
  value @1 :Float32;
}

struct Tag {
  # A small scalar to filter by.
  name @0 :Text;
  union {
    text @1 :Text;
    integer @2 :Int64;
    real @3 :Float64;
    flag @4 :Bool;
  }
}

struct Trajectory {
  trajectoryId @0 :Text;        # Chosen by the client, 1..128 bytes. A second live item of that id is refused.
  runId @1 :Text;
  epoch @2 :UInt64;             # Of the run: raised when a trainer restarts from an older step.
  groupId @3 :Text;             # Empty: belongs to no group.
  groupSize @4 :UInt32;
  indexInGroup @5 :UInt32;      # Never inferred from position.
  rolloutId @6 :Text;           # Parent of several training rows that came from one rollout.
  partIndex @7 :UInt32;
  partCount @8 :UInt32;
  tokenIds @9 :List(Int32);     # [L] prompt, response and tool text.
  promptLength @10 :UInt32;     # Used when there are no segments.
  segments @11 :List(Segment);
  lossMask @12 :List(UInt8);    # [L] 0 or 1.
  behaviourLogprobs @13 :List(Float32);  # [L] bit-exact; NaN where nothing was generated. Empty: not recorded.
  versionSegments @14 :List(VersionSegment);
  reward @15 :Float32;
  namedRewards @16 :List(NamedReward);
  correct @17 :Correctness;     # Said by the producer, never guessed from reward > 0.
  advantage :union {
    none @18 :Void;
    scalar @19 :Float32;
    perToken @20 :List(Float32);  # [L]
  }
  status @21 :Status;
  source @22 :Text;             # Environment or dataset.
  datasetIndex @23 :Int64 = -1;
  temperature @24 :Float32 = 1;
  createdAtUnixNs @25 :Int64;
  tags @26 :List(Tag);
  opaque @27 :Data;             # Never executed, never unpickled.
  columnNames @28 :List(Text);  # Column frames inserted together with this core frame.
  priority @29 :Float32 = 1;    # At first, for prioritized draws: 0 (never drawn) to 1e9.
}
