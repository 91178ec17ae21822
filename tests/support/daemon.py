"""Starts the real replayd for a test, on free ports and a Unix socket, and stops it.

    with Daemon(buffers=[{"name": "rollouts", "capacity_items": 100}]) as daemon:
        done = daemon.ctl("sample", "rollouts", "-n", "4", "--json")      # subprocess.CompletedProcess, text
        assert daemon.json("ping")["version"]                             # the one object it prints
        urllib.request.urlopen(daemon.metrics_url)

The binaries are taken from $REPLAY_BUILD_DIR (default: build/dev of this tree). A daemon that does not come up, or does not end
cleanly, fails the test with its log.
"""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]


def build_dir():
    return pathlib.Path(os.environ.get("REPLAY_BUILD_DIR", ROOT / "build" / "dev")).resolve()


def binary(name):
    path = build_dir() / name
    assert path.is_file(), f"{path} does not exist: build it, or say in REPLAY_BUILD_DIR where it is"
    return str(path)


def data_file(name):
    """The path of a file of the shared test data; skips the test where there is none."""
    import pytest

    directory = pathlib.Path(os.environ.get("REPLAY_TEST_DATA", ROOT.parent / "shared" / "data"))
    if not (directory / name).is_file():
        pytest.skip(f"the real data {name} is not in {directory} (REPLAY_TEST_DATA)")
    return directory / name


class Daemon:
    START_TIMEOUT_S = 30  # under a sanitizer, on a busy machine
    STOP_TIMEOUT_S = 30

    def __init__(self, buffers=(), server=None, memory="512MiB", **sections):
        # Not pytest's tmp_path: a Unix socket's path must be shorter than 108 bytes.
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="replayd-"))
        self.address = f"unix:{self.directory}/replayd.sock"
        self.tcp_address = None  # "127.0.0.1:PORT", once started
        self.metrics_url = None
        self.log_path = self.directory / "log"
        self.config_path = self.directory / "replayd.json"
        self.process = None
        config = {
            "server": {"listen": ["127.0.0.1:0", self.address], "metrics_listen": "127.0.0.1:0", **(server or {})},
            "memory": {"limit": memory},
            "buffers": list(buffers),
            **sections,
        }
        self.config_path.write_text(json.dumps(config, indent=2))

    def __enter__(self):
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *exception):
        self.close()

    def start(self):
        self.tcp_address = self.metrics_url = None  # those of the life before
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(
                [binary("replayd"), "--config", str(self.config_path)], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        deadline = time.monotonic() + self.START_TIMEOUT_S
        while not self._read_addresses() or self.ctl("ping", "--timeout", "1", check=False).returncode != 0:
            assert self.process.poll() is None, f"replayd ended with {self.process.returncode}:\n{self.log()}"
            assert time.monotonic() < deadline, f"replayd did not answer within {self.START_TIMEOUT_S} s:\n{self.log()}"
            time.sleep(0.02)
        return self

    def stop(self):
        """SIGTERM; must end by itself and with status 0."""
        process, self.process = self.process, None
        if process is None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            code = process.wait(self.STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError(f"replayd did not end within {self.STOP_TIMEOUT_S} s of SIGTERM:\n{self.log()}") from None
        assert code == 0, f"replayd ended with {code}:\n{self.log()}"

    def kill(self):
        """kill -9: what a crash or the out-of-memory killer does."""
        process, self.process = self.process, None
        process.kill()
        process.wait()

    def close(self):
        try:
            self.stop()
        finally:
            shutil.rmtree(self.directory, ignore_errors=True)

    def ctl(self, *arguments, input=None, check=True, timeout=120, env=None):
        """Runs replayctl against this daemon. Text in and out; with `check` a failure fails the test with what it said."""
        command = [binary("replayctl"), *map(str, arguments)]
        environment = {**os.environ, "REPLAYCTL_SERVER": self.address, **(env or {})}
        done = subprocess.run(
            command,
            input=input if input is not None else "",
            env=environment,
            capture_output=True,
            encoding="utf-8",
            timeout=timeout,
        )
        if check:
            assert done.returncode == 0, f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}\n{self.log()}"
        return done

    def json(self, *arguments, **options):
        """The one JSON object that a command prints."""
        objects = self.json_lines(*arguments, **options)
        assert len(objects) == 1, objects
        return objects[0]

    def json_lines(self, *arguments, **options):
        return [json.loads(line) for line in self.ctl(*arguments, "--json", **options).stdout.splitlines()]

    def log(self):
        return self.log_path.read_text(errors="replace")

    def _read_addresses(self):
        for line in self.log().splitlines():
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            address = entry.get("address", "")
            if entry.get("msg") == "metrics listening":
                self.metrics_url = f"http://{address}/metrics"
            elif entry.get("msg") == "listening" and not address.startswith("unix:"):
                self.tcp_address = address
        return self.tcp_address is not None
