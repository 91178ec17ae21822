"""Real rollouts through the real daemon: imported with replayctl, sampled and exported again, every field compared."""

import base64
import collections
import json
import pathlib
import struct
import subprocess
import sys

import pytest

SUPPORT = pathlib.Path(__file__).resolve().parents[1] / "support"
sys.path.insert(0, str(SUPPORT))

from daemon import Daemon, data_file  # noqa: E402
from gsm8k_to_jsonl import MODELS  # noqa: E402

# What an import may leave out, as replayctl fills it in.
DEFAULTS = {
    "run_id": "",
    "epoch": 0,
    "group_id": "",
    "group_size": 0,
    "index_in_group": 0,
    "rollout_id": "",
    "part_index": 0,
    "part_count": 0,
    "prompt_length": 0,
    "segments": [],
    "behaviour_logprobs": [],
    "version_segments": [],
    "reward": 0.0,
    "named_rewards": {},
    "correct": "unknown",
    "advantage": None,
    "status": "completed",
    "source": "",
    "dataset_index": -1,
    "temperature": 1.0,
    "priority": 1.0,
    "tags": {},
    "opaque_base64": "",
}


def float_bits(number):
    return struct.pack("<f", number)


def convert(script, source):
    done = subprocess.run([sys.executable, SUPPORT / script, source], capture_output=True, encoding="utf-8", check=True)
    return done.stdout


def lines_of(text):
    return [json.loads(line) for line in text.splitlines()]


def rows_of(path):
    return lines_of(path.read_text(encoding="utf-8"))


def without_time(trajectory):
    """All but created_at_unix_ns, which the client has stamped."""
    assert trajectory["created_at_unix_ns"] > 1_700_000_000_000_000_000
    return {key: value for key, value in trajectory.items() if key != "created_at_unix_ns"}


def expected(trajectory):
    """What is stored of an imported line: every field, the reward as a 32-bit float."""
    full = {**DEFAULTS, **trajectory}
    full["reward"] = struct.unpack("<f", float_bits(full["reward"]))[0]
    return full


def same(stored, source):
    """Compares with floats by their bits; stored numbers have as many digits as a 32-bit float needs."""
    stored, source = dict(stored), expected(source)
    assert float_bits(stored.pop("reward")) == float_bits(source.pop("reward"))
    assert stored == source


@pytest.fixture(scope="module")
def daemon():
    with Daemon(memory="256MiB") as running:
        yield running


@pytest.fixture(scope="module")
def gsm8k(daemon):
    """Name of the buffer with GSM8K imported, the lines that were imported, the rows of the source."""
    source = data_file("gsm8k_model_solutions.jsonl")
    lines = convert("gsm8k_to_jsonl.py", source)
    daemon.ctl("buffer", "create", "gsm8k", "--capacity-items", 6000, "--capacity-bytes", "64MiB", "--selector", "uniform_distinct")
    for version in range(1, len(MODELS) + 1):
        daemon.ctl("versions", "publish", version, "--step", 10 * version, "--label", MODELS[version - 1])
    report = daemon.json("import", "gsm8k", "-", input=lines)
    assert (report["read"], report["accepted"], report["duplicate"], report["existing"]) == (5276, 5276, 0, 0)
    return "gsm8k", lines_of(lines), rows_of(source)


def compare_with_gsm8k(trajectory, rows):
    """One stored trajectory against the text it was made from."""
    _, question_index, model = trajectory["trajectory_id"].split("-")
    row = rows[int(question_index)]
    question, solution = row["question"], row[model]["solution"]
    split = trajectory["prompt_length"]
    text = bytes(trajectory["token_ids"])
    assert text[:split].decode() == question
    assert text[split:].decode() == solution
    assert trajectory["loss_mask"] == [0] * len(question.encode()) + [1] * len(solution.encode())
    assert trajectory["correct"] == ("yes" if row[model]["is_correct"] else "no")
    assert trajectory["reward"] == (1.0 if row[model]["is_correct"] else 0.0)
    assert trajectory["index_in_group"] == MODELS.index(model)
    assert trajectory["group_id"] == f"gsm8k-{question_index}"
    assert trajectory["dataset_index"] == int(question_index)


