#pragma once
// The injections, one function each, named as their sub-commands; README.md says what each proves. Each returns the exit status.

#include "tests/fault/harness.h"

namespace replay::fault {

int RunKills(const Options& options);       // kills.cc
int RunPowerCuts(const Options& options);   // power_cuts.cc
int RunCutReplies(const Options& options);  // cut_replies.cc
int RunDamage(const Options& options);      // damage.cc
int RunDiskFull(const Options& options);    // disk_full.cc
int RunLocks(const Options& options);       // locks.cc

}  // namespace replay::fault
