#!/usr/bin/env bash
# Measures the figures of one topic and says which reach their goal. See --help.
set -euo pipefail
shopt -s extglob # for the patterns in CheckFigures

usage() {
  cat <<TEXT
usage: tests/figures.sh TOPIC [--quick]

Builds the release preset (training for main-job) and measures the figures of TOPIC. Each is one line on standard output:

  name  measured  goal  ok|short

in aligned columns with at least two spaces between them; what else there is to say goes to standard error.

  --quick  shorter measurements: to see that they run, not for their values
  --help   this text

Topics: ${topics[*]:-none yet}

A topic is an executable tests/bench/figures_TOPIC (or .py, .sh). It is called as
  figures_TOPIC --build-dir build/PRESET [--quick]
and prints the lines above; the alignment is done here.

Exit status: 0 every figure is ok, 1 one is short or could not be measured, 2 wrong arguments.
TEXT
}

cd "$(dirname "${BASH_SOURCE[0]}")/.."
# ${#text} counts characters, not bytes: a goal may be written with a sign like ≥. And figures appear as they are measured.
export LC_ALL=C.UTF-8 PYTHONUNBUFFERED=1

topics=()
for file in tests/bench/figures_*; do
  if [[ -f "$file" && -x "$file" ]]; then
    file="${file##*/figures_}"
    topics+=("${file%.*}")
  fi
done

topic=""
quick=()
for argument in "$@"; do
  case "$argument" in
    --quick) quick=(--quick) ;;
    -h | --help)
      usage
      exit 0
      ;;
    *)
      if [[ -n "$topic" || ! "$argument" =~ ^[a-z0-9_-]+$ ]]; then
        echo "figures.sh: unexpected argument \"$argument\"" >&2
        usage >&2
        exit 2
      fi
      topic="$argument"
      ;;
  esac
done
if [[ -z "$topic" ]]; then
  usage >&2
  exit 2
fi

program=""
for candidate in "tests/bench/figures_$topic" "tests/bench/figures_$topic".{py,sh}; do
  if [[ -f "$candidate" && -x "$candidate" ]]; then
    program="$candidate"
    break
  fi
done
if [[ -z "$program" ]]; then
  echo "figures.sh: topic $topic has no figures yet; known topics: ${topics[*]:-none}" >&2
  exit 2
fi

preset=release
if [[ "$topic" == main-job ]]; then
  preset=training
  deploy/install_torch.sh --plot >&2
fi
# Nothing is compiled when nothing changed.
echo "figures.sh: building build/$preset" >&2
{
  cmake --preset "$preset"
  cmake --build --preset "$preset"
} </dev/null >&2

# Reads the figures, prints them aligned as they come, and fails unless there is at least one and every one is ok.
CheckFigures() {
  local line fields column padding count=0 short=0 malformed=0
  local widths=(56 16 16) # A longer field pushes its own line only.
  while IFS= read -r line || [[ -n "$line" ]]; do
    line="${line%%*([[:space:]])}"
    # Two or more spaces, or a tab, end a field; single spaces belong to it.
    IFS=$'\t' read -r -a fields <<<"${line//@(  *( )|+($'\t'))/$'\t'}"
    if [[ ${#fields[@]} -ne 4 || ! "${fields[3]}" =~ ^(ok|short)$ || "$line" != "${line##[[:space:]]}" ]]; then
      echo "figures.sh: not of the form \"name  measured  goal  ok|short\": $line" >&2
      malformed=$((malformed + 1))
      continue
    fi
    for column in 0 1 2; do # printf's own width would count bytes
      padding=$((widths[column] - ${#fields[column]}))
      printf '%s%*s  ' "${fields[column]}" $((padding > 0 ? padding : 0)) ""
    done
    printf '%s\n' "${fields[3]}"
    count=$((count + 1))
    if [[ "${fields[3]}" == short ]]; then short=$((short + 1)); fi
  done
  echo "figures.sh: $count figures, $short short, $malformed malformed lines" >&2
  [[ $count -gt 0 && $short -eq 0 && $malformed -eq 0 ]]
}

statuses=(0 0)
"$program" --build-dir "build/$preset" "${quick[@]}" </dev/null | CheckFigures || statuses=("${PIPESTATUS[@]}")
if [[ ${statuses[0]} -ne 0 ]]; then echo "figures.sh: $program failed with exit status ${statuses[0]}" >&2; fi
if [[ "${statuses[*]}" != "0 0" ]]; then exit 1; fi
