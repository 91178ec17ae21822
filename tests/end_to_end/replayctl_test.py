"""replayctl against the real daemon: what each command prints, its exit status, and that nothing is lost on the way."""

import json
import math
import os
import pathlib
import pty
import re
import signal
import subprocess
import sys
import time

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))

from daemon import Daemon, binary  # noqa: E402

OK, FAILED, USAGE, BAD_DATA, UNAVAILABLE, IO, INTERRUPTED, BROKEN_PIPE = 0, 1, 64, 65, 69, 74, 130, 141


@pytest.fixture(scope="module")
def daemon():
    with Daemon(memory="256MiB") as running:
        yield running


@pytest.fixture
def buffer(daemon, request):
    """Name of an empty buffer of the test's own."""
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", request.node.name)[:64]
    daemon.ctl("buffer", "create", name, "--capacity-items", 1000, "--capacity-bytes", "1MiB", "--seed", 7)
    yield name
    daemon.ctl("buffer", "drop", name, "--yes")


def line(identity, **fields):
    return json.dumps({"trajectory_id": identity, "token_ids": [1, 2, 3], "loss_mask": [0, 1, 1], **fields}) + "\n"


def group(name, size=4, **fields):
    return "".join(line(f"{name}-{i}", group_id=name, group_size=size, index_in_group=i, **fields) for i in range(size))


def items(daemon, buffer):
    return daemon.json("stats", buffer)["buffers"][0]["items"]


def error_of(done):
    return json.loads(done.stderr)["error"]


# --- The quick start of replay/client.h ------------------------------------------------------------------------------------------


def test_the_quick_start_of_the_header_inserts_and_trains():
    with Daemon(memory="256MiB") as own:
        done = subprocess.run([binary("quick_start"), own.address, "3"], capture_output=True, text=True, timeout=120)
        # 3 steps of 64 draws of its one trajectory of 5 tokens.
        assert (done.returncode, done.stdout, done.stderr) == (0, "960 tokens trained on\n", "")
        assert own.json_lines("versions", "list")[-1]["version"] == 15


# --- Usage -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments, said",
    [
        ([], "subcommand is required"),
        (["frobnicate"], 'there is no command "frobnicate"'),
        (["--frobnicate"], 'there is no option "--frobnicate"'),
        (["buffer", "frobnicate"], "Run replayctl buffer --help."),
        (["buffer", "create"], "BUFFER is required"),
        (["buffer", "create", "x", "--capacity-items", "-1"], "--capacity-items: must not be negative"),
        (["buffer", "create", "x", "--capacity-bytes", "64Mib"], '"64Mib" is not a size'),
        (["buffer", "create", "x", "--selector", "best"], "best not in"),
        (["ping", "--timeout", "soon"], '"soon" is not a duration'),
        (["sample", "x", "-n", "0"], "not in range"),
    ],
)
def test_wrong_usage_ends_with_64_and_says_why(daemon, arguments, said):
    done = daemon.ctl(*arguments, check=False)
    assert (done.returncode, done.stdout) == (USAGE, "")
    assert said in done.stderr


@pytest.mark.parametrize(
    "command",
    ["", "ping", "stats", "waiters", "buffer", "buffer create", "buffer alter", "buffer list", "buffer describe", "buffer drop",
     "versions", "versions list", "versions publish", "versions wait", "import", "insert", "sample", "get", "delete", "update", "export", "bench",
     "reserve", "admit", "acknowledge", "history"],
)
def test_every_command_has_help_with_an_example(daemon, command):
    done = daemon.ctl(*command.split(), "--help")
    assert "Usage: replayctl" in done.stdout and "Examples:\n  " in done.stdout
    assert done.stderr == ""


def test_version_is_printed(daemon):
    assert re.fullmatch(r"replayctl \d+\.\d+\.\d+\n", daemon.ctl("--version").stdout)


# --- The server ------------------------------------------------------------------------------------------------------------------


def test_ping_tells_version_and_generation(daemon):
    assert "answered in" in daemon.ctl("ping").stdout
    pong = daemon.json("ping")
    assert set(pong) == {"server", "version", "generation", "round_trip_ms"}
    assert int(pong["generation"]) > 0


def test_the_server_may_be_named_on_the_command_line(daemon):
    done = daemon.ctl("ping", "--server", daemon.tcp_address, "--json", env={"REPLAYCTL_SERVER": "127.0.0.1:1"})
    assert json.loads(done.stdout)["server"] == daemon.tcp_address


def test_a_server_that_is_not_there_ends_with_69(daemon):
    done = daemon.ctl("ping", "--server", "127.0.0.1:1", "--json", check=False)
    assert (done.returncode, done.stdout, error_of(done)["code"]) == (UNAVAILABLE, "", "unavailable")
    done = daemon.ctl("import", "x", "-", "--server", f"unix:{daemon.directory}/none", check=False, input=line("a"))
    assert done.returncode == UNAVAILABLE


def test_stats_have_rates_and_a_reason_to_look_further(daemon, buffer):
    daemon.ctl("import", buffer, input=group("g", correct="yes") + line("a", correct="no") + line("b"))
    daemon.ctl("sample", buffer, "-n", 12)
    stats = daemon.json("stats", buffer)
    assert set(stats) == {"server", "buffers"}
    assert stats["server"]["requests"]["Sample"] >= 1
    shown = stats["buffers"][0]
    assert (shown["items"], shown["accepted"], shown["drawn"], shown["replay_ratio"]) == (6, 6, 12, 2.0)
    assert shown["accuracy_stored"] == pytest.approx(4 / 5)
    assert shown["inserted_per_second"] is None  # of a single look
    text = daemon.ctl("stats", buffer).stdout
    for word in ["items", "bytes", "inserted", "sampled", "replay ratio", "staleness", "never used", "accuracy", "waiting", "/s)"]:
        assert word in text
    assert daemon.ctl("stats", "nope", check=False).returncode == FAILED


def test_accuracy_is_told_of_what_is_stored_inserted_drawn_and_removed(daemon):
    daemon.ctl("buffer", "create", "scored", "--capacity-items", 4, "--selector", "fifo")

    def insert(first, correct):
        daemon.ctl("import", "scored", input="".join(line(f"t{first + i}", correct=each) for i, each in enumerate(correct)))

    def drawn(count):
        return [draw["trajectory"]["trajectory_id"] for draw in daemon.json_lines("sample", "scored", "-n", count)]

    def accuracies():
        stats = daemon.json("stats", "scored")["buffers"][0]
        of = [stats["accuracy_" + name] for name in ("stored", "inserted", "drawn", "removed")]
        return of, (stats["correct"], stats["scored"]), stats["outcomes"]

    assert accuracies()[0] == [None] * 4
    insert(0, ["yes", "yes", "yes", "no", "unknown"])  # t0 leaves
    assert accuracies()[0] == [2 / 3, 3 / 4, None, 1]
    assert drawn(3) == ["t1", "t2", "t3"]
    daemon.ctl("update", "scored", "t3", "--correct", "yes")
    daemon.ctl("update", "scored", "t4", "--correct", "no")
    assert accuracies()[0] == [3 / 4, 3 / 4, 2 / 3, 1]  # What came in and was drawn stays what it was then.
    assert drawn(4) == ["t1", "t2", "t3", "t4"]
    insert(5, ["yes", "no", "no", "unknown"])  # t1 to t4 leave, as they are now
    of, stored, outcomes = accuracies()
    assert of == [1 / 3, 4 / 7, 5 / 7, 4 / 5] and stored == (1, 3)
    assert outcomes == {
        "insert_correct": 4, "insert_incorrect": 3, "sample_correct": 5, "sample_incorrect": 2, "remove_correct": 4, "remove_incorrect": 1,
    }  # fmt: skip
    assert "accuracy        stored 33.3 %, inserted 57.1 %, drawn 71.4 %, removed 80.0 %" in daemon.ctl("stats", "scored").stdout


