#!/usr/bin/env python3
"""The figures of what a buffer decides: that its costs are what server/selectors.h and server/retention.h say, and that random
operations find no difference to a plain model.

  figures_semantics.py --build-dir build/release [--quick] [--sim-operations N]

growth_in_reads tells a cost's growth from 10^3 items to the largest buffer in units of the machine's own: the growth of a read
at random of memory as large as the buffer, each read waiting for the one before.

  growth_in_reads = (cost at N - cost at 10^3) / (read at N - read at 10^3)

All four are measured in turn, many times a second, by decision_bench. So neither a slow machine nor other load on it is in the
figure, and what remains is how many more cache misses a decision waits for. A cost that is O(1) may wait for each place it
looks at, however many items there are:

  draw      4     position, row, the row it changes places with, frame
  insert    8     the id sought, entered, and that of the evicted taken out; of the evicted the row, its neighbour, its place
                  in the selector, the one that fills it, the frame
            3     more with a view: of the evicted its place there, the one that fills it, that one's own place
            8     more for a group, once for its members: the same as for an item

and one that is O(log n) for one place more at each doubling, log2(N / 10^3). One walk over 4 bytes of each item in a batch of
256 draws, the cheapest cost that is O(n), makes 150 reads at 10^7 items; up to 10^5, as with --quick, it would pass.
The median counts: for draws over the retentions, which they do not depend on; for inserts of a retention (from a view, of
groups) over the selectors in which an insert is O(1).

bytes_per_item is all that an item takes beyond its frame's bytes, by the index's own account or the allocator's, whichever is
more; the worst retention and size from 10^5 items on counts.

sim_* are of buffer_sim_test: the operations it did without a difference, and how many batches it drew with that selector and
retention which it met least. With fewer than 10^6 operations both goals are lower in proportion.
"""

import math
import os
import re
import statistics
import subprocess
import sys
from functools import partial

from measurements import AT_LEAST, AT_MOST, argument_parser, run_for_json, say, tell

DRAW_PLACES = 4
INSERT_PLACES = {"items": 8, "view": 8 + 3, "groups": 8 + 8}
LOG_SELECTORS = ("prioritized", "recency")  # O(log n) for draws and inserts
LOG_RETENTIONS = ("best",)
BYTES_FROM = 10**5  # below, what a buffer takes by itself is more than its items

SIM_TEST = "BufferSim.AgreesWithAPlainModelOverRandomOperations"
SIM_GOAL = 10**6  # operations
SIM_GOAL_OF_A_PAIR = 1000


class Decisions:
    """What decision_bench measured."""

    def __init__(self, build_dir, quick):
        self.cells = run_for_json([build_dir / "decision_bench", "--json", "{json}", *(["--quick"] if quick else [])]) or []
        self.largest = max((cell["items"] for cell in self.cells), default=math.nan)
        self.doublings = math.log2(self.largest / 1000)

    def names(self, what):
        return list(dict.fromkeys(cell[what] for cell in self.cells))

    def growth_in_reads(self, cost, wanted):
        """Median over the largest cells that are wanted."""
        growths = []
        for cell in self.cells:
            if cell["items"] == self.largest and wanted(cell):
                few = cell["few"]
                growths.append((cell[cost] - few[cost]) / (cell["ns_per_read"] - few["ns_per_read"]))
        return statistics.median(growths)

    def bytes_per_item(self, drawn, selector):
        return max(
            max(cell["bytes_per_item"], cell["heap_per_item"])
            for cell in self.cells
            if cell["drawn"] == drawn and cell["selector"] == selector and cell["items"] >= BYTES_FROM
        )


