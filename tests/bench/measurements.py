"""What the programs behind tests/figures.sh share: how a figure is told, and how a bench is run for the JSON it writes."""

import argparse
import json
import math
import pathlib
import subprocess
import sys
import tempfile

AT_LEAST, AT_MOST = "≥", "≤"


def say(text):
    """Everything but the figures."""
    print(f"{pathlib.Path(sys.argv[0]).stem}: {text}", file=sys.stderr, flush=True)


def argument_parser(description, preset="release"):
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build-dir", type=lambda text: pathlib.Path(text).resolve(), default=f"build/{preset}")
    parser.add_argument("--quick", action="store_true", help="shorter measurements: to see that they run")
    return parser


def figure(name, value, direction, goal):
    """Prints `name  measured  goal  ok|short`; whether the goal is reached. A value of nan could not be measured."""
    reached = value >= goal if direction == AT_LEAST else value <= goal
    shown = "not measured" if math.isnan(value) else f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    goal_shown = f"{goal:.0f}" if goal >= 1000 else f"{goal:g}"
    print(f"{name:<40}  {shown:>12}  {direction} {goal_shown}  {'ok' if reached else 'short'}", flush=True)
    return reached


def tell(figures):
    """Prints each of (name, how to measure it, direction, goal); the exit status. Measuring raises LookupError where it cannot."""
    short = False
    for name, measure, direction, goal in figures:
        try:
            value = measure()
        except LookupError as error:
            say(f"{name}: {error}")
            value = math.nan
        short |= not figure(name, value, direction, goal)
    return 1 if short else 0


def run_for_json(command, timeout=1800):
    """Runs it, "{json}" in it being a file, with its standard output on our standard error; the JSON in the file, or None."""
    with tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory) / "result.json"
        command = [str(word).replace("{json}", str(path)) for word in command]
        say("running " + " ".join(command))
        try:
            subprocess.run(command, stdin=subprocess.DEVNULL, stdout=sys.stderr, check=True, timeout=timeout)
            return json.loads(path.read_text())
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            say(f"failed: {error}")
            return None
