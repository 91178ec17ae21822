"""What a run of deploy/demo.sh measured: a table, and a picture of accuracy against compute.

  demo_report.py FOLDER        reads FOLDER/{replay,no_buffer}/log.jsonl, writes FOLDER/demo.png and FOLDER/demo.json
"""

import json
import sys
from pathlib import Path

TARGET = 0.80
RUNS = {"replay": "replay buffer", "no_buffer": "no buffer"}


def evaluations(path):
    """The evaluation lines of a trainer's log, as dicts; a line cut off by a kill is left out."""
    found = []
    for line in path.read_text().splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if record.get("event") == "evaluation":
            found.append(record)
    return found


def first_reach(points, target, key):
    """Where accuracy first reaches `target`, as a value of `key`, by linear interpolation between evaluations; None if never."""
    before = None
    for point in points:
        if point["accuracy"] >= target:
            if before is None:
                return point[key]
            share = (target - before["accuracy"]) / (point["accuracy"] - before["accuracy"])
            return before[key] + share * (point[key] - before[key])
        before = point
    return None


def common_target(runs, wanted):
    """`wanted`, or the highest accuracy that every run reached."""
    return min([wanted] + [max(point["accuracy"] for point in points) for points in runs.values()])


def summarize(runs, target):
    rows = {}
    for name, points in runs.items():
        last = points[-1]
        rows[name] = {
            "warm_start_accuracy": points[0]["accuracy"],
            "accuracy": last["accuracy"],
            "pass@16": last.get("pass@16"),
            "units_to_target": first_reach(points, target, "units"),
            "rollouts_to_target": first_reach(points, target, "rollouts"),
            "steps_to_target": first_reach(points, target, "step"),
            "units": last["units"],
            "rollouts": last["rollouts"],
            "replay_ratio": last["replay_ratio"],
            "mu_declared": last["mu_declared"],
            "mu_measured": last["mu_measured"],
            "workers_per_trainer": last["workers_per_trainer"],
            "gamma": last["gamma"],
            "seconds": last["seconds"],
        }
    return rows


def text_of(value, digits):
    return "-" if value is None else f"{value:,.{digits}f}"


def table(rows, target):
    columns = [
        ("", lambda name, row: RUNS[name]),
        ("accuracy", lambda name, row: text_of(row["accuracy"], 3)),
        ("pass@16", lambda name, row: text_of(row["pass@16"], 3)),
        (f"units to {target:.2f}", lambda name, row: text_of(row["units_to_target"], 0)),
        (f"rollouts to {target:.2f}", lambda name, row: text_of(row["rollouts_to_target"], 0)),
        ("units", lambda name, row: text_of(row["units"], 0)),
        ("rollouts", lambda name, row: text_of(row["rollouts"], 0)),
        ("replay ratio", lambda name, row: text_of(row["replay_ratio"], 2)),
        ("W/T", lambda name, row: text_of(row["workers_per_trainer"], 2)),
        ("gamma", lambda name, row: text_of(row["gamma"], 2)),
        ("mu declared", lambda name, row: text_of(row["mu_declared"], 2)),
        ("mu measured", lambda name, row: text_of(row["mu_measured"], 2)),
        ("seconds", lambda name, row: text_of(row["seconds"], 0)),
    ]
    lines = [[title for title, _ in columns]] + [[cell(name, row) for _, cell in columns] for name, row in rows.items()]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    return "\n".join("  ".join(cell.ljust(width) if i == 0 else cell.rjust(width) for i, (cell, width) in enumerate(zip(line, widths))) for line in lines)


def saved(rows, key):
    ours, theirs = rows["replay"][key], rows["no_buffer"][key]
    return None if ours is None or not theirs else 100 * (1 - ours / theirs)


def draw(runs, target, path):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.2), dpi=150)
    accuracies = [point["accuracy"] for points in runs.values() for point in points]
    lowest = max(0, min(accuracies) - 0.05)
    axes.set_ylim(lowest, min(1, max(accuracies) + 0.05))
    for name, color in (("no_buffer", "tab:gray"), ("replay", "tab:blue")):
        points = runs[name]
        axes.plot([p["units"] for p in points], [p["accuracy"] for p in points], marker="o", markersize=3, color=color, label=RUNS[name])
        reached = first_reach(points, target, "units")
        if reached is not None:
            axes.plot([reached, reached], [lowest, target], color=color, linewidth=0.8, linestyle=":")
            axes.annotate(f" {reached:.0f}", (reached, lowest + 0.01), color=color)
    axes.axhline(target, color="black", linewidth=0.6, linestyle="--")
    axes.set_xlabel(f"compute units (a step without a buffer = 1, declared mu = {runs['replay'][0]['mu_declared']:g})")
    axes.set_ylabel("accuracy on held-out prompts")
    axes.set_title("Accuracy against compute, one seed")
    axes.legend(loc="upper left")
    axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path)


def main():
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        print(__doc__.strip(), file=sys.stderr)
        return 0 if sys.argv[1:] in (["-h"], ["--help"]) else 2
    folder = Path(sys.argv[1])
    runs = {name: evaluations(folder / name / "log.jsonl") for name in RUNS}
    for name, points in runs.items():
        if not points:
            print(f"demo_report.py: {folder / name / 'log.jsonl'} has no evaluation", file=sys.stderr)
            return 1
    target = common_target(runs, TARGET)
    rows = summarize(runs, target)
    print(table(rows, target))
    start = rows["replay"]["warm_start_accuracy"]
    print(f"\nWith the buffer: from {start:.3f} after the warm start to {rows['replay']['accuracy']:.3f}, {100 * (rows['replay']['accuracy'] - start):+.0f} points.")
    note = "" if target == TARGET else f" ({TARGET:.2f} was not reached by both, so the highest that was)"
    units, rollouts = saved(rows, "units_to_target"), saved(rows, "rollouts_to_target")
    if units is not None:
        print(f"To accuracy {target:.2f}{note}: {units:.0f} % of the compute saved by the declared mu, {rollouts:.0f} % of the rollouts.")
    print("One seed says little by itself: single runs differ by tens of units.")
    try:
        draw(runs, target, folder / "demo.png")
        print(f"Picture: {(folder / 'demo.png').resolve()}")
    except ImportError as error:
        print(f"No picture: {error}", file=sys.stderr)
    (folder / "demo.json").write_text(json.dumps({"target": target, "units_saved_percent": units, "rollouts_saved_percent": rollouts, "runs": rows}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
