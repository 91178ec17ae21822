"""Buffers outlive the daemon: what was answered is there after kill -9, and so is all that a buffer decides by."""

import json
import os
import pathlib
import random
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))

from daemon import Daemon  # noqa: E402

RESTARTS = int(os.environ.get("REPLAY_RESTARTS", "10"))


def rollout(number, length=8):
    return {
        "trajectory_id": f"t{number}",
        "run_id": "math",
        "token_ids": [number % 1000] * length,
        "loss_mask": [0] + [1] * (length - 1),
        "reward": (number % 4) / 4,
        "correct": "yes" if number % 3 == 0 else "no",
    }


def insert(daemon, buffer, numbers, check=True):
    lines = "".join(json.dumps(rollout(number)) + "\n" for number in numbers)
    return daemon.ctl("insert", buffer, "-", input=lines, check=check)


def exported(daemon, buffer):
    return [json.loads(line)["trajectory_id"] for line in daemon.ctl("export", buffer).stdout.splitlines()]


def drawn(daemon, buffer, count, *more):
    return [each["trajectory"]["trajectory_id"] for each in daemon.json_lines("sample", buffer, "-n", count, *more)]


def counts(daemon, buffer):
    stats = daemon.json("stats", buffer)["buffers"][0]
    return {name: stats[name] for name in ("items", "offered", "accepted", "drawn", "samples", "tokens", "bytes")}


def test_a_buffer_goes_on_where_it_was_after_each_kill_9(data):
    buffers = [{"name": "rollouts", "policy": "positive_bias", "delta": 0.5, "capacity_items": 40, "seed": 5}]
    with Daemon(buffers=buffers, server={"io_threads": 2}, storage={"path": str(data)}) as daemon:
        generation = daemon.json("ping")["generation"]
        for round_number in range(RESTARTS):
            insert(daemon, "rollouts", range(8 * round_number, 8 * round_number + 8))
            planned = drawn(daemon, "rollouts", 6, "--consumer", "trainer", "--step", round_number, "--world-size", 1)
            there, before = exported(daemon, "rollouts"), counts(daemon, "rollouts")
            daemon.kill()
            daemon.start()
            assert daemon.json("ping")["generation"] == generation, "nothing that was acknowledged is missing"
            assert exported(daemon, "rollouts") == there
            assert counts(daemon, "rollouts") == before
            again = drawn(daemon, "rollouts", 6, "--consumer", "trainer", "--step", round_number, "--world-size", 1)
            assert again == planned, "the batch of a step is the same for whoever asks again"
            assert counts(daemon, "rollouts") == before, "and is not drawn twice"


def test_the_next_batches_are_those_that_a_daemon_without_a_restart_draws(data):
    def life(path, restarts):
        with Daemon(buffers=[{"name": "rollouts", "capacity_items": 100, "seed": 11}], storage={"path": str(path)}) as daemon:
            insert(daemon, "rollouts", range(50))
            drawn(daemon, "rollouts", 10)
            if restarts:
                daemon.stop()
                daemon.start()
            return [drawn(daemon, "rollouts", 16) for _ in range(10)]

    assert life(data.with_name("one"), restarts=False) == life(data.with_name("other"), restarts=True)


def test_buffers_that_were_created_altered_and_dropped_stay_so(data):
    with Daemon(storage={"path": str(data)}) as daemon:
        for name in ("kept", "dropped"):
            daemon.ctl("buffer", "create", name, "--capacity-items", 10)
            insert(daemon, name, range(20))
        daemon.ctl("buffer", "alter", "kept", "--capacity-items", 4)
        daemon.ctl("buffer", "drop", "dropped", "--yes")
        daemon.ctl("delete", "kept", "t18")
        daemon.ctl("update", "kept", "t19", "--reward", 0.75)
        daemon.kill()
        daemon.start()
        assert [each["name"] for each in daemon.json_lines("buffer", "list")] == ["kept"]
        assert exported(daemon, "kept") == ["t16", "t17", "t19"]
        assert [each["revision"] for each in daemon.json_lines("get", "kept", "t19")] == [1]
        insert(daemon, "kept", [30, 31])
        assert exported(daemon, "kept") == ["t17", "t19", "t30", "t31"]


def test_what_was_answered_under_load_is_there_after_kill_9(data):
    seed = int(os.environ.get("REPLAY_SEED", random.randrange(1 << 30)))
    print(f"REPLAY_SEED={seed}")
    chance = random.Random(seed)
    with Daemon(
        buffers=[{"name": "rollouts", "capacity_items": 100_000}], server={"io_threads": 2}, storage={"path": str(data)}
    ) as daemon:
        answered, offered = set(), set()

        def write(writer, stop):
            number = 0
            while not stop.is_set():
                batch = [writer * 1_000_000 + len(offered) * 10 + i for i in range(1 + number % 5)]
                offered.update(batch)
                if insert(daemon, "rollouts", batch, check=False).returncode == 0:
                    answered.update(batch)
                number += 1

        for _ in range(RESTARTS):
            stop = threading.Event()
            writers = [threading.Thread(target=write, args=(writer, stop)) for writer in (1, 2, 3)]
            for writer in writers:
                writer.start()
            enough = len(answered) + 10
            while len(answered) < enough:
                time.sleep(0.01)
            time.sleep(chance.random() / 2)
            stop.set()
            daemon.kill()
            daemon.start()
            for writer in writers:  # Who was cut off in the middle asks again, and is stored once.
                writer.join()
            there = exported(daemon, "rollouts")
            assert len(there) == len(set(there)), "each once"
            assert {f"t{number}" for number in answered} <= set(there) <= {f"t{number}" for number in offered}
        assert len(answered) >= 10 * RESTARTS


def test_the_reply_says_what_an_insert_survives_and_what_survives_is_there(data):
    buffers = [{"name": name, "level": name} for name in ("memory", "process", "disk")]
    with Daemon(buffers=buffers, storage={"path": str(data)}) as daemon:

        def level_of(buffer, numbers, *more):
            lines = "".join(json.dumps(rollout(number)) + "\n" for number in numbers)
            return json.loads(daemon.ctl("insert", buffer, "-", "--json", *more, input=lines).stdout)["level"]

        for name in ("memory", "process", "disk"):
            assert level_of(name, [1]) == name
            for number, asked in enumerate(("memory", "process", "disk"), start=2):
                assert level_of(name, [number], "--level", asked) == asked
        daemon.kill()
        daemon.start()
        for name in ("process", "disk"):
            assert "t1" in exported(daemon, name)
    with Daemon(buffers=buffers) as daemon:
        assert level_of("disk", [1]) == "memory", "without a folder nothing survives"


def test_a_kept_buffer_stays_as_it_is_and_the_log_says_where_the_configuration_differs(data):
    def started(**options):
        return Daemon(buffers=[{"name": "rollouts", **options}], storage={"path": str(data)})

    def warnings(daemon):
        lines = [json.loads(line) for line in daemon.log_path.read_text().splitlines()]
        return [line["options"] for line in lines if line["level"] == "warning"]

    with started(capacity_items=10) as daemon:
        insert(daemon, "rollouts", range(10))
        assert warnings(daemon) == []
        daemon.stop()
        daemon.start()
        assert warnings(daemon) == []
    with started(capacity_items=4, max_draws=3) as daemon:
        assert warnings(daemon) == ["capacity_items, max_draws"]
        assert len(exported(daemon, "rollouts")) == 10
