#!/usr/bin/env python3
"""Measures the daemon's figures: one line each, `name  measured  goal  ok|short`.

Called by tests/figures.sh, which builds first. Everything else that is said goes to standard error. Throughput figures are
ratios of replayd to something else that ran in turns with it, pinned alike (see replay_bench --help); where a figure can be
measured over TCP and Unix sockets, or on one core and on two, the worse one counts.
"""

import argparse
import json
import math
import pathlib
import subprocess
import sys
import tempfile

AT_LEAST, AT_MOST = "≥", "≤"


def say(text):
    print(f"figures_daemon: {text}", file=sys.stderr, flush=True)


class Measurements:
    """Runs the benches, each once, and hands out what they wrote."""

    def __init__(self, build_dir, quick):
        self.build_dir = pathlib.Path(build_dir).resolve()
        self.quick = quick
        self.results = {}

    def replay_bench(self, command, *arguments):
        if command not in self.results:
            bench, replayd = self.build_dir / "replay_bench", self.build_dir / "replayd"
            self.results[command] = self._run([bench, "--replayd", replayd, "--json", "{json}", command, *arguments])
        result = self.results[command]
        if result is None:
            raise LookupError(f"{command} was not measured")
        return result[command]

    def simple(self, command):
        return self.replay_bench(command, *(["--quick"] if self.quick else []))

    def throughput(self, system, field="ratio", **wanted):
        """The value of `field` for `system` in each case that has the wanted properties."""
        repeats = ["--repeats", "3", "--slice", "0.25"] if self.quick else ["--repeats", "9", "--slice", "0.4"]
        cases = [case for case in self.replay_bench("throughput", *repeats) if wanted.items() <= case.items()]
        values = [case["systems"][system][field] for case in cases if system in case["systems"]]
        if not values:
            raise LookupError(f"no case {wanted} with {system}")
        return values

    def decision(self, name):
        """One row of decision_bench, medians over its repetitions; with cpu_ns_per_draw, which other load does not raise."""
        if "decision" not in self.results:
            repetitions = 3 if self.quick else 7
            self.results["decision"] = self._run(
                [
                    self.build_dir / "decision_bench",
                    "--benchmark_out={json}",
                    "--benchmark_out_format=json",
                    "--benchmark_filter=^(draw/uniform|touch)/",
                    f"--benchmark_repetitions={repetitions}",
                    "--benchmark_report_aggregates_only=true",
                    f"--benchmark_min_time={0.05 if self.quick else 0.3}",
                ]
            )
        if self.results["decision"] is None:
            raise LookupError("decision_bench was not measured")
        for row in self.results["decision"]["benchmarks"]:
            if row.get("run_name") == name and row.get("aggregate_name") == "median":
                return row | {"cpu_ns_per_draw": row["ns_per_draw"] * row["cpu_time"] / row["real_time"]}
        raise LookupError(f"decision_bench has no row {name}")

    def _run(self, command):
        """Runs it with its standard output on our standard error; the JSON it wrote, or None."""
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory) / "result.json"
            command = [str(word).replace("{json}", str(path)) for word in command]
            say("running " + " ".join(command))
            try:
                subprocess.run(command, stdin=subprocess.DEVNULL, stdout=sys.stderr, check=True, timeout=1800)
                return json.loads(path.read_text())
            except (OSError, subprocess.SubprocessError, ValueError) as error:
                say(f"failed: {error}")
                return None


def draw_costs(measured, what):
    """ns at 10^3 … 10^7 items: of a draw, or of the least it has to do with the same memory ("touch")."""
    costs = [measured.decision(f"{what}/{10**power}")["cpu_ns_per_draw"] for power in range(3, 8)]
    say(f"{what}, ns at 10^3 … 10^7 items: " + ", ".join(f"{cost:.0f}" for cost in costs))
    return costs


def draw_cost_spread(measured):
    costs = draw_costs(measured, "draw/uniform")
    return max(costs) / min(costs)


def draw_cost_beyond_misses(measured):
    """How much more a draw costs at some size than at 10^3 items and the misses of the caches there together.

    Position, row and frame have to be touched, whatever the decision.
    """
    draws, touches = draw_costs(measured, "draw/uniform"), draw_costs(measured, "touch")
    return max(draw / (draws[0] + touch - touches[0]) for draw, touch in zip(draws, touches))


