#!/usr/bin/env bash
# A model learns through the buffer, and the same model without one: what the paper compares, in minutes. See --help.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: deploy/demo.sh [--quick] [--seed N] [--dir FOLDER] [--config FOLDER] [--no-install]

Installs what is missing, builds, and runs on this machine's CPU:

  1. a warm start: a tiny transformer learns from demonstrations that are wrong on purpose more often than right
  2. replayd + 2 generators + trainer with a replay buffer: 2,268 rollouts, positive bias 0.25, each drawn 1.76 times on average
  3. the same without one: a queue that hands out the freshest rollouts, each once

and ends with a table (accuracy, rollouts, compute) and a picture of accuracy against compute.

  --quick       a shorter warm start and a quarter of the training: to see it work, its figures promise nothing
  --seed N      another seed (default 1)
  --dir FOLDER  where the run's files go (default build/demo); what an earlier run left there is replaced
  --config FOLDER
                start from the configuration files there (default deploy/config/demo)
  --no-install  leave out installing
  --help        this text

About 6 minutes on 2 cores after the build, --quick 2. Ctrl-C stops everything. The processes are the shipped binaries; their
configuration files are copied to the run's folder from deploy/config/demo, each log is *.log or */log.jsonl in it.
TEXT
}

quick=no
seed=1
dir=
config=
install=yes
while [[ $# -gt 0 ]]; do
  case "$1" in
    --quick) quick=yes ;;
    --no-install) install=no ;;
    --seed | --dir | --config)
      if [[ $# -lt 2 || -z "$2" ]]; then
        echo "demo.sh: $1 needs a value" >&2
        exit 2
      fi
      if [[ "$1" == --dir ]]; then
        dir="$(realpath -m "$2")"
      elif [[ "$1" == --config ]]; then
        config="$(realpath -m "$2")"
      elif [[ "$2" =~ ^[0-9]{1,9}$ ]]; then
        seed="$2"
      else
        echo "demo.sh: --seed is \"$2\": must be a whole number" >&2
        exit 2
      fi
      shift
      ;;
    -h | --help)
      usage
      exit 0
      ;;
    *)
      echo "demo.sh: unknown argument \"$1\"" >&2
      usage >&2
      exit 2
      ;;
  esac
  shift
done

cd "$(dirname "${BASH_SOURCE[0]}")/.."
readonly root="$PWD" bin="$PWD/build/training"
readonly dir="${dir:-$root/build/demo}" config="${config:-$root/deploy/config/demo}"
export CCACHE_BASEDIR="$root" CCACHE_NOHASHDIR=1

if [[ -d "$dir" && -n "$(ls -A "$dir")" && ! -e "$dir/.replay-demo" ]]; then
  echo "demo.sh: $dir is not empty, and not of an earlier demo: give an empty or a new folder with --dir" >&2
  exit 2
fi

Say() { printf '\n==== %s\n' "$*"; }

# --- Install and build -----------------------------------------------------------------------------------------------------
if [[ $install == yes ]]; then
  Say "installing what is missing"
  deploy/install_dependencies.sh
  deploy/install_torch.sh --plot
fi
Say "building"
cmake --preset training >/dev/null
cmake --build --preset training --target replayd replayctl generator trainer

# --- The run ---------------------------------------------------------------------------------------------------------------
mkdir -p "$dir"
cd "$dir"
touch .replay-demo  # what stands here may be replaced by the next run
rm -rf warm weights replay no_buffer demo.png demo.json ./*.log
cp "$config"/{replayd,generator}.json .
if [[ $quick == yes ]]; then
  cp "$config/trainer_quick.json" trainer.json
else
  cp "$config/trainer.json" .
fi

address="$(sed -nE 's/.*"listen": *\["([^"]+)".*/\1/p' replayd.json)"
metrics="$(sed -nE 's/.*"metrics_listen": *"([^"]+)".*/\1/p' replayd.json)"
readonly address metrics
if [[ -z "$address" || -z "$metrics" ]]; then
  echo "demo.sh: $config/replayd.json: server.listen and server.metrics_listen must each name an address, on a line of their own" >&2
  exit 2
fi

children=()
# shellcheck disable=SC2317  # called by the trap
StopAll() {
  local status=$? pid
  trap - EXIT INT TERM
  for pid in "${children[@]}"; do kill "$pid" 2>/dev/null || true; done
  wait || true
  exit "$status"
}
trap StopAll EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# Runs the trainer in the foreground of this script, so that Ctrl-C and a failure of it end the script.
Trainer() {
  "$bin/trainer" --config trainer.json --seed "$seed" "$@" &
  local trainer=$!
  children+=("$trainer")
  wait "$trainer"
}

Say "warm start on demonstrations, about three in ten of them right"
Trainer --warm-start

Say "replayd on $address (build/training/replayctl --server $address stats), metrics on http://$metrics/metrics"
"$bin/replayd" --config replayd.json 2>replayd.log &
daemon=$!
children+=("$daemon")
for ((attempt = 0; ; ++attempt)); do
  if "$bin/replayctl" --server "$address" ping >/dev/null 2>&1; then break; fi
  if ! kill -0 "$daemon" 2>/dev/null || [[ $attempt -ge 100 ]]; then
    echo "demo.sh: replayd does not answer; $dir/replayd.log says:" >&2
    cat replayd.log >&2
    exit 1
  fi
  sleep 0.1
done

# Both from the same weights, with the same seed and learning rate, one after the other.
for run in replay no_buffer; do
  if [[ $run == replay ]]; then
    Say "training with a replay buffer"
  else
    Say "training without one"
  fi
  generators=()
  for number in 1 2; do
    "$bin/generator" --config generator.json --buffer "$run" --run-id "$run" --seed $((100 * seed + number)) 2>"generator-$run-$number.log" &
    generators+=($!)
  done
  children+=("${generators[@]}")
  Trainer --buffer "$run" --run-id "$run" --weights "weights/$run" --output "$run"
  kill "${generators[@]}" 2>/dev/null || true
  wait "${generators[@]}" || true
done

Say "results"
# matplotlib is in the environment that install_torch.sh made; without it there is a table and no picture.
python="${REPLAY_TORCH_VENV:-$HOME/.cache/replay/venv-torch}/bin/python"
if [[ ! -x "$python" ]]; then python=python3; fi
"$python" "$root/deploy/demo_report.py" "$dir"