def test_stats_show_how_often_and_how_soon_items_are_drawn_again(daemon):
    daemon.ctl("buffer", "create", "reused", "--capacity-items", 3, "--selector", "fifo")
    text = daemon.ctl("stats", "reused").stdout
    assert "since last use  p50 -, p90 - steps, 0 first uses" in text and "draws per item  p50 -, p90 - of what was removed" in text
    daemon.ctl("import", "reused", input="".join(line(f"t{i}") for i in range(3)))
    for count, step in [(3, 10), (2, 10), (2, 14), (1, 22)]:  # t0 after 0, 4 and 8 steps; t1 after 0 and 4; t2 once
        daemon.ctl("sample", "reused", "-n", count, "--step", step)
    daemon.ctl("import", "reused", input=line("t3") + line("t4") + line("t5") + line("t6"))  # t3 without a draw

    def observed(histogram):
        bounds = [*histogram["bounds"], None]
        assert len(histogram["counts"]) == len(bounds)
        return {bound: count for bound, count in zip(bounds, histogram["counts"]) if count}, histogram["sum"]

    stats = daemon.json("stats", "reused")["buffers"][0]
    assert observed(stats["reuse_gap"]) == ({0: 2, 4: 2, 8: 1}, 16)
    assert observed(stats["item_draws"]) == ({0: 1, 1: 1, 4: 2}, 8)
    assert observed(stats["staleness"])[0].keys() and sum(stats["staleness"]["counts"]) == 8
    assert stats["never_used"] == 1 / 4
    text = daemon.ctl("stats", "reused").stdout
    assert "since last use  p50 <= 4, p90 <= 8 steps, 3 first uses" in text
    assert "draws per item  p50 <= 1, p90 <= 4 of what was removed" in text


def test_stats_go_on_until_interrupted(daemon, buffer):
    command = [binary("replayctl"), "stats", buffer, "--interval", "100ms", "--json", "--server", daemon.address]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    first, second = json.loads(process.stdout.readline()), json.loads(process.stdout.readline())
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == -signal.SIGINT
    assert first["buffers"][0]["inserted_per_second"] is None and second["buffers"][0]["inserted_per_second"] == 0.0


