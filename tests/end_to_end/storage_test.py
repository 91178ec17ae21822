"""The daemon's data folder: what outlives it, and how it ends when it cannot have the folder (exit codes of server/main.cc)."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
import time

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))

from daemon import Daemon, binary  # noqa: E402

FAILED, IO, LOCKED, FORMAT, CONFIG = 1, 74, 75, 76, 78
RESTARTS = int(os.environ.get("REPLAY_RESTARTS", "20"))


def ends(data, **storage):
    """A daemon of its own that cannot have the folder: its exit status and the one line that says why."""
    around = tempfile.mkdtemp(prefix="replayd-")
    config = pathlib.Path(around) / "replayd.json"
    config.write_text(
        json.dumps(
            {
                "server": {"listen": [f"unix:{around}/replayd.sock"], "metrics_listen": "", "max_connections": 16},
                "memory": {"limit": "64MiB"},
                "storage": {"path": str(data), **storage},
            }
        )
    )
    try:
        done = subprocess.run([binary("replayd"), "--config", config], capture_output=True, text=True, timeout=60)
    finally:
        shutil.rmtree(around)
    errors = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    assert len(errors) == 1, errors
    return done.returncode, errors[0]


def contents(data):
    return {path.relative_to(data): path.read_bytes() for path in sorted(data.rglob("*")) if path.is_file()}


def publish(daemon, version, check=True):
    return daemon.ctl("versions", "publish", version, "--run", "math", "--step", 10 * version, check=check)


def versions(daemon):
    return [(each["version"], each["step"]) for each in daemon.json_lines("versions", "list", "math")]


def test_policy_versions_survive_kill_9_and_go_only_forward(data):
    with Daemon(storage={"path": str(data)}) as daemon:
        for round_number in range(RESTARTS):
            assert versions(daemon) == [(version, 10 * version) for version in range(1, 2 * round_number + 1)]
            for version in (2 * round_number + 1, 2 * round_number + 2):
                publish(daemon, version)
            daemon.kill()
            daemon.start()
        refused = publish(daemon, 2 * RESTARTS, check=False)
        assert refused.returncode == FAILED
        assert "within an epoch the version must be higher" in refused.stderr
        publish(daemon, 2 * RESTARTS + 1)
        daemon.stop()
        daemon.start()
        assert versions(daemon)[-1] == (2 * RESTARTS + 1, 10 * (2 * RESTARTS + 1))


def test_versions_that_were_stored_say_how_stale_a_draw_is_after_a_restart(data):
    rollout = {"trajectory_id": "a", "run_id": "math", "token_ids": [1, 2], "loss_mask": [0, 1]}
    rollout["version_segments"] = [[0, 2, 1]]
    with Daemon(buffers=[{"name": "rollouts", "capacity_items": 10}], storage={"path": str(data)}) as daemon:
        for version in (1, 4):
            publish(daemon, version)
        daemon.kill()
        daemon.start()
        daemon.ctl("insert", "rollouts", "-", input=json.dumps(rollout) + "\n")
        draw = daemon.json("sample", "rollouts", "-n", 1)
        assert draw["staleness"] == 30, draw


def test_the_folder_is_of_one_daemon_at_a_time(data):
    with Daemon(storage={"path": str(data)}) as daemon:
        code, why = ends(data)
        assert code == LOCKED, why
        assert f"{data} is in use by process {daemon.process.pid}" in why
        publish(daemon, 1)
        # A lock that was left behind blocks nobody.
        daemon.kill()
        daemon.start()
        assert versions(daemon) == [(1, 10)]


def test_what_cannot_be_opened_is_left_as_it_is_and_told_by_exit_status(data):
    with Daemon(storage={"path": str(data)}) as daemon:
        publish(daemon, 1)
    (data / "FORMAT").write_text("replayd data 2\n")
    before = {path: bytes for path, bytes in contents(data).items() if path.name != "LOCK"}
    code, why = ends(data)
    assert code == FORMAT, why
    assert "has format 2, written by a newer replayd: this one knows 1" in why
    (data / "FORMAT").write_text("replayd data 1\n")
    code, why = ends(data, reserve_bytes=1 << 60)
    assert code == IO, why
    assert f"storage.reserve_bytes is {1 << 60}: nothing is written until there is more room" in why
    after = {path: bytes for path, bytes in contents(data).items() if path.name not in ("LOCK",)}
    before[pathlib.Path("FORMAT")] = b"replayd data 1\n"
    assert after == before


def test_a_damaged_log_is_told_and_never_silently_shorter(data):
    with Daemon(storage={"path": str(data)}) as daemon:
        for version in range(1, 21):
            publish(daemon, version)
        daemon.kill()
        log = max((data / "db").glob("*.log"), key=lambda path: path.name)
        good = log.read_bytes()
        assert len(good) > 20 * 40
        damaged = bytearray(good)
        damaged[len(good) // 2] ^= 1
        log.write_bytes(damaged)
        code, why = ends(data)
        assert code == IO, why
        assert f"cannot open {data}/db" in why
        log.write_bytes(good)
        daemon.start()
        assert len(versions(daemon)) == 20


def test_a_folder_of_somebody_else_is_refused(data):
    data.mkdir()
    (data / "cat.jpg").write_bytes(b"cat")
    code, why = ends(data)
    assert code == FORMAT, why
    assert "is not a data folder of replayd" in why


def test_settings_of_storage_are_checked():
    with tempfile.NamedTemporaryFile("w", suffix=".json") as config:
        config.write(json.dumps({"storage": {"reserve_bytes": "1GiB"}}))
        config.flush()
        done = subprocess.run([binary("replayd"), "--config", config.name, "--check-config"], capture_output=True, text=True)
    assert done.returncode == CONFIG
    assert "storage.reserve_bytes is 1073741824: it needs storage.path, without which nothing is kept" in done.stderr


def test_what_was_acknowledged_before_sigterm_is_there(data):
    with Daemon(server={"io_threads": 2}, storage={"path": str(data)}) as daemon:
        acknowledged = []

        def publish_until_refused():
            for version in range(1, 10_000):
                if publish(daemon, version, check=False).returncode != 0:
                    return
                acknowledged.append((version, 10 * version))

        publisher = threading.Thread(target=publish_until_refused)
        publisher.start()
        while len(acknowledged) < 5:
            time.sleep(0.01)
            assert publisher.is_alive()
        daemon.stop()
        publisher.join()
        daemon.start()
        stored = versions(daemon)
        # The last may have been stored, and its answer cut off.
        assert stored[: len(acknowledged)] == acknowledged and len(stored) <= len(acknowledged) + 1


@pytest.fixture
def small_disk(data):
    """The path of a file system of 64 MiB."""
    data.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", data], check=True)
    yield data
    subprocess.run(["umount", data], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small file system")
def test_a_full_disk_refuses_and_recovers_by_itself(small_disk):
    folder, ballast = small_disk / "data", small_disk / "ballast"
    with Daemon(storage={"path": str(folder), "reserve_bytes": "16MiB"}) as daemon:
        for round_number in range(1, 6):
            publish(daemon, 2 * round_number)
            ballast.write_bytes(bytes(50 << 20))
            refused = publish(daemon, 2 * round_number + 1, check=False)
            assert refused.returncode == FAILED
            assert "storage_full" in refused.stderr and "storage.reserve_bytes is 16777216" in refused.stderr
            assert versions(daemon)[-1] == (2 * round_number, 20 * round_number), "reading goes on"
            if round_number == 5:
                daemon.kill()
                code, why = ends(folder, reserve_bytes="16MiB")
                assert code == IO and "nothing is written until there is more room" in why
                ballast.unlink()
                daemon.start()
            else:
                ballast.unlink()
            publish(daemon, 2 * round_number + 1)
        assert [version for version, _ in versions(daemon)] == list(range(2, 12))
