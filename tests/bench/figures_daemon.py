#!/usr/bin/env python3
"""Measures the daemon's figures: one line each, `name  measured  goal  ok|short`.

Called by tests/figures.sh, which builds first. Everything else that is said goes to standard error. Throughput figures are
ratios of replayd to something else that ran in turns with it, pinned alike (see replay_bench --help); where a figure can be
measured over TCP and Unix sockets, or on one core and on two, the worse one counts.
"""

import sys

from measurements import AT_LEAST, AT_MOST, argument_parser, run_for_json, say, tell


class Measurements:
    """Runs the benches, each once, and hands out what they wrote."""

    def __init__(self, build_dir, quick):
        self.build_dir = build_dir
        self.quick = quick
        self.results = {}

    def replay_bench(self, command, *arguments):
        if command not in self.results:
            bench, replayd = self.build_dir / "replay_bench", self.build_dir / "replayd"
            self.results[command] = run_for_json([bench, "--replayd", replayd, "--json", "{json}", command, *arguments])
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

    def decisions(self):
        """What decision_bench measured of uniform draws at 10^3 … 10^7 items."""
        if "decision" not in self.results:
            command = [self.build_dir / "decision_bench", "--json", "{json}", "--selector", "uniform", "--retention", "fifo"]
            self.results["decision"] = run_for_json([*command, "--seconds", 0.5 if self.quick else 3])
        if self.results["decision"] is None:
            raise LookupError("decision_bench was not measured")
        return self.results["decision"]

    def decision(self, items, field):
        for cell in self.decisions():
            if cell["items"] == items:
                return cell[field]
        raise LookupError(f"decision_bench has no row of {items} items")


def draw_cost_spread(measured):
    """A draw at any size over one at 10^3 items in the same seconds."""
    return max(cell["ns_per_draw"] / cell["few"]["ns_per_draw"] for cell in measured.decisions())


def draw_cost_beyond_misses(measured):
    """How much more a draw costs at some size than at 10^3 items and the misses of the caches there together.

    Position, row and frame have to be touched, whatever the decision.
    """

    def of(cell):
        few = cell["few"]
        return cell["ns_per_draw"] / (few["ns_per_draw"] + cell["ns_per_touch"] - few["ns_per_touch"])

    return max(map(of, measured.decisions()))


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
        ("ns_per_uniform_draw_1e6", lambda: m.decision(10**6, "ns_per_draw"), AT_MOST, 80),
        ("rss_over_live", lambda: m.simple("memory")["rss_over_live"], AT_MOST, 1.10),
        ("draw_cost_flat_1e3_to_1e7", lambda: draw_cost_spread(m), AT_MOST, 2.0),
        ("draw_cost_flat_beyond_cache_misses", lambda: draw_cost_beyond_misses(m), AT_MOST, 2.0),
        (
            "index_bytes_per_item",
            # What the process holds beyond the frames of small items says no less than the index about itself.
            lambda: max(m.simple("memory")["rss_beyond_frames_per_item"], m.decision(10**6, "bytes_per_item")),
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
    arguments = argument_parser(__doc__).parse_args()
    return tell(figures(Measurements(arguments.build_dir, arguments.quick)))


if __name__ == "__main__":
    sys.exit(main())