def test_waiters_tell_who_waits_for_what(daemon, buffer):
    waiting = subprocess.Popen(
        [binary("replayctl"), "sample", buffer, "--timeout", "20", "--server", daemon.address], stdout=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 10
    while not (waiters := daemon.json_lines("waiters", buffer)):
        assert time.monotonic() < deadline
    assert set(waiters[0]) == {"buffer", "verb", "reason", "detail", "peer", "waited_ms", "remaining_ms"}
    assert (waiters[0]["verb"], waiters[0]["buffer"]) == ("Sample", buffer)
    assert waiters[0]["reason"] in ("min_size", "no_producer")
    assert "DETAIL" in daemon.ctl("waiters").stdout
    daemon.ctl("import", buffer, input=line("a"))
    assert "a" in waiting.communicate(timeout=20)[0]
    assert daemon.ctl("waiters", buffer).stdout == "nobody waits\n"


# --- buffer ----------------------------------------------------------------------------------------------------------------------


def test_a_buffer_is_created_altered_described_and_dropped(daemon):
    options = ["--capacity-items", "100", "--capacity-bytes", "64KiB", "--policy", "positive_bias", "--delta", "0.29"]
    options += ["--replay-ratio", "2", "--tolerance", "40", "--min-size", "3", "--max-draws-per-sample", "8", "--max-insert", "4"]
    options += ["--no-pace-inserts", "--correct-threshold", "0.5", "--max-draws", "9", "--seed", "11"]
    assert daemon.json("buffer", "create", "life", *options) == {"created": "life"}
    assert daemon.ctl("buffer", "create", "life", check=False).returncode == FAILED
    described = daemon.json("buffer", "describe", "life")["options"]
    assert described == {
        "capacity_items": 100, "capacity_bytes": 65536, "retention": "positive_bias", "delta": "0.29", "selector": "uniform",
        "priority_exponent": 1.0, "staleness_decay": 0.0, "max_staleness": None, "max_age_ms": 0, "evict_staleness": None,
        "max_draws": 9, "correct_threshold": 0.5,
        "replay_ratio": 2.0, "tolerance": 40.0, "min_size": 3, "max_draws_per_sample": 8,
        "max_insert": 4, "pace_draws": True, "pace_inserts": False, "seed": 11, "views": [],
        "unit": "trajectory", "closed": False, "lease_ms": 0, "zero_spread": "keep", "parts": 1, "prompt_history": 0,
        "level": "disk",
    }  # fmt: skip
    assert daemon.json("buffer", "alter", "life", "--replay-ratio", "4", "--pace-inserts") == {"altered": "life"}
    assert daemon.json("buffer", "describe", "life")["options"] == {**described, "replay_ratio": 4.0, "pace_inserts": True}
    assert "capacity_items" in daemon.ctl("buffer", "describe", "life").stdout
    assert "life" in [listed["name"] for listed in daemon.json_lines("buffer", "list")]
    assert "positive_bias(0.29)" in daemon.ctl("buffer", "list").stdout
    assert daemon.json("buffer", "drop", "life", "--yes") == {"dropped": "life"}
    assert daemon.ctl("buffer", "describe", "life", check=False).returncode == FAILED


PACED = ["--replay-ratio", 2, "--tolerance", 40, "--max-draws-per-sample", 8, "--max-insert", 4]
VIEW = {"selector": "uniform", "priority_exponent": 1.0, "staleness_decay": 0.0}
# option: (what else is given, at creation, as described, altered to, as described then). Altered to None: it cannot be.
OPTIONS = {
    "capacity-items": ([], [100], 100, [50], 50),
    "capacity-bytes": ([], ["64KiB"], 65536, ["1MiB"], 1 << 20),
    "policy": ([], ["positive_bias"], "positive_bias", ["uniform"], "fifo"),
    "retention": ([], ["best"], "best", ["positive_bias"], "positive_bias"),
    "delta": (["--retention", "positive_bias"], ["0.25"], "0.25", ["0.3"], "0.3"),
    "selector": ([], ["epoch"], "epoch", ["lifo"], "lifo"),
    "priority-exponent": (["--selector", "prioritized"], [0.5], 0.5, [2], 2.0),
    "staleness-decay": (["--selector", "recency"], [20], 20.0, [7.5], 7.5),
    "unit": ([], ["group"], "group", None, None),
    "max-age": ([], ["90s"], 90_000, ["30m"], 1_800_000),
    "lease": (["--selector", "fifo"], ["60s"], 60_000, ["500ms"], 500),
    "closed": ([], [], True, "no", False),
    "zero-spread": ([], ["refuse"], "refuse", ["keep"], "keep"),
    "parts": ([], [3], 3, [2], 2),
    "prompt-history": ([], [100], 100, [7], 7),
    "level": ([], ["process"], "process", ["memory"], "memory"),
    "evict-staleness": ([], [9], 9, [-1], None),
    "max-staleness": ([], [5], 5, [0], 0),
    "max-draws": ([], [4], 4, [0], 0),
    "correct-threshold": ([], [0.5], 0.5, [-1.5], -1.5),
    "replay-ratio": (PACED[2:], [3], 3.0, [1.5], 1.5),
    "tolerance": (PACED[:2] + PACED[4:], [30], 30.0, [64.5], 64.5),
    "min-size": ([], [12], 12, [3], 3),
    "max-draws-per-sample": (PACED[:4] + PACED[6:], [16], 16, [5], 5),
    "max-insert": (PACED[:6], [6], 6, [1], 1),
    "pace-draws": (PACED, [], True, "no", False),
    "pace-inserts": (PACED, [], True, "no", False),
    "view": ([], ["good: correct = yes"], [{"name": "good", "filter": "correct = yes", **VIEW}],
             ["long: tokens > 2 | lifo"], [{"name": "long", "filter": "tokens > 2", **VIEW, "selector": "lifo"}]),
    "seed": ([], [11], 11, [12], 12),
}  # fmt: skip
DESCRIBED_AS = {"policy": "retention", "max-age": "max_age_ms", "lease": "lease_ms", "view": "views"}


def test_every_option_of_a_buffer_is_in_the_table(daemon):
    for command in ("create", "alter"):
        offered = re.findall(r"^  --([a-z-]+)", daemon.ctl("buffer", command, "--help").stdout.split("Buffer options:")[1], re.MULTILINE)
        assert sorted(set(offered)) == sorted(OPTIONS)


@pytest.mark.parametrize("option", OPTIONS)
def test_an_option_is_created_described_and_altered_by_its_name(daemon, option):
    also, created, described, altered, described_then = OPTIONS[option]
    name = DESCRIBED_AS.get(option, option.replace("-", "_"))

    def options():
        return daemon.json("buffer", "describe", "optional")["options"]

    daemon.ctl("buffer", "create", "optional", *also, f"--{option}", *created)
    try:
        before = options()
        assert before[name] == described
        if altered is None:
            refused = daemon.ctl("buffer", "alter", "optional", f"--{option}", "trajectory", "--json", check=False)
            assert refused.returncode == FAILED and "cannot be altered" in error_of(refused)["message"]
            assert options() == before
            return
        daemon.ctl("buffer", "alter", "optional", *([f"--no-{option}"] if altered == "no" else [f"--{option}", *altered]))
        assert options() == {**before, name: described_then}  # and nothing else
        shown = daemon.ctl("buffer", "describe", "optional").stdout
        assert re.search(rf"^  {name} ", shown, re.MULTILINE)
    finally:
        daemon.ctl("buffer", "drop", "optional", "--yes")


@pytest.mark.parametrize("selector", ["uniform", "uniform_distinct", "lifo", "fifo", "epoch", "unused_first", "prioritized", "recency"])
def test_a_selector_goes_by_its_name(daemon, selector):
    daemon.ctl("buffer", "create", "selected", "--selector", selector, *(["--staleness-decay", 5] if selector == "recency" else []))
    daemon.ctl("import", "selected", input="".join(line(f"t{i}") for i in range(6)))
    assert daemon.json("buffer", "describe", "selected")["options"]["selector"] == selector
    assert re.search(rf"^selected .* {selector} ", daemon.ctl("buffer", "list").stdout, re.MULTILINE)
    ids = [draw["trajectory"]["trajectory_id"] for draw in daemon.json_lines("sample", "selected", "-n", 6)]
    everyone = [f"t{i}" for i in range(6)]
    assert set(ids) <= set(everyone) and len(ids) == 6
    if selector in ("lifo", "fifo"):
        assert ids == (everyone[::-1] if selector == "lifo" else everyone)
    elif selector in ("uniform_distinct", "epoch", "unused_first"):
        assert sorted(ids) == everyone
    daemon.ctl("buffer", "drop", "selected", "--yes")


@pytest.mark.parametrize(
    "retention, delta, kept",
    [
        ("fifo", None, ["t4", "t5", "t6", "t7"]),
        ("positive_bias", "0.25", ["t3", "t5", "t6", "t7"]),  # t3 is the freshest correct one of those before
        ("best", "0.25", ["t1", "t5", "t6", "t7"]),  # t1 has the highest reward
    ],
)
def test_a_retention_goes_by_its_name(daemon, retention, delta, kept):
    daemon.ctl("buffer", "create", "retained", "--capacity-items", 4, "--retention", retention, *(["--delta", delta] if delta else []))
    for i in range(8):
        daemon.ctl("import", "retained", input=line(f"t{i}", correct="yes" if i in (0, 3) else "no", reward=9 if i == 1 else i / 10))
    described = daemon.json("buffer", "describe", "retained")["options"]
    assert (described["retention"], described["delta"]) == (retention, delta or "0")
    assert re.search(rf"^retained .* {retention}{re.escape(f'({delta})') if delta else ''} ", daemon.ctl("buffer", "list").stdout,
                     re.MULTILINE)  # fmt: skip
    assert [json.loads(row)["trajectory_id"] for row in daemon.ctl("export", "retained").stdout.splitlines()] == kept
    daemon.ctl("buffer", "drop", "retained", "--yes")


def test_a_wrong_pacing_is_refused_with_the_sum(daemon):
    done = daemon.ctl("buffer", "create", "bad", "--replay-ratio", 2, "--tolerance", 20, "--max-draws-per-sample", 64,
                      "--max-insert", 8, "--json", check=False)  # fmt: skip
    assert (done.returncode, error_of(done)["code"]) == (FAILED, "invalid_argument")
    assert "64 + 8 * 2 = 80 exceeds 2 * tolerance = 40" in error_of(done)["message"]


def test_drop_asks_on_a_terminal_and_needs_yes_elsewhere(daemon):
    daemon.ctl("buffer", "create", "precious", "--capacity-bytes", "64KiB")
    assert daemon.ctl("buffer", "drop", "precious", check=False).returncode == USAGE

    def drop_answering(answer):
        master, slave = pty.openpty()
        try:
            process = subprocess.Popen([binary("replayctl"), "buffer", "drop", "precious", "--server", daemon.address], stdin=slave,
                                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)  # fmt: skip
            os.write(master, answer)
            _, errors = process.communicate(timeout=20)
            return process.returncode, errors
        finally:
            os.close(master)
            os.close(slave)

    code, errors = drop_answering(b"n\n")
    assert code == FAILED and 'Drop buffer "precious" and its 0 items? [y/N]' in errors
    assert "precious" in daemon.ctl("buffer", "list").stdout
    assert drop_answering(b"y\n")[0] == OK
    assert "precious" not in daemon.ctl("buffer", "list").stdout


# --- import ----------------------------------------------------------------------------------------------------------------------


def test_an_import_reports_what_it_stored(daemon, buffer, tmp_path):
    path = tmp_path / "lines.jsonl"
    path.write_text(group("g") + "\n" + line("a") + "   \n" + line("b").rstrip("\n"))
    report = daemon.json("import", buffer, path)
    assert {**report, "seconds": 0} == {
        "buffer": buffer, "read": 6, "accepted": 6, "duplicate": 0, "refused": 0, "existing": 0, "lost": 0, "level": "memory",
        "seconds": 0,
    }  # fmt: skip
    assert items(daemon, buffer) == 6
    assert "stored 1 of 1 trajectories" in daemon.ctl("insert", buffer, "-", input=line("c")).stdout


def test_groups_are_the_unit_where_the_buffer_says_so(daemon):
    daemon.ctl("buffer", "create", "groups", "--unit", "group", "--selector", "fifo", "--capacity-items", 2,
               "--capacity-bytes", "64KiB")  # fmt: skip
    daemon.ctl("import", "groups", input="".join(group(f"g{i}", size=3) for i in range(3)))
    drawn = daemon.json_lines("sample", "groups", "-n", 2, "--timeout", 0)
    assert [row["trajectory"]["trajectory_id"] for row in drawn] == [f"g{i}-{k}" for i in (1, 2) for k in range(3)]
    stats = daemon.json("stats", "groups")["buffers"][0]
    assert (stats["groups"], stats["items"]) == (2, 6)
    assert "6 in 2 groups of 2 groups" in daemon.ctl("stats", "groups").stdout
    assert "cannot be altered" in error_of(daemon.ctl("buffer", "alter", "groups", "--unit", "trajectory", "--json", check=False))[
        "message"
    ]


def test_a_queue_holds_what_is_drawn_until_it_is_acknowledged(daemon):
    daemon.ctl("buffer", "create", "queue", "--selector", "fifo", "--max-draws", 1, "--lease", "60s", "--capacity-bytes", "64KiB")
    daemon.ctl("import", "queue", input=line("a") + line("b") + line("c"))
    assert daemon.json_lines("sample", "queue", "-n", 1, "--timeout", 0)[0]["lease"] > 0
    assert daemon.json("stats", "queue")["buffers"][0]["items"] == 3  # given back when the command ended
    assert "acknowledged" in daemon.ctl("sample", "queue", "-n", 2, "--timeout", 0, "--acknowledge").stdout
    assert daemon.json("stats", "queue")["buffers"][0]["items"] == 1
    done = daemon.ctl("acknowledge", "queue", 77, "--json", check=False)
    assert (done.returncode, error_of(done)["code"]) == (FAILED, "not_found")
    daemon.ctl("buffer", "alter", "queue", "--closed")
    assert error_of(daemon.ctl("sample", "queue", "-n", 2, "--json", check=False))["code"] == "closed"
    assert daemon.ctl("import", "queue", input=line("late"), check=False).returncode != 0
    assert "nothing more is inserted" in daemon.ctl("stats", "queue").stdout


def test_the_baseline_without_a_buffer_uses_the_newest_first_and_each_once(daemon):
    daemon.ctl("buffer", "create", "baseline", "--selector", "lifo", "--max-draws", 1)

    def drawn(count):
        return [draw["trajectory"]["trajectory_id"] for draw in daemon.json_lines("sample", "baseline", "-n", count, "--timeout", 0)]

    daemon.ctl("import", "baseline", input="".join(line(f"t{i}") for i in range(4)))
    assert drawn(2) == ["t3", "t2"]
    daemon.ctl("import", "baseline", input=line("t4"))
    assert drawn(3) == ["t4", "t1", "t0"]
    stats = daemon.json("stats", "baseline")["buffers"][0]
    assert (stats["items"], stats["removed"]["max_draws"], stats["replay_ratio"], stats["never_used"]) == (0, 5, 1, 0)
    assert sum(stats["reuse_gap"]["counts"]) == 0
    assert (stats["item_draws"]["counts"][stats["item_draws"]["bounds"].index(1)], sum(stats["item_draws"]["counts"])) == (5, 5)


def test_groups_are_reserved_and_admitted(daemon):
    daemon.ctl("buffer", "create", "admitted", "--max-staleness", 1, "--capacity-bytes", "64KiB")
    daemon.ctl("import", "admitted", input=line("a"))
    assert daemon.json("admit", "admitted", "--batch", 4) == {"credits": 7, "live": 1, "reserved": 0}
    reserved = daemon.json("reserve", "admitted", "p7", "--size", 6, "--missing", "release", "--batch", 4)
    assert (reserved["present"], reserved["size"]) == (0, 6)
    done = daemon.ctl("admit", "admitted", "--batch", 4, "--count", 2, "--timeout", 0, "--json", check=False)
    assert (done.returncode, error_of(done)["code"], error_of(done)["reason"]) == (FAILED, "timed_out", "staleness")
    assert "1 groups, 0 members wait in them, 0 groups have expired" in daemon.ctl("stats", "admitted").stdout
    shown = daemon.json("stats", "admitted")["buffers"][0]
    assert (shown["reserved_groups"], shown["pending"], shown["expired_groups"]) == (1, 0, 0)
    assert "dropped with 0 of 6 members" in daemon.ctl("reserve", "admitted", "p7", "--drop").stdout
    assert "7 trajectories may be generated" in daemon.ctl("admit", "admitted", "--batch", 4).stdout


def test_a_group_that_waits_for_its_members_is_reserved_renewed_and_committed(daemon):
    daemon.ctl("buffer", "create", "waiting", "--capacity-bytes", "64KiB")
    arguments = ["reserve", "waiting", "p7", "--size", 6, "--lease", "100ms", "--deadline", "200ms", "--missing", "wait"]
    assert daemon.json(*arguments) == {"group_id": "p7", "present": 0, "size": 6, "first_item": 0}
    time.sleep(1)  # lease and deadline end, and it waits on
    assert daemon.json("stats", "waiting")["buffers"][0]["reserved_groups"] == 1
    assert daemon.json(*arguments)["size"] == 6
    other = daemon.ctl("reserve", "waiting", "p7", "--size", 5, "--json", check=False)
    assert (other.returncode, error_of(other)["code"]) == (FAILED, "already_exists")
    assert "committed with 0 of 6 members" in daemon.ctl("reserve", "waiting", "p7", "--commit").stdout
    assert daemon.json("stats", "waiting")["buffers"][0]["reserved_groups"] == 0
    gone = daemon.ctl("reserve", "waiting", "p7", "--commit", "--json", check=False)
    assert (gone.returncode, error_of(gone)["code"]) == (FAILED, "not_found")
    assert daemon.ctl("reserve", "waiting", "p7", "--commit", "--drop", check=False).returncode == USAGE
    assert daemon.ctl("reserve", "waiting", "p7", "--size", 2, "--missing", "perhaps", check=False).returncode == USAGE


def test_groups_stay_whole_whatever_the_batch(daemon, buffer):
    text = "".join(group(f"g{i}", size=3) for i in range(5)) + line("a") + line("b")
    daemon.ctl("import", buffer, "--batch", 2, input=text)
    stored = [json.loads(row) for row in daemon.ctl("export", buffer).stdout.splitlines()]
    assert [row["trajectory_id"] for row in stored] == [f"g{i}-{k}" for i in range(5) for k in range(3)] + ["a", "b"]


@pytest.mark.parametrize(
    "wrong, said",
    [
        ('{"token_ids":[1],"loss_mask":[1],"rewrad":1}', 'line 7: unknown key "rewrad"'),
        ('{"token_ids":[1],"token_ids":[1],"loss_mask":[1]}', 'line 7: key "token_ids" stands twice'),
        ('{"token_ids":[1],"loss_mask":[1],"reward":"high"}', 'line 7: reward is "high": it must be a number'),
        ('{"token_ids":[1,2],"loss_mask":[1]}', "line 7: loss_mask has 1 entries, token_ids has 2: they must agree"),
        ('{"token_ids":[1],"loss_mask":[1],"temperature":-1}', "line 7: temperature is -1"),
        ('{"token_ids":[1],"loss_mask":[1],"group_id":"x","group_size":3}', 'line 7: group "x" has 1 of its 3 members'),
        ("{", "line 7: not JSON: "),
    ],
)
def test_a_wrong_line_is_named_and_what_stands_before_it_is_stored(daemon, buffer, wrong, said):
    done = daemon.ctl("import", buffer, "--json", check=False, input=group("g") + line("a") + "\n" + wrong + "\n" + line("b"))
    assert done.returncode == BAD_DATA
    assert error_of(done)["message"].startswith(said)
    assert json.loads(done.stdout)["accepted"] == items(daemon, buffer) == 5


def test_what_exists_already_is_refused_or_skipped(daemon, buffer):
    daemon.ctl("import", buffer, input=group("g") + line("a"))
    more = group("f") + group("g") + line("a") + line("b")
    done = daemon.ctl("import", buffer, "--json", input=more, check=False)
    # What stands before the line is stored, so that the import can be taken up again there.
    assert (done.returncode, error_of(done)["code"], items(daemon, buffer)) == (FAILED, "already_exists", 9)
    assert error_of(done)["message"].startswith("line 5: ")
    report = daemon.json("import", buffer, "--skip-existing", input=more)
    assert (report["read"], report["accepted"], report["existing"]) == (10, 1, 9)
    assert items(daemon, buffer) == 10


@pytest.mark.parametrize("options", [("--max-insert", 8), ("--capacity-items", 50), ("--capacity-bytes", "4KiB")])
def test_import_finds_out_how_many_a_buffer_takes_at_once(daemon, options):
    daemon.ctl("buffer", "create", "small", *(() if "--capacity-bytes" in options else ("--capacity-bytes", "1MiB")), *options)
    report = daemon.json("import", "small", input="".join(line(f"t{i}") for i in range(100)))
    assert (report["read"], report["accepted"], report["level"]) == (100, 100, "memory")
    daemon.ctl("buffer", "drop", "small", "--yes")


def test_import_creates_the_buffer_only_when_asked(daemon):
    assert daemon.ctl("import", "made", input=line("a"), check=False).returncode == FAILED
    daemon.ctl("import", "made", "--create", "--capacity-bytes", "64KiB", "--capacity-items", 3, input=line("a"))
    daemon.ctl("import", "made", "--create", input=line("b"))
    assert (items(daemon, "made"), daemon.json("buffer", "describe", "made")["options"]["capacity_items"]) == (2, 3)
    daemon.ctl("buffer", "drop", "made", "--yes")


def test_an_import_that_pacing_holds_back_ends_with_the_reason(daemon):
    daemon.ctl("buffer", "create", "paced", "--capacity-bytes", "64KiB", "--replay-ratio", 1, "--tolerance", 4,
               "--max-draws-per-sample", 4, "--max-insert", 4)  # fmt: skip
    text = "".join(line(f"t{i}") for i in range(40))
    done = daemon.ctl("import", "paced", "--batch", 4, "--timeout", 2, "--json", input=text, check=False)
    assert (done.returncode, error_of(done)["code"], error_of(done)["reason"]) == (FAILED, "timed_out", "pacing")
    assert 0 < json.loads(done.stdout)["accepted"] < 40
    daemon.ctl("buffer", "drop", "paced", "--yes")


def test_a_slow_pipe_is_stored_as_it_comes_and_ctrl_c_ends_the_import(daemon, buffer):
    process = subprocess.Popen([binary("replayctl"), "import", buffer, "--json", "--server", daemon.address], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)  # fmt: skip
    process.stdin.write(group("g") + line("a"))
    process.stdin.flush()
    deadline = time.monotonic() + 20
    while items(daemon, buffer) != 5:
        assert time.monotonic() < deadline
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=20)
    assert process.returncode == INTERRUPTED and "interrupted" in errors
    assert json.loads(output)["accepted"] == 5


