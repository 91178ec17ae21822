#!/usr/bin/env bash
# Installs what is needed, builds and runs every test. What a change must pass. See --help.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: tests/run.sh [--quick | --full] [--no-install] [--jobs N]

Stages, in this order; the first that fails ends the run with its name and a non-zero exit status:

  install  deploy/install_dependencies.sh
  checks   layering of the includes and the other rules of the tree; clang-format
  dev      g++, optimised: build, all tests
  asan     AddressSanitizer and UndefinedBehaviorSanitizer: build, all tests
  tsan     ThreadSanitizer: build, all tests
  training LibTorch (deploy/install_torch.sh), generator and trainer: build, their tests
  clang    the same code by another compiler: build, all tests (only with --full)
  tidy     clang-tidy over all sources                        (only with --full)
  fuzz     libFuzzer, one minute for each fuzz target         (only with --full)

  --quick       only install, checks and dev: no LibTorch
  --full        everything
  --no-install  leave out install
  --jobs N      compile N files at a time (default: one for each processor)
  --help        this text

The build trees are build/STAGE. The last lines are the summaries that pytest and ctest printed themselves.
TEXT
}

scope=normal
install=yes
jobs="$(nproc)"
while [[ $# -gt 0 ]]; do
  case "$1" in
    --quick) scope=quick ;;
    --full) scope=full ;;
    --no-install) install=no ;;
    --jobs)
      if [[ ! "${2:-}" =~ ^[1-9][0-9]*$ ]]; then
        echo "run.sh: --jobs needs a number from 1" >&2
        exit 2
      fi
      jobs="$2"
      shift
      ;;
    -h | --help)
      usage
      exit 0
      ;;
    *)
      echo "run.sh: unknown argument \"$1\"" >&2
      usage >&2
      exit 2
      ;;
  esac
  shift
done

cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec </dev/null # Nothing may ask a question, and nothing behaves differently with a terminal.
export LC_ALL=C.UTF-8 PYTHONDONTWRITEBYTECODE=1
# One cache for every clone on a machine: paths below this tree count as relative.
export CCACHE_BASEDIR="$PWD" CCACHE_NOHASHDIR=1

# --- Stages ----------------------------------------------------------------------------------------------------------------
# A stage is a plain sequence of commands between Begin and End: as the condition of an `if` or left of `||`, a function would
# go on after a failing command. What failed is therefore told by the EXIT trap, which knows the open stage.
stage=""
stage_began=0
scratch="$(mktemp -d)"
readonly scratch
summary="$scratch/summary"
: >"$summary"

Begin() {
  stage="$1"
  stage_began=$SECONDS
  printf '\n==== %s: %s\n' "$1" "$2"
}

End() {
  printf -- '---- %s: passed in %d s\n' "$stage" $((SECONDS - stage_began))
  stage=""
}

# shellcheck disable=SC2317  # called by the trap
Finish() {
  local status=$?
  trap - EXIT
  if [[ -s "$summary" ]]; then
    printf '\n==== summary\n'
    cat "$summary"
  fi
  rm -rf "$scratch"
  if [[ $status -ne 0 ]]; then
    printf 'FAILED in stage "%s" after %d s (exit status %d)\n' "${stage:-start}" $((SECONDS - stage_began)) "$status" >&2
  fi
  exit "$status"
}
trap Finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# Runs a command, shows its output, and keeps the lines in which a test runner sums itself up.
WithSummary() {
  local status=0
  "$@" 2>&1 | tee "$scratch/output" || status=$?
  printf '%s:\n' "$stage" >>"$summary"
  grep -E '^(=+ )?[0-9]+ (passed|failed|error)|^[0-9]+% tests passed|^Total Test time|^No tests were found' "$scratch/output" \
    >>"$summary" || echo "(no summary)" >>"$summary"
  return "$status"
}

# Everything git knows or would add, so that a new file is checked before it is committed. Names on stdin and stdout end in NUL.
SourceFiles() {
  # safe.directory: the clone may belong to another user than the one who tests it.
  if git -c safe.directory='*' rev-parse --is-inside-work-tree >/dev/null 2>&1; then
    git -c safe.directory='*' ls-files -co --exclude-standard -z -- "$@"
  else # an unpacked archive
    local pattern
    for pattern in "$@"; do find . -path ./build -prune -o -type f -path "./$pattern" -print0; done
  fi | while IFS= read -r -d '' file; do
    if [[ -e "$file" ]]; then printf '%s\0' "$file"; fi # not deleted in the work tree
  done
}

