#!/usr/bin/env python3
"""The figures of what survives: faultbench breaks the daemon, or what is under it, and counts what it had acknowledged and does
not have any more.

  figures_durability.py --build-dir build/release [--quick] [--seed S]

tests/fault/README.md says what each injection does. A figure whose goal is 0 is a promise; the others say that the run was large
enough to mean something. R2 and R8 need root, for the file systems that they mount: without it they are not measured.
"""

import json
import subprocess
import sys
from functools import partial

from measurements import AT_LEAST, AT_MOST, argument_parser, say, tell

# injection: rounds, rounds with --quick
ROUNDS = {
    "kills": (1000, 200),
    "power-cuts": (200, 40),
    "cut-replies": (20_000, 2000),
    "damage": (500, 120),
    "disk-full": (100, 20),
    "locks": (100, 20),
}


class Injections:
    """What faultbench counted, each injection being run when it is first asked for."""

    def __init__(self, build_dir, quick, seed):
        self.build_dir = build_dir
        self.rounds = {name: rounds[1 if quick else 0] for name, rounds in ROUNDS.items()}
        self.seed = seed
        self.results = {}

    def result(self, injection):
        if injection not in self.results:
            self.results[injection] = self._run(injection)
        if not self.results[injection]:
            raise LookupError(f"faultbench {injection} was not done")
        return self.results[injection]

    def _run(self, injection):
        command = [self.build_dir / "faultbench", injection, "--binary-dir", self.build_dir, "--rounds", self.rounds[injection]]
        if self.seed:
            command += ["--seed", self.seed]
        command = [str(word) for word in command]
        say("running " + " ".join(command))
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, timeout=1500, check=False
            )
            say(f"exit status {done.returncode}: {done.stdout.strip()}")
            return json.loads(done.stdout.splitlines()[-1]) if done.stdout else None
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            say(f"failed: {error}")
            return None

    def sum(self, injection, *names):
        result = self.result(injection)
        return sum(result.get(name, 0) for name in names)


def figures(injections):
    """(name, how to measure it, direction, goal)"""
    told = []

    def add(name, injection, counts, direction=AT_MOST, goal=0):
        told.append((name, partial(injections.sum, injection, *counts), direction, goal))

    kills, cuts = injections.rounds["kills"], injections.rounds["power-cuts"]
    add(f"R1 acknowledged inserts lost over {kills} kills", "kills", ["lost"])
    add("R1 items there twice", "kills", ["duplicates", "stored_twice"])
    add("R1 acknowledged updates and deletes lost", "kills", ["updates_lost", "deleted_came_back"])
    add("R1 starts that failed", "kills", ["failed_starts", "crashes"])
    add("R1 violations of any kind", "kills", ["violations"])
    add("R1 inserts acknowledged", "kills", ["acknowledged"], AT_LEAST, 50 * kills)

    add(f"R2 inserts at level disk lost over {cuts} power cuts", "power-cuts", ["lost"])
    add("R2 aborts at a disk that refuses every write", "power-cuts", ["ended_by_itself"])
    add("R2 violations of any kind", "power-cuts", ["violations"])
    add("R2 inserts acknowledged", "power-cuts", ["acknowledged"], AT_LEAST, 20 * cuts)
    add("R2 inserts at level memory lost by the control", "power-cuts", ["control_lost"], AT_LEAST, 1)

    add("R4 cuts after a request and before its reply", "cut-replies", ["cuts"], AT_LEAST, injections.rounds["cut-replies"])
    add("R4 items lost or stored twice", "cut-replies", ["lost", "duplicates", "stored_twice"])
    add("R4 violations of any kind", "cut-replies", ["violations"])

    wounds = injections.rounds["damage"]
    add(f"R6 silent losses over {wounds} damaged folders", "damage", ["silent_losses"])
    add("R6 silent losses by a flip in a log's header", "damage", ["header_silent_losses"])
    add("R6 wrong data", "damage", ["wrong_data"])
    add("R6 ends without a named status and one line", "damage", ["crashes", "hangs", "not_named", "cannot_be_read"])

    full = injections.rounds["disk-full"]
    add(f"R8 aborts over {full} full disks", "disk-full", ["aborts", "failed_starts"])
    add("R8 acknowledged inserts lost", "disk-full", ["lost"])
    add("R8 draws refused while the disk is full", "disk-full", ["draw_errors", "no_draws_while_full"])
    add("R8 slowest recovery in ms", "disk-full", ["slowest_recovery_ms"], AT_MOST, 5000)
    add("R8 violations of any kind", "disk-full", ["violations"])

    add("R18 starts after kill -9 that failed", "locks", ["failed_starts"])
    add("R17 refused starts without their status and reason", "locks", ["wrong_refusals"])
    return told


def main():
    parser = argument_parser(__doc__)
    parser.add_argument("--seed", type=int, default=0, help="of all injections: another each time unless given")
    arguments = parser.parse_args()
    return tell(figures(Injections(arguments.build_dir, arguments.quick, arguments.seed)))


if __name__ == "__main__":
    sys.exit(main())