def test_a_file_that_cannot_be_read_ends_with_74(daemon, buffer, tmp_path):
    for path in (tmp_path, tmp_path / "none"):
        done = daemon.ctl("import", buffer, path, check=False)
        assert done.returncode == IO and str(path) in done.stderr


# --- sample, get, delete, export -------------------------------------------------------------------------------------------------


def test_sample_tells_of_each_slot(daemon, buffer):
    daemon.ctl("import", buffer, input=group("g", version_segments=[[1, 3, 5]]))
    slots = daemon.json_lines("sample", buffer, "-n", 6, "--step", 8)
    assert set(slots[0]) == {"slot", "item", "draw_count", "reward", "revision", "probability", "importance_weight", "staleness", "steps_since_last_use", "step", "part", "planned", "lease", "advantage", "columns", "trajectory"}
    assert [slot["slot"] for slot in slots] == list(range(6))
    assert {slot["probability"] for slot in slots} == {0.25} and {slot["importance_weight"] for slot in slots} == {1} and {slot["staleness"] for slot in slots} == {3}
    assert slots[0]["steps_since_last_use"] is None
    text = daemon.ctl("sample", buffer, "-n", 6, "--step", 9).stdout.splitlines()
    assert text[0].split()[:3] == ["SLOT", "ITEM", "TRAJECTORY"] and len(text) == 8 and text[-1] == "for step 9"