def test_gsm8k_is_counted_as_the_source_counts(daemon, gsm8k):
    buffer, _, rows = gsm8k
    stats = daemon.json("stats", buffer)["buffers"][0]
    assert (len(rows), stats["items"], stats["scored"], stats["correct"]) == (1319, 5276, 5276, 2001)
    assert (stats["accepted"], stats["rejected"]) == (5276, 0)
    assert (stats["outcomes"]["insert_correct"], stats["outcomes"]["insert_incorrect"]) == (2001, 5276 - 2001)
    assert stats["tokens"] == sum(len((row["question"] + row[model]["solution"]).encode()) for row in rows for model in MODELS)


def test_gsm8k_comes_back_from_an_export(daemon, gsm8k, tmp_path):
    buffer, imported, rows = gsm8k
    path = tmp_path / "gsm8k.jsonl"
    assert daemon.json("export", buffer, "-o", path)["exported"] == 5276
    exported = rows_of(path)
    assert len(exported) == len(imported) == 5276
    groups = collections.Counter()
    for stored, source in zip(exported, imported):
        same(without_time(stored), source)
        compare_with_gsm8k(stored, rows)
        groups[stored["group_id"]] += stored["correct"] == "yes"
    by_correct = collections.Counter("none" if n == 0 else "all" if n == 4 else "mixed" for n in groups.values())
    assert by_correct == {"mixed": 731, "none": 432, "all": 156}


def test_gsm8k_comes_back_from_a_sample(daemon, gsm8k):
    buffer, imported, rows = gsm8k
    by_id = {trajectory["trajectory_id"]: trajectory for trajectory in imported}
    slots = daemon.json_lines("sample", buffer, "-n", 5276, "--step", 50)
    assert [slot["slot"] for slot in slots] == list(range(5276))
    assert {slot["trajectory"]["trajectory_id"] for slot in slots} == set(by_id)  # distinct, so each one once
    for slot in slots:
        trajectory = slot["trajectory"]
        same(without_time(trajectory), by_id[trajectory["trajectory_id"]])
        compare_with_gsm8k(trajectory, rows)
        versions = trajectory["version_segments"]
        assert slot["staleness"] == 50 - 10 * versions[0][2]
        assert slot["draw_count"] == 1 and slot["steps_since_last_use"] is None and slot["step"] == 50
        assert 0 < slot["probability"] <= 1


def test_an_export_can_be_imported_without_a_change(daemon, gsm8k):
    buffer, _, _ = gsm8k
    first = daemon.ctl("export", buffer).stdout
    daemon.ctl("import", "gsm8k-copy", "--create", "--capacity-bytes", "32MiB", input=first)
    assert daemon.ctl("export", "gsm8k-copy").stdout == first
    daemon.ctl("buffer", "drop", "gsm8k-copy", "--yes")


def test_rubiks_groups_come_back_as_they_were_generated(daemon):
    source = data_file("rubiks_groups.jsonl")
    lines = convert("rubiks_to_jsonl.py", source)
    imported, rows = lines_of(lines), rows_of(source)
    report = daemon.json("import", "rubiks", "--create", "--capacity-bytes", "16MiB", input=lines)
    assert (report["read"], report["accepted"]) == (24, 24)
    exported = lines_of(daemon.ctl("export", "rubiks").stdout)
    got = daemon.json_lines("get", "rubiks", *[trajectory["trajectory_id"] for trajectory in imported])
    assert [entry["trajectory"] for entry in got] == exported
    sampled = {slot["trajectory"]["trajectory_id"]: slot["trajectory"] for slot in daemon.json_lines("sample", "rubiks", "-n", 400)}
    assert len(sampled) >= 20  # of 24, with replacement: missing more than 4 has probability 1e-30
    for stored, wanted in zip(exported, imported, strict=True):
        same(without_time(stored), wanted)
        group, index = map(int, stored["trajectory_id"].split("-")[1:])
        row = rows[group]
        assert stored["token_ids"] == row["tokens"][index]
        assert [token if bit else -100 for token, bit in zip(stored["token_ids"], stored["loss_mask"])] == row["masks"][index]
        assert float_bits(stored["reward"]) == float_bits(row["scores"][index])
        assert json.loads(base64.b64decode(stored["opaque_base64"])) == row["messages"][index]
        assert sampled.get(stored["trajectory_id"], stored) == stored
    assert daemon.json("stats", "rubiks")["buffers"][0]["scored"] == 0
