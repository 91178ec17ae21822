"""What memory has no room for is on disk only, and is drawn, exported and kept like all else."""

import json
import pathlib
import sys
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))

from daemon import Daemon  # noqa: E402

MIB = 1 << 20
LENGTH = 6_000  # tokens: a frame of some 30 KB
MEMORY = {"memory": "16MiB", "limits": {"in_flight_bytes": "4MiB"}}
TAGS = {"level": 3, "topic": "algebra"}


def rollout(number, **more):
    return {
        "trajectory_id": f"t{number}",
        "run_id": "math",
        "source": f"set{number % 3}",
        "token_ids": [(number * 7919 + i) % 50_000 for i in range(LENGTH)],
        "loss_mask": [1] * LENGTH,
        "reward": (number % 4) / 4,
        "correct": "yes" if number % 2 else "no",
        **more,
    }


def insert(daemon, numbers, **more):
    daemon.ctl("insert", "rollouts", "-", input="".join(json.dumps(rollout(number, **more)) + "\n" for number in numbers))


def stats(daemon):
    return daemon.json("stats", "rollouts")["buffers"][0]


def is_whole(trajectory):
    number = int(trajectory["trajectory_id"][1:])
    expected = rollout(number)
    assert trajectory["token_ids"] == expected["token_ids"], number
    assert trajectory["source"] == expected["source"]
    return number


def metric(daemon, name):
    lines = urllib.request.urlopen(daemon.metrics_url).read().decode().splitlines()
    return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name)}


def test_a_buffer_larger_than_memory_is_drawn_exported_and_restarted(data):
    buffers = [{"name": "rollouts", "capacity_bytes": "1GiB", "seed": 3}]
    with Daemon(buffers=buffers, storage={"path": str(data)}, server={"io_threads": 2}, **MEMORY) as daemon:
        insert(daemon, range(1_000))
        shown = stats(daemon)
        assert shown["items"] == 1_000 and shown["bytes"] > 25 * MIB
        assert shown["bytes"] - shown["spilled_bytes"] < 12 * MIB
        (used,) = metric(daemon, "replay_memory_used_bytes").values()
        assert used < 16 * MIB
        for restarts in range(2):
            for _ in range(4):
                drawn = daemon.json_lines("sample", "rollouts", "-n", 32)
                assert len({is_whole(each["trajectory"]) for each in drawn}) > 16
            exported = [json.loads(line) for line in daemon.ctl("export", "rollouts").stdout.splitlines()]
            assert [is_whole(each) for each in exported] == list(range(1_000))
            assert is_whole(daemon.json_lines("get", "rollouts", "t7")[0]["trajectory"]) == 7
            if restarts:
                break
            daemon.kill()
            daemon.start()
            shown = stats(daemon)
            assert shown["spilled_bytes"] == shown["bytes"], "nothing was read to come back"
        assert metric(daemon, "replay_spill_reads_total")["replay_spill_reads_total"] > 1_000


def test_tags_and_columns_of_spilled_items_are_those_that_came_in(data):
    views = [{"name": "hard", "filter": "tag.level >= 3"}]
    column = {"type": "i64", "alignment": "row", "shape": [1], "values": [7]}
    with Daemon(
        buffers=[{"name": "rollouts", "capacity_bytes": "1GiB", "views": views}], storage={"path": str(data)}, **MEMORY
    ) as daemon:
        insert(daemon, range(20), tags=TAGS, columns={"mark": column})
        insert(daemon, range(20, 600))
        assert stats(daemon)["views"] == {"hard": 20}
        for _ in range(2):
            # Looked at again, though the frames are on disk only.
            daemon.ctl("update", "rollouts", "t3", "--tag", "level=1")
            assert stats(daemon)["views"] == {"hard": 19}
            daemon.ctl("update", "rollouts", "t3", "--tag", "level=4")
            assert stats(daemon)["views"] == {"hard": 20}
            daemon.ctl("buffer", "alter", "rollouts", "--view", "algebra: tag.topic = algebra")
            assert stats(daemon)["views"] == {"algebra": 20}
            daemon.ctl("buffer", "alter", "rollouts", "--view", "hard: tag.level >= 3")
            (got,) = daemon.json_lines("get", "rollouts", "t5", "--column", "mark")
            assert got["trajectory"]["tags"] == TAGS and got["trajectory"]["columns"]["mark"]["values"] == [7], got
            daemon.kill()
            daemon.start()
            assert stats(daemon)["views"] == {"hard": 20}