# A Python that has pytest. The distribution's own comes first: the package python3-pytest belongs to it, whatever other
# python3 is first in PATH.
PythonWithPytest() {
  local candidate
  for candidate in /usr/bin/python3 python3; do
    if "$candidate" -c 'import pytest' >/dev/null 2>&1; then
      echo "$candidate"
      return
    fi
  done
  echo "run.sh: no python3 has pytest (package python3-pytest)" >&2
  return 1
}

# Formatting differs between versions of clang-format: only the one that .clang-format was written for says anything.
CheckFormat() {
  local candidate
  for candidate in clang-format-14 clang-format; do
    if "$candidate" --version 2>/dev/null | grep -q 'version 14\.'; then
      SourceFiles '*.h' '*.cc' '*.cu' | xargs -0 -r "$candidate" --style=file --dry-run -Werror
      echo "clang-format: every file is formatted"
      return
    fi
  done
  echo "clang-format: NOT CHECKED, there is no clang-format 14 here"
}

# The sanitizers of these compilers fail at random where the kernel randomises more address bits than they expect
# (vm.mmap_rnd_bits above 28): switch randomisation off for them where that is allowed.
fixed_addresses=()
if setarch "$(uname -m)" -R true 2>/dev/null; then fixed_addresses=(setarch "$(uname -m)" -R); fi

# Configures, builds and tests one preset; the arguments after it go in front of the commands that run built programs.
BuildAndTest() {
  local preset="$1"
  shift
  cmake --preset "$preset"
  # The build, too, runs test programs, to list their tests.
  "$@" cmake --build --preset "$preset" --parallel "$jobs"
  # Two at a time, since some tests measure deadlines. The timeout is for tests that set none.
  WithSummary "$@" ctest --preset "$preset" --output-on-failure --no-tests=error --parallel 2 --timeout 300
}

# --- The run ---------------------------------------------------------------------------------------------------------------
if [[ $install == yes ]]; then
  Begin install "packages of the distribution"
  deploy/install_dependencies.sh
  End
fi

Begin checks "the rules of the tree, and formatting"
python="$(PythonWithPytest)"
WithSummary "$python" -m pytest -q -p no:cacheprovider tests/layering_test.py
CheckFormat
End

Begin dev "g++, optimised"
BuildAndTest dev
End

if [[ $scope != quick ]]; then
  export ASAN_OPTIONS="detect_leaks=1:halt_on_error=1:strict_string_checks=1:check_initialization_order=1"
  export UBSAN_OPTIONS="print_stacktrace=1:halt_on_error=1"
  export TSAN_OPTIONS="halt_on_error=1:second_deadlock_stack=1"
  export REPLAY_FLOOD_REQUESTS=5000 # a request costs a sanitizer's daemon twenty times as much
  if [[ -e tests/support/tsan.supp ]]; then TSAN_OPTIONS+=":suppressions=$PWD/tests/support/tsan.supp"; fi

  Begin asan "AddressSanitizer and UndefinedBehaviorSanitizer"
  BuildAndTest asan "${fixed_addresses[@]}"
  End

  Begin tsan "ThreadSanitizer"
  BuildAndTest tsan "${fixed_addresses[@]}"
  End

  Begin training "generator and trainer, with LibTorch"
  unset REPLAY_FLOOD_REQUESTS
  deploy/install_torch.sh
  BuildAndTest training
  End
fi

if [[ $scope == full ]]; then
  Begin clang "clang, as a second compiler"
  BuildAndTest clang
  End

  Begin tidy "clang-tidy"
  # By the commands of the clang build, which are the ones clang-tidy understands.
  SourceFiles 'schema/*.cc' 'storage/*.cc' 'server/*.cc' 'client/*.cc' |
    xargs -0 -r -n 1 -P "$jobs" clang-tidy -p build/clang --quiet
  End

  Begin fuzz "libFuzzer, a minute for each target"
  cmake --preset fuzz
  "${fixed_addresses[@]}" cmake --build --preset fuzz --parallel "$jobs"
  shopt -s nullglob
  targets=(build/fuzz/*_fuzz)
  if [[ ${#targets[@]} -eq 0 ]]; then
    echo "run.sh: the fuzz build made no build/fuzz/*_fuzz" >&2
    false
  fi
  for target in "${targets[@]}"; do
    name="$(basename "$target")"
    mkdir -p "build/fuzz/corpus/$name"
    seeds=()
    if [[ -d "tests/fuzz/$name" ]]; then seeds=("tests/fuzz/$name"); fi # kept inputs; new ones go to the first folder
    echo "$name:"
    "${fixed_addresses[@]}" "$target" -max_total_time=60 -timeout=10 -rss_limit_mb=2048 -detect_leaks=0 \
      -artifact_prefix="build/fuzz/$name-" "build/fuzz/corpus/$name" "${seeds[@]}"
  done
  End
fi

printf '\nAll stages passed in %d s.\n' "$SECONDS"