@pytest.mark.parametrize("selector", ["epoch", "unused_first", "prioritized", "recency"])
def test_what_was_drawn_how_stale_and_how_important_items_are_decides_who_is_drawn(daemon, selector):
    """Five items of versions 0 … 4 and priorities 0 … 4, of which the selector makes what it says."""
    daemon.ctl("buffer", "create", selector, "--capacity-items", 10, "--selector", selector, "--staleness-decay", 2, "--seed", 1)
    lines = [line(f"t{i}", priority=i, version_segments=[[1, 3, i]]) for i in range(5)]
    daemon.ctl("import", selector, input="".join(lines))
    count = 5 if selector in ("epoch", "unused_first") else 200
    draws = daemon.json_lines("sample", selector, "-n", count, "--step", 4)
    weight = {"prioritized": lambda i: i * math.exp((i - 4) / 2), "recency": lambda i: math.exp((i - 4) / 2)}.get(selector, lambda _: 1)
    total, candidates = sum(weight(i) for i in range(5)), sum(weight(i) > 0 for i in range(5))
    for draw in draws:
        number = int(draw["trajectory"]["trajectory_id"][1:])
        assert draw["probability"] == pytest.approx(weight(number) / total)
        assert draw["importance_weight"] == pytest.approx(total / (candidates * weight(number)), rel=1e-12)
        assert draw["trajectory"]["priority"] == number
    names = {draw["trajectory"]["trajectory_id"] for draw in draws}
    assert names == {f"t{i}" for i in range(1 if selector == "prioritized" else 0, 5)}
    few = daemon.json_lines("sample", selector, "-n", 50, "--step", 4, "--max-staleness", 1)
    assert {draw["staleness"] for draw in few} == {0, 1}
    daemon.ctl("buffer", "drop", selector, "--yes")


def test_an_update_changes_what_is_drawn_and_told_but_not_the_trajectory(daemon):
    daemon.ctl("buffer", "create", "updated", "--capacity-items", 10, "--selector", "prioritized")
    daemon.ctl("import", "updated", input=line("a", reward=0.25) + line("b") + line("c"))
    assert daemon.json("update", "updated", "a", "--reward", 0.5, "--revision", 0) == {"trajectory_id": "a", "outcome": "updated", "revision": 1}
    again = daemon.ctl("update", "updated", "a", "--reward", 0.75, "--revision", 0, check=False)
    assert (again.returncode, again.stdout) == (FAILED, "a: has another revision, 1\nupdated 0 of 1\n")
    assert daemon.json_lines("update", "updated", "b", "c", "nobody", "--priority", 0, check=False)[2]["outcome"] == "not there"
    draws = daemon.json_lines("sample", "updated", "-n", 20)
    assert {(draw["trajectory"]["trajectory_id"], draw["reward"], draw["revision"]) for draw in draws} == {("a", 0.5, 1)}
    assert {draw["trajectory"]["reward"] for draw in draws} == {0.25}
    daemon.ctl("update", "updated", "a", "--priority", 0)
    waits = daemon.ctl("sample", "updated", "--timeout", 0, "--json", check=False)
    assert error_of(waits)["reason"] == "filter" and "3 have priority 0" in error_of(waits)["message"]
    daemon.ctl("update", "updated", "a", "--priority", 1, "--advantage", -0.5, "--tag", "level=3", "--tag", "topic=a=b", "--tag", "hard=true")
    assert daemon.json("sample", "updated")["advantage"] == -0.5
    seen = daemon.json("get", "updated", "a", "--column", "none")
    assert (seen["reward"], seen["revision"]) == (0.5, 3)
    assert seen["late_tags"] == {"level": 3, "topic": "a=b", "hard": True} and seen["columns"] == {}
    assert "updated            3 times, reward 0.5, 3 tags" in daemon.ctl("get", "updated", "a").stdout
    assert daemon.ctl("update", "updated", "a", "--tag", "level", check=False).returncode == USAGE
    wrong = daemon.ctl("update", "updated", "a", "--priority", -1, "--json", check=False)
    assert "priority is -1.000000: it must be from 0 to 1e9" in error_of(wrong)["message"]
    daemon.ctl("buffer", "drop", "updated", "--yes")


def test_stats_break_down_by_source_length_and_draws(daemon):
    daemon.ctl("buffer", "create", "broken-down", "--capacity-items", 3, "--selector", "fifo")
    for i, (source, length) in enumerate([("math", 3), ("math", 3), ("code", 200), ("", 3)]):
        tokens = {"token_ids": [1] * length, "loss_mask": [1] * length}
        daemon.ctl("import", "broken-down", input=json.dumps({"trajectory_id": f"t{i}", "source": source, **tokens}) + "\n")
    stats = daemon.json("stats", "broken-down", "--breakdown")["buffers"][0]
    assert [row for row in stats["sources"] if row["name"] == "math"] == [
        {"name": "math", "live": 1, "inserted": 2, "withheld": 0, "removed": {"capacity": 1}}]
    assert {row["name"]: row["live"] for row in stats["lengths"] if row["live"]} == {"1-128": 2, "129-256": 1}
    assert stats["draws"][0] == {"name": "0", "removed": {"capacity": 1}}
    assert "sources" not in daemon.json("stats", "broken-down")["buffers"][0]
    text = daemon.ctl("stats", "broken-down", "--breakdown").stdout
    assert re.search(r"SOURCE +LIVE +% +INSERTED +% +WITHHELD +CAPACITY", text)
    assert re.search(r"math +1 +33\.3 +2 +50\.0 +0 +1", text)
    assert re.search(r"\(none\) +1 +33\.3 +1 +25\.0", text)
    daemon.ctl("buffer", "drop", "broken-down", "--yes")