def figures(m):
    """(name, how to measure it, direction, goal). The measurements run when they are first asked for."""
    small = {"kind": "insert", "same_core": True, "transport": "unix", "payload_kib": 4}
    large = {"kind": "insert", "transport": "unix", "payload_kib": 64, "depth": 16}
    sample = {"kind": "sample", "payload_kib": 64, "batch": 256}
    near, far = sample | {"same_core": True}, sample | {"same_core": False}

    ping_pong = {"kind": "insert", "same_core": True, "payload_kib": 4, "depth": 1}

    def insert_4k(depth, system):
        return lambda: min(m.throughput(system, **small, depth=depth))

    return [
        ("sample_256x64K_vs_writev", lambda: min(m.throughput("blocking", **far)), AT_LEAST, 0.90),
        ("sample_256x64K_vs_writev_cpu", lambda: max(m.throughput("blocking", "cpu_ratio", **far)), AT_MOST, 1.15),
        ("sample_vs_redis_mget_hiredis", lambda: min(m.throughput("redis hiredis", **near)), AT_LEAST, 3.0),
        ("sample_vs_redis_drained", lambda: min(m.throughput("redis drained", **near)), AT_LEAST, 1.3),
        ("insert_64K_d16_vs_redis_set_unix", lambda: min(m.throughput("redis raw", **large)), AT_LEAST, 1.0),
        ("insert_4K_d128_vs_redis_raw", insert_4k(128, "redis raw"), AT_LEAST, 1.3),
        ("insert_4K_d16_vs_redis_raw", insert_4k(16, "redis raw"), AT_LEAST, 1.2),
        ("insert_4K_d128_vs_hiredis", insert_4k(128, "redis hiredis"), AT_LEAST, 2.0),
        ("insert_4K_d16_vs_hiredis", insert_4k(16, "redis hiredis"), AT_LEAST, 1.8),
        ("insert_4K_d1_vs_blocking_pingpong", lambda: min(m.throughput("blocking", **ping_pong)), AT_LEAST, 0.85),
        # The prototype behind the goal was measured over TCP.
        ("insert_4K_d1_vs_blocking_pingpong_tcp", lambda: min(m.throughput("blocking", **ping_pong, transport="tcp")), AT_LEAST, 0.85),
        ("instructions_per_4K_insert", lambda: m.simple("instructions")["per_insert"], AT_MOST, 6000),
        (
            "instructions_per_4K_insert_no_checksum",
            lambda: m.simple("instructions")["per_insert_without_checksum"],
            AT_MOST,
            4500,
        ),
        ("ns_per_uniform_draw_1e6", lambda: m.decision("draw/uniform/1000000")["cpu_ns_per_draw"], AT_MOST, 80),
        ("rss_over_live", lambda: m.simple("memory")["rss_over_live"], AT_MOST, 1.10),
        ("draw_cost_flat_1e3_to_1e7", lambda: draw_cost_spread(m), AT_MOST, 2.0),
        ("draw_cost_flat_beyond_cache_misses", lambda: draw_cost_beyond_misses(m), AT_MOST, 2.0),
        (
            "index_bytes_per_item",
            # What the process holds beyond the frames of small items says no less than the index about itself.
            lambda: max(m.simple("memory")["rss_beyond_frames_per_item"], m.decision("draw/uniform/1000000")["bytes_per_item"]),
            AT_MOST,
            200,
        ),
        ("waiters_1000_threads_added", lambda: m.simple("waiters")["threads_added"], AT_MOST, 0),
        ("waiters_1000_rss_each_KiB", lambda: m.simple("waiters")["rss_each_kib"], AT_MOST, 20),
        (
            "waiters_1000_late_ms",
            lambda: max(m.simple("waiters")["timeout_late_ms"], m.simple("waiters")["wake_late_ms"]),
            AT_MOST,
            100,
        ),
        ("waiters_insert_ratio", lambda: m.simple("waiters")["insert_ratio"], AT_LEAST, 0.90),
        ("flood_ping_worst_ms", lambda: m.simple("flood")["flood"]["worst_ms"], AT_MOST, 5),
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build-dir", default="build/release")
    parser.add_argument("--quick", action="store_true", help="shorter measurements: to see that they run")
    arguments = parser.parse_args()

    short = False
    for name, measure, direction, goal in figures(Measurements(arguments.build_dir, arguments.quick)):
        try:
            value = measure()
            shown = f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"
        except LookupError as error:
            say(f"{name}: {error}")
            value, shown = math.nan, "not measured"
        reached = value >= goal if direction == AT_LEAST else value <= goal
        short = short or not reached
        print(f"{name:<40}  {shown:>12}  {direction} {goal:g}  {'ok' if reached else 'short'}", flush=True)
    return 1 if short else 0


if __name__ == "__main__":
    sys.exit(main())
