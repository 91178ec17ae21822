#!/usr/bin/env python3
"""The figures of the main job: parity with transformers, speed against it, what the demo gains, and how long it takes.

  figures_main-job.py --build-dir build/training [--quick]

Speed is a ratio to transformers + PyTorch eager on the same weights, in turn, best of several rounds each. transformers lives in a
Python environment of its own (REPLAY_TRANSFORMERS_VENV, default ~/.cache/replay/venv-transformers), which this makes where it is
missing. The demo runs for three seeds, as deploy/demo.sh does for a user; with --quick once, in its short form.
"""

import json
import os
import pathlib
import re
import subprocess
import tempfile
import time

from measurements import AT_LEAST, AT_MOST, argument_parser, figure, say

ROOT = pathlib.Path(__file__).resolve().parents[2]
TRANSFORMERS = "4.57.6"
SHAPES = {"tiny": (64, 8, 24), "20m": (16, 32, 48)}  # rows, prompt, answer


def run(*command, **options):
    done = subprocess.run(list(map(str, command)), stdin=subprocess.DEVNULL, capture_output=True, text=True, **options)
    if done.returncode != 0:
        raise SystemExit(f"{command[0]} ended with {done.returncode}:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return done.stdout


def transformers_python():
    """A Python that can import torch and transformers, without the gigabytes of libraries that a GPU would need."""
    venv = pathlib.Path(os.environ.get("REPLAY_TRANSFORMERS_VENV", pathlib.Path.home() / ".cache/replay/venv-transformers"))
    python = venv / "bin/python"
    check = [python, "-c", f"import torch, transformers; assert transformers.__version__ == '{TRANSFORMERS}'"]
    if python.exists() and subprocess.run(check, capture_output=True).returncode == 0:
        return python
    say(f"installing transformers {TRANSFORMERS} into {venv}")
    if not python.exists():
        run("/usr/bin/python3", "-m", "venv", venv)
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    run(*pip, "--no-deps", "torch==2.11.0", "nvidia-cuda-runtime==13.0.96", "nvidia-cuda-cupti==13.0.85", "nvidia-cufile==1.20.0.107",
        "nvidia-cusparselt-cu13==0.8.0", "nvidia-nvshmem-cu13==3.4.5")
    run(*pip, f"transformers=={TRANSFORMERS}", "numpy<3", "jinja2", "networkx", "sympy")
    if subprocess.run(check, capture_output=True).returncode != 0:
        say("that PyTorch misses libraries of CUDA here: installing it whole")
        run(*pip, "torch==2.11.0")
        run(*check)
    return python


def parity(build):
    output = run(build / "model_test", "--gtest_filter=*Parity.LogitsAreThoseOfTransformers*")
    for name, value in re.findall(r"max_abs_logit_difference (\w+) (\S+)", output):
        figure(f"parity_{name}", float(value), AT_MOST, 1e-4)


def speed(build, quick):
    python, seconds, rounds = transformers_python(), 1 if quick else 3, 2 if quick else 5
    goals = {("generate", "tiny"): 1.5, ("generate", "20m"): 1.1, ("train", "tiny"): 1.0, ("train", "20m"): 1.0}
    with tempfile.TemporaryDirectory() as scratch:
        for size, (rows, prompt, answer) in SHAPES.items():
            folder = pathlib.Path(scratch) / size
            run(build / "training_bench", "--model", folder, "--make", size)
            for verb in ("generate", "train"):
                ours, theirs, shares = [], [], []
                for _ in range(rounds):
                    done = json.loads(run(build / "training_bench", "--model", folder, "--verb", verb, "--seconds", seconds, "--threads", 1,
                                          "--rows", rows, "--prompt", prompt, "--answer", answer))
                    ours.append(done["tokens_per_second"])
                    shares.append(done.get("bandwidth_share", 0))
                    done = json.loads(run(python, ROOT / "tests/bench/transformers_bench.py", folder, verb, seconds, 1, rows, prompt, answer))
                    theirs.append(done["tokens_per_second"])
                ratio, goal = max(ours) / max(theirs), goals[verb, size]
                say(f"{verb} {size}: {max(ours):,.0f} tokens/s, transformers {max(theirs):,.0f}")
                figure(f"{verb}_{size}_vs_transformers", ratio, AT_LEAST, goal)
                if verb == "generate":
                    figure(f"decode_{size}_memory_bandwidth_share", max(shares), AT_LEAST, 0)


def demo(quick):
    with tempfile.TemporaryDirectory() as scratch:
        gains = []
        for seed in (1,) if quick else (1, 2, 3):
            folder = pathlib.Path(scratch) / f"demo{seed}"
            began = time.monotonic()
            text = run(ROOT / "deploy/demo.sh", "--no-install", "--seed", seed, "--dir", folder, *(["--quick"] if quick else []))
            minutes = (time.monotonic() - began) / 60
            say(text[text.index("==== results"):])
            result = json.loads((folder / "demo.json").read_text())
            replay = result["runs"]["replay"]
            gains.append(100 * (replay["accuracy"] - replay["warm_start_accuracy"]))
            if quick:
                figure("demo_quick_minutes", minutes, AT_MOST, 4)
                continue
            figure(f"demo_points_gained_seed_{seed}", gains[-1], AT_LEAST, 30)
            figure(f"demo_minutes_seed_{seed}", minutes, AT_MOST, 12)
            steps = [json.loads(line) for line in (folder / "replay/log.jsonl").read_text().splitlines()]
            steps = [step for step in steps if step["event"] == "step"]
            share = 100 * sum(step["waited_seconds"] for step in steps) / sum(step["seconds"] for step in steps)
            figure(f"waiting_for_data_percent_seed_{seed}", share, AT_MOST, 2)


def main():
    arguments = argument_parser(__doc__, "training").parse_args()
    build = arguments.build_dir
    parity(build)
    speed(build, arguments.quick)
    demo(arguments.quick)


if __name__ == "__main__":
    main()