def test_groups_with_zero_spread_are_refused_by_name(daemon):
    daemon.ctl("buffer", "create", "spread", "--zero-spread", "refuse")
    done = daemon.json("import", "spread", input=group("flat", reward=1) + group("steep", size=1, reward=0) + line("alone"))
    assert (done["read"], done["accepted"], done["refused"]) == (6, 1, 5)
    text = daemon.ctl("import", "spread", input=group("flat2", reward=1)).stdout
    assert "stored 0 of 4 trajectories, 4 were refused for zero spread" in text
    stats = daemon.json("stats", "spread")["buffers"][0]
    assert (stats["items"], stats["rejected"], stats["zero_spread"], stats["zero_spread_refused"]) == (1, 9, 0, 9)
    assert stats["options"]["zero_spread"] == "refuse"
    daemon.ctl("buffer", "alter", "spread", "--zero-spread", "keep")
    daemon.ctl("import", "spread", input=group("kept", reward=1))
    assert "zero spread" in daemon.ctl("stats", "spread").stdout
    assert daemon.json("stats", "spread")["buffers"][0]["zero_spread"] == 4
    daemon.ctl("buffer", "drop", "spread", "--yes")


def test_views_and_composed_batches(daemon):
    positives = "positives: correct = yes, draws < 3 | uniform_distinct"
    hard = "hard: tag.level >= 3, source = math | prioritized priority_exponent=0.5 staleness_decay=20"
    daemon.ctl("buffer", "create", "viewed", "--view", positives, "--view", hard)
    for i in range(6):
        daemon.ctl("import", "viewed", input=line(f"t{i}", correct="yes" if i < 2 else "no", source="math", tags={"level": i}))
    stats = daemon.json("stats", "viewed")["buffers"][0]
    assert stats["views"] == {"positives": 2, "hard": 3}
    assert stats["options"]["views"] == [
        {"name": "positives", "filter": "correct = yes, draws < 3", "selector": "uniform_distinct", "priority_exponent": 1,
         "staleness_decay": 0},
        {"name": "hard", "filter": "tag.level >= 3, source = math", "selector": "prioritized", "priority_exponent": 0.5,
         "staleness_decay": 20},
    ]
    assert "positives 2, hard 3" in daemon.ctl("stats", "viewed").stdout
    drawn = daemon.json_lines("sample", "viewed", "-n", 9, "--view", "hard")
    assert {draw["trajectory"]["trajectory_id"] for draw in drawn} <= {"t3", "t4", "t5"}
    parts = daemon.json_lines("sample", "viewed", "--part", "4:positives,or_next", "--part", "6:hard", "--part", "2,max_staleness=0")
    assert [draw["part"] for draw in parts] == [0] * 2 + [1] * 8 + [2] * 2
    assert {draw["trajectory"]["trajectory_id"] for draw in parts[:2]} == {"t0", "t1"}
    for _ in range(5):  # draws < 3 of both hold until they do not
        daemon.ctl("sample", "viewed", "--view", "positives", "--timeout", 0, check=False)
    short = daemon.ctl("sample", "viewed", "--view", "positives", "--timeout", 0, "--json", check=False)
    assert error_of(short)["reason"] == "filter" and "0 of 1 items of view positives may be drawn" in error_of(short)["message"]
    unknown = daemon.ctl("sample", "viewed", "--view", "x", "--json", check=False)
    assert 'view is "x": the buffer declares only positives, hard' in error_of(unknown)["message"]
    assert daemon.json("buffer", "alter", "viewed", "--view", "long: tokens > 2") == {"altered": "viewed"}
    assert daemon.json("stats", "viewed")["buffers"][0]["views"] == {"long": 6}
    daemon.ctl("buffer", "alter", "viewed", "--view", "none")
    assert daemon.json("stats", "viewed")["buffers"][0]["views"] == {}
    wrong = daemon.ctl("buffer", "create", "wrong", "--view", "v: colour = red", "--json", check=False)
    assert 'views[0].filter "colour = red" does not begin with a field' in error_of(wrong)["message"]
    assert "is not \"NAME: FILTER\"" in daemon.ctl("buffer", "create", "wrong", "--view", "v", check=False).stderr
    assert "is not COUNT[:[BUFFER/]VIEW]" in daemon.ctl("sample", "viewed", "--part", "x:y", check=False).stderr
    daemon.ctl("buffer", "drop", "viewed", "--yes")


def test_a_replayed_part_excludes_the_fresh_ones(daemon):
    daemon.ctl("buffer", "create", "aged", "--capacity-items", 20)
    daemon.ctl("import", "aged", input="".join(line(f"t{i}", version_segments=[[1, 3, i]]) for i in range(10)))
    drawn = daemon.json_lines("sample", "aged", "--step", 9, "--part", "30:,min_staleness=4", "--part", "10:,max_staleness=3")
    assert {draw["staleness"] for draw in drawn[:30]} <= {4, 5, 6, 7, 8, 9} and {draw["staleness"] for draw in drawn[30:]} <= {0, 1, 2, 3}
    assert [draw["probability"] for draw in drawn] == [1 / 6] * 30 + [1 / 4] * 10
    assert {draw["importance_weight"] for draw in drawn} == {1}
    refused = daemon.ctl("sample", "aged", "--part", "3:,min_staleness=4,max_staleness=3", check=False)
    assert "parts[0].min_staleness is 4" in refused.stderr


def test_parts_may_come_from_other_buffers(daemon):
    daemon.ctl("buffer", "create", "live")
    daemon.ctl("buffer", "create", "frozen", "--view", "good: correct = yes")
    for name in ("live", "frozen"):
        daemon.ctl("import", name, input=line(name + "-no", correct="no") + line(name + "-yes", correct="yes"))
    drawn = daemon.json_lines("sample", "live", "--part", "2:frozen/good", "--part", "2:frozen/,max_staleness=4", "--part", "3")
    assert [draw["part"] for draw in drawn] == [0] * 2 + [1] * 2 + [2] * 3
    ids = [draw["trajectory"]["trajectory_id"] for draw in drawn]
    assert ids[:2] == ["frozen-yes"] * 2 and all(name.startswith("frozen") for name in ids[:4]) and all(name.startswith("live") for name in ids[4:])
    wrong = daemon.ctl("sample", "live", "--part", "1:other/", "--json", check=False)
    assert error_of(wrong)["message"] == 'parts[0].buffer: there is no buffer "other"'
    assert "is not COUNT[:[BUFFER/]VIEW]" in daemon.ctl("sample", "live", "--part", "1:/good", check=False).stderr


def test_each_rank_draws_from_its_part(daemon):
    daemon.ctl("buffer", "create", "sharded", "--parts", 2, "--selector", "fifo")
    daemon.ctl("import", "sharded", input="".join(line(f"t{i}") for i in range(6)))
    stats = daemon.json("stats", "sharded")["buffers"][0]
    assert stats["views"] == {"part 0": 3, "part 1": 3} and stats["options"]["parts"] == 2
    for rank in (0, 1):
        drawn = daemon.json_lines("sample", "sharded", "-n", 3, "--rank", rank, "--world-size", 2)
        assert [draw["item"] % 2 for draw in drawn] == [rank] * 3
    wrong = daemon.ctl("sample", "sharded", "--json", check=False)
    assert "the buffer has parts = 2" in error_of(wrong)["message"]


def test_history_shows_what_became_of_each_prompt(daemon):
    daemon.ctl("buffer", "create", "prompts", "--prompt-history", 100, "--view", "learnable: success > 0.2, success < 0.8")
    for i in range(9):
        daemon.ctl("import", "prompts", input=line(f"t{i}", source="math", dataset_index=i % 3, correct="yes" if i < 4 else "no", reward=0.5))
    daemon.ctl("update", "prompts", "t8", "--correct", "unknown")
    rows = daemon.json_lines("history", "prompts", "--source", "math")
    assert rows == [
        {"dataset_index": 0, "rollouts": 3, "scored": 3, "correct": 2, "success": 2 / 3, "reward_sum": 1.5},
        {"dataset_index": 1, "rollouts": 3, "scored": 3, "correct": 1, "success": 1 / 3, "reward_sum": 1.5},
        {"dataset_index": 2, "rollouts": 3, "scored": 2, "correct": 1, "success": 0.5, "reward_sum": 1.5},
    ]
    assert daemon.json_lines("history", "prompts", "--source", "math", "--after", 0, "--limit", 1) == rows[1:2]
    text = daemon.ctl("history", "prompts", "--source", "math").stdout.splitlines()
    assert text[0].split() == ["INDEX", "ROLLOUTS", "SCORED", "CORRECT", "SUCCESS", "MEAN", "REWARD"]
    assert text[1].split() == ["0", "3", "3", "2", "0.667", "0.5"] and len(text) == 4
    stats = daemon.json("stats", "prompts")["buffers"][0]
    assert stats["prompts"] == 3 and stats["views"] == {"learnable": 9}
    assert "3 of 100 remembered" in daemon.ctl("stats", "prompts").stdout
    off = daemon.ctl("buffer", "alter", "prompts", "--prompt-history", 0, "--json", check=False)
    assert "but prompt_history is 0" in error_of(off)["message"]