class Simulation:
    """buffer_sim_test, run when it is first asked for."""

    def __init__(self, build_dir, operations):
        self.program = build_dir / "buffer_sim_test"
        self.operations = operations
        self.output = None  # "": it failed

    def run(self):
        if self.output is None:
            self.output = self._output()
        if not self.output:
            raise LookupError(f"{self.program.name} failed")
        return self.output

    def _output(self):
        say(f"running {self.program} with {self.operations:,} operations")
        try:
            done = subprocess.run(
                [self.program, f"--gtest_filter={SIM_TEST}"],
                env=os.environ | {"REPLAY_SIM_OPERATIONS": str(self.operations)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                text=True,
                timeout=600 + self.operations / 5000,  # ten times what they take
                check=False,
            )
        except (OSError, subprocess.SubprocessError) as error:
            say(f"failed: {error}")
            return ""
        print(done.stdout, file=sys.stderr, flush=True)
        # Without a test of that name it would pass as well.
        return done.stdout if done.returncode == 0 and "[  PASSED  ] 1 test" in done.stdout else ""

    def operations_without_difference(self):
        self.run()
        return self.operations

    def least_of_a_pair(self, pairs):
        counts = dict(re.findall(r"^drawn: (\w+ from \w+) +(\d+)$", self.run(), re.MULTILINE))
        least = min(pairs, key=lambda pair: int(counts.get(pair, 0)), default=None)
        if least is None:
            raise LookupError("no pairs are known")
        say(f"least covered: {least}")
        return int(counts.get(least, 0))


def figures(decisions, simulation):
    """(name, how to measure it, direction, goal)"""
    told = []

    def add_growth(name, cost, places, logarithmic, wanted):
        goal = places + (decisions.doublings if logarithmic else 0)
        told.append((name, partial(decisions.growth_in_reads, cost, wanted), AT_MOST, round(goal, 1)))

    def among(**wanted):
        return lambda cell: all(cell[name] in values for name, values in wanted.items())

    selectors = decisions.names("selector")
    constant = [selector for selector in selectors if selector not in LOG_SELECTORS]
    flat = [retention for retention in decisions.names("retention") if retention not in LOG_RETENTIONS]
    for drawn in decisions.names("drawn"):
        of = "" if drawn == "items" else drawn + "_"
        places = INSERT_PLACES[drawn]
        for selector in selectors:
            add_growth(
                f"{of}draw_growth_in_reads_{selector}",
                "ns_per_draw",
                DRAW_PLACES,
                selector in LOG_SELECTORS,
                among(drawn=[drawn], selector=[selector]),
            )
        if drawn == "items":
            for retention in decisions.names("retention"):
                add_growth(
                    f"insert_growth_in_reads_{retention}",
                    "ns_per_insert",
                    places,
                    retention in LOG_RETENTIONS,
                    among(drawn=[drawn], selector=constant, retention=[retention]),
                )
        else:
            add_growth(f"{of}insert_growth_in_reads", "ns_per_insert", places, False, among(drawn=[drawn], selector=constant))
        for selector in filter(LOG_SELECTORS.__contains__, selectors):
            add_growth(
                f"{of}insert_growth_in_reads_{selector}",
                "ns_per_insert",
                places,
                True,
                among(drawn=[drawn], selector=[selector], retention=flat),
            )
        for selector in selectors:
            told.append((f"{of}bytes_per_item_{selector}", partial(decisions.bytes_per_item, drawn, selector), AT_MOST, 200))

    pairs = [f"{selector} from {retention}" for selector in selectors for retention in decisions.names("retention")]
    operations_goal = min(simulation.operations, SIM_GOAL)
    pair_goal = SIM_GOAL_OF_A_PAIR * operations_goal // SIM_GOAL
    told.append(("sim_operations_without_difference", simulation.operations_without_difference, AT_LEAST, operations_goal))
    told.append(("sim_least_batches_of_a_pair", lambda: simulation.least_of_a_pair(pairs), AT_LEAST, pair_goal))
    return told


def main():
    parser = argument_parser(__doc__)
    parser.add_argument("--sim-operations", type=int, help="of buffer_sim_test: 10^7 unless given, 2 * 10^5 with --quick")
    arguments = parser.parse_args()
    operations = arguments.sim_operations or (200_000 if arguments.quick else 10**7)
    decisions = Decisions(arguments.build_dir, arguments.quick)
    status = tell(figures(decisions, Simulation(arguments.build_dir, operations)))
    return status if decisions.cells else 1


if __name__ == "__main__":
    sys.exit(main())