def test_a_sample_with_a_consumer_is_the_same_when_asked_again(daemon):
    daemon.ctl("buffer", "create", "planned", "--capacity-items", 8, "--selector", "uniform_distinct")
    daemon.ctl("import", "planned", input="".join(line(f"t{i}") for i in range(8)))

    def ask(rank, step=1, *more, **options):
        key = ["--consumer", "trainer", "--rank", rank, "--world-size", 2, "--step", step]
        return daemon.json_lines("sample", "planned", "-n", 4, *key, *more, **options)

    def ids(draws):
        return [draw["trajectory"]["trajectory_id"] for draw in draws]

    first, second = ask(0), ask(1)
    assert not first[0]["planned"] and second[0]["planned"]
    assert sorted(ids(first) + ids(second)) == [f"t{i}" for i in range(8)]
    daemon.ctl("import", "planned", input="".join(line(f"u{i}") for i in range(8)))
    assert ids(ask(0)) == ids(first) and ids(ask(1)) == ids(second)
    assert daemon.json("stats", "planned")["buffers"][0]["drawn"] == 8
    for step in (2, 3, 4, 5):
        ask(0, step)
    key = ["--consumer", "trainer", "--world-size", 2, "--json"]
    expired = daemon.ctl("sample", "planned", "-n", 4, "--step", 1, *key, check=False)
    assert error_of(expired)["code"] == "plan_expired"
    reused = daemon.ctl("sample", "planned", "-n", 3, "--step", 5, *key, check=False)
    assert error_of(reused)["code"] == "key_reused"
    without = daemon.ctl("sample", "planned", "-n", 3, *key, check=False)
    assert "step is missing" in error_of(without)["message"]
    daemon.ctl("buffer", "drop", "planned", "--yes")


def test_what_is_too_old_or_too_stale_leaves(daemon):
    daemon.ctl("buffer", "create", "aging", "--evict-staleness", 3)
    daemon.ctl("import", "aging", input="".join(line(f"t{i}", run_id="aging", version_segments=[[1, 3, i]]) for i in range(6)))
    assert items(daemon, "aging") == 4  # of version 5 and not more than 3 older, while nothing is published
    daemon.ctl("versions", "publish", 7, "--run", "aging")
    stats = daemon.json("stats", "aging")["buffers"][0]
    assert (stats["items"], stats["removed"]["staleness"]) == (2, 4)
    daemon.ctl("buffer", "alter", "aging", "--max-age", "1s")
    deadline = time.monotonic() + 20
    while items(daemon, "aging") > 0:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert daemon.json("stats", "aging")["buffers"][0]["removed"]["age"] == 2
    assert "is not a duration" in daemon.ctl("buffer", "alter", "aging", "--max-age", "soon", check=False).stderr
    assert daemon.json("buffer", "alter", "aging", "--max-age", "0", "--evict-staleness", "-1") == {"altered": "aging"}
    daemon.ctl("import", "aging", input=line("old", run_id="aging", version_segments=[[1, 3, 0]]))
    assert items(daemon, "aging") == 1
    daemon.ctl("buffer", "drop", "aging", "--yes")


def test_the_best_stay_beside_the_freshest(daemon):
    daemon.ctl("buffer", "create", "best", "--capacity-items", 6, "--retention", "best", "--delta", "0.5")
    for i, reward in enumerate([5, 1, 4, 2, 3, 9, 0, 0, 0]):
        daemon.ctl("import", "best", input=line(f"t{i}", reward=reward))
    kept = [json.loads(each)["trajectory_id"] for each in daemon.ctl("export", "best").stdout.splitlines()]
    assert kept == ["t0", "t2", "t5", "t6", "t7", "t8"]
    daemon.ctl("buffer", "drop", "best", "--yes")


def test_a_sample_that_cannot_be_met_says_why(daemon, buffer):
    done = daemon.ctl("sample", buffer, "--timeout", 0, "--json", check=False)
    assert (done.returncode, done.stdout, error_of(done)["code"]) == (FAILED, "", "timed_out")
    assert error_of(done)["reason"] in ("min_size", "no_producer")


def test_get_and_delete_work_by_id(daemon, buffer):
    daemon.ctl("import", buffer, input=group("g", reward=0.5, source="here"))
    got = daemon.json_lines("get", buffer, "g-2", "g-0")
    assert [entry["trajectory"]["trajectory_id"] for entry in got] == ["g-2", "g-0"]
    assert set(got[0]) == {"item", "draw_count", "reward", "revision", "late_tags", "columns", "trajectory"}
    assert "member 2 of 4" in daemon.ctl("get", buffer, "g-2").stdout
    done = daemon.ctl("get", buffer, "g-1", "none", "--json", check=False)
    assert (done.returncode, len(done.stdout.splitlines()), error_of(done)["code"]) == (FAILED, 1, "not_found")
    assert daemon.json("delete", buffer, "g-2", "g-0") == {"deleted": 2, "requested": 2}
    done = daemon.ctl("delete", buffer, "g-2", "g-1", "--json", check=False)
    assert (done.returncode, json.loads(done.stdout)) == (FAILED, {"deleted": 1, "requested": 2})
    assert items(daemon, buffer) == 1


def test_columns_are_imported_and_exported_by_name(daemon, buffer):
    columns = {
        "ref": {"type": "f32", "alignment": "token", "shape": [3], "values": [None, -0.1, -2.0]},
        "image": {"type": "u8", "alignment": "row", "shape": [2, 2], "values": [0, 255, 7, 1]},
        "top": {"type": "i32", "alignment": "ragged", "shape": [3, 1], "offsets": [0, 0, 2, 3], "values": [7, -9, 15]},
        "hidden": {"type": "bf16", "alignment": "token", "shape": [3, 1], "base64": "gD8AQEBA"},
    }
    assert "stored 3 of 3" in daemon.ctl("insert", buffer, input=line("a", columns=columns) + line("b") + line("c", columns={"ref": {"type": "f32", "values": [1, 2, 3]}})).stdout
    assert daemon.json("stats", buffer)["buffers"][0]["columns"] == {"hidden": 1, "image": 1, "ref": 2, "top": 1}
    assert all("columns" not in json.loads(row) for row in daemon.ctl("export", buffer).stdout.splitlines())
    named = [argument for name in columns for argument in ("--column", name)]
    exported = daemon.ctl("export", buffer, *named).stdout
    rows = [json.loads(row) for row in exported.splitlines()]
    assert rows[0]["columns"] == columns and "columns" not in rows[1]
    assert rows[2]["columns"] == {"ref": {"type": "f32", "alignment": "token", "shape": [3], "values": [1.0, 2.0, 3.0]}}
    daemon.ctl("delete", buffer, "a", "b", "c")
    daemon.ctl("import", buffer, input=exported)
    assert daemon.ctl("export", buffer, *named).stdout == exported
    got = daemon.json("get", buffer, "a", "--column", "top")
    assert got["trajectory"]["columns"] == {"top": columns["top"]}
    assert got["columns"] == {"top": {"type": "i32", "alignment": "ragged", "shape": [3, 1], "bytes": 12}}


@pytest.mark.parametrize(
    "column, said",
    [
        ({"type": "f32", "values": [1, "x", 2]}, 'columns.ref.values[1] is "x": it must be a number, or null for NaN'),
        ({"values": [1, 2, 3]}, "columns.ref.type is missing"),
        ({"type": "f32", "values": [1, 2]}, 'column "ref" has 2 tokens, token_ids has 3: they must agree'),
        ({"type": "f32", "shape": [3, 2], "values": [1, 2, 3]}, 'column "ref": data has 12 bytes, shape [3, 2] of f32 has 24'),
    ],
)
def test_a_line_with_a_wrong_column_is_named(daemon, buffer, column, said):
    done = daemon.ctl("import", buffer, "--json", check=False, input=line("a") + line("b", columns={"ref": column}) + line("c"))
    assert done.returncode == BAD_DATA
    assert error_of(done)["message"].startswith("line 2: " + said)
    assert items(daemon, buffer) == 1


def test_a_column_that_comes_later_is_written_from_a_file(daemon, buffer, tmp_path):
    daemon.ctl("import", buffer, input=line("a") + line("b"))
    path = tmp_path / "column.json"
    path.write_text('{"type": "f32",\n "values": [0, -0.5, -1.5]}\n')
    assert daemon.json("update", buffer, "a", "--column", f"ref={path}")["outcome"] == "updated"
    written = {"type": "f32", "alignment": "token", "shape": [3], "values": [0.0, -0.5, -1.5]}
    assert daemon.json("get", buffer, "a", "--column", "ref")["trajectory"]["columns"] == {"ref": written}
    assert "column             ref f32 [3] by token, 12 B" in daemon.ctl("get", buffer, "a", "--column", "ref").stdout
    verdict = '{"type": "bool", "alignment": "row", "values": [true]}'
    daemon.ctl("update", buffer, "a", "--column", f"ref={path}", "--column", "ok=-", "--reward", 1, input=verdict)
    exported = json.loads(daemon.ctl("export", buffer, "--column", "ref", "--column", "ok").stdout.splitlines()[0])
    assert set(exported["columns"]) == {"ref", "ok"} and exported["columns"]["ok"]["values"] == [True]

    def refused(*columns, ids=("a",), exit_code=BAD_DATA):
        done = daemon.ctl("update", buffer, *ids, *(argument for column in columns for argument in ("--column", column)), check=False)
        assert (done.returncode, done.stdout) == (exit_code, "")
        return done.stderr

    path.write_text('{"type": "f32", "values": [0, "low", 1]}')
    assert f'{path}: values[1] is "low": it must be a number, or null for NaN' in refused(f"ref={path}")
    path.write_text('{"type": "f32",\n "values": [0 1]}')
    assert f"{path}: not JSON: parse error at line 2, column 15" in refused(f"ref={path}")
    path.write_text('{"type": "f32", "values": [0, 1]}')
    assert 'column "ref" has 2 tokens, the item has 3: they must agree' in refused(f"ref={path}", exit_code=FAILED)
    assert f"{path}.not" in refused(f"ref={path}.not", exit_code=IO)
    assert '"ref" is not NAME=FILE' in refused("ref", exit_code=USAGE)
    assert "there are 2 ids: a column belongs to one trajectory" in refused(f"ref={path}", ids=("a", "b"), exit_code=USAGE)
    assert daemon.json("get", buffer, "a", "--column", "ref")["trajectory"]["columns"] == {"ref": written}


def test_an_export_keeps_every_field_to_the_bit(daemon, buffer):
    strange = {
        "trajectory_id": 'quote " backslash \\ \u20ac \u0001', "run_id": "run", "epoch": 18446744073709551615,
        "group_id": "g", "group_size": 1, "index_in_group": 0, "rollout_id": "r", "part_index": 1, "part_count": 2,
        "token_ids": [0, 2147483647, 5], "prompt_length": 1, "segments": [[0, 1, "system", False], [1, 3, "tool", True]],
        "loss_mask": [0, 1, 1], "behaviour_logprobs": [None, -1e-45, "0xffc00001"], "version_segments": [[1, 3, -9223372036854775808]],
        "reward": -0.0, "named_rewards": {"b": 0.1, "a": 3.4028235e38}, "correct": "no", "advantage": ["-Infinity", 0.1, "Infinity"],
        "status": "failed_environment", "source": "s", "dataset_index": -7, "temperature": 0.7, "priority": 2.5,
        "created_at_unix_ns": 1234567890123456789,
        "tags": {"z": 1, "y": 1.0, "x": "1", "w": True, "v": {"real_bits": "0x7ff0000000000000"}}, "opaque_base64": "AP8Q",
    }  # fmt: skip
    daemon.ctl("import", buffer, input=json.dumps(strange) + "\n")
    first = daemon.ctl("export", buffer).stdout
    assert json.loads(first) == strange
    assert first.count('"y":1.0') == 1 and '"reward":-0.0' in first
    assert list(json.loads(first)["tags"]) == list(strange["tags"])
    daemon.ctl("delete", buffer, strange["trajectory_id"])
    daemon.ctl("import", buffer, input=first)
    assert daemon.ctl("export", buffer).stdout == first


def test_an_exported_file_appears_complete_or_not_at_all(daemon, buffer, tmp_path):
    daemon.ctl("import", buffer, input="".join(line(f"t{i}") for i in range(300)))
    path = tmp_path / "out.jsonl"
    report = daemon.json("export", buffer, "-o", path)
    assert report == {"buffer": buffer, "file": str(path), "exported": 300, "bytes": path.stat().st_size}
    assert len(path.read_text().splitlines()) == 300 and os.listdir(tmp_path) == ["out.jsonl"]
    done = daemon.ctl("export", buffer, "-o", tmp_path / "none" / "out.jsonl", check=False)
    assert done.returncode == IO and "none/out.jsonl" in done.stderr
    with open("/dev/full", "wb") as full:
        done = subprocess.run([binary("replayctl"), "export", buffer, "--server", daemon.address], stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == IO and b"standard output" in done.stderr


def test_a_reader_that_has_seen_enough_ends_an_export_quietly(daemon, buffer):
    daemon.ctl("import", buffer, input="".join(line(f"t{i}") for i in range(900)))
    process = subprocess.Popen([binary("replayctl"), "export", buffer, "--server", daemon.address], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE)  # fmt: skip
    process.stdout.readline()
    process.stdout.close()
    assert (process.wait(20), process.stderr.read()) == (BROKEN_PIPE, b"")


# --- versions, bench -------------------------------------------------------------------------------------------------------------


def test_versions_are_published_listed_and_waited_for(daemon):
    published = daemon.json("versions", "publish", 3, "--run", "r", "--label", "three", "--uri", "file:///w/3")
    assert set(published) == {"run_id", "epoch", "version", "step", "label", "uri", "published_at_unix_ns"}
    assert (published["version"], published["step"]) == (3, 3)
    daemon.ctl("versions", "publish", 5, "--run", "r", "--step", 50)
    assert daemon.ctl("versions", "publish", 4, "--run", "r", check=False).returncode == FAILED
    assert [version["version"] for version in daemon.json_lines("versions", "list", "r")] == [3, 5]
    assert "three" in daemon.ctl("versions", "list", "r").stdout
    assert daemon.json("versions", "wait", "--run", "r", "--after", 3)["step"] == 50
    done = daemon.ctl("versions", "wait", "--run", "r", "--after", 5, "--timeout", 0, "--json", check=False)
    assert (done.returncode, error_of(done)["code"], error_of(done)["reason"]) == (FAILED, "timed_out", "version")


def test_bench_measures_both_phases_and_leaves_nothing(daemon):
    arguments = ["--clients", 2, "--payload-bytes", "4KiB", "--batch", 8, "--capacity-bytes", "4MiB"]
    phases = daemon.json_lines("bench", "--seconds", "300ms", *arguments)
    assert [phase["phase"] for phase in phases] == ["insert", "sample"]
    for phase in phases:
        assert phase["requests"] > 0 and phase["trajectories"] == 8 * phase["requests"] and phase["mib_per_second"] > 0
        assert 0 < phase["p50_ms"] <= phase["p99_ms"] <= phase["max_ms"]
    assert "REQUESTS/S" in daemon.ctl("bench", "--seconds", "200ms", "--phase", "sample", *arguments).stdout
    process = subprocess.Popen([binary("replayctl"), "bench", "--seconds", "60", "--capacity-bytes", "4MiB", "--server", daemon.address],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)  # fmt: skip
    assert "buffer bench-" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == INTERRUPTED
    assert not [row for row in daemon.json_lines("buffer", "list") if row["name"].startswith("bench-")]
