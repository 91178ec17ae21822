"""Generators and trainers as processes, for a test: the real binaries, configured by what a test gives.

    job = Job(tmp_path, daemon.tcp_address, task={"kind": "opcode"})
    job.warm_start(steps=100)
    generator = job.generator(seed=1)
    trainer = job.trainer(steps=40)
    assert trainer.wait() == 0, trainer.log()
    job.records("step")                  # lines of the trainer's log.jsonl

Everything that was started is killed when the `with Job(...)` block ends.
"""

import json
import signal
import subprocess
import time

from daemon import binary

ARCHITECTURE = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}


class Process:
    def __init__(self, command, log_path):
        self.log_path = log_path
        with open(log_path, "ab") as log:
            self.process = subprocess.Popen(list(map(str, command)), stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def wait(self, timeout=120):
        """The exit status; a process that does not end in time fails the test with its log."""
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"no end within {timeout} s:\n{self.log()}") from None

    def stop(self, timeout=30):
        """SIGTERM, and the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait(timeout)

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def running(self):
        return self.process.poll() is None

    def log(self):
        return self.log_path.read_text(errors="replace")


class Job:
    def __init__(self, folder, address, task=None, buffer="rollouts", model=None, run_id="run"):
        self.folder, self.address, self.buffer, self.run_id = folder, address, buffer, run_id
        self.task = task or {"kind": "opcode"}
        self.model = model or folder / "warm"
        self.processes = []

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        for process in self.processes:
            process.kill()

    def trainer_config(self, warm_start=None, **changes):
        return {
            "address": self.address,
            "buffer": self.buffer,
            "run_id": self.run_id,
            "task": self.task,
            "model": str(self.model),
            "weights": str(self.folder / "weights"),
            "output": str(self.folder / "out"),
            "batch_size": 32,
            "optimizer": {"learning_rate": 1e-3},
            "evaluation": {"prompts": 100, "samples": 0},
            "warm_start": {"batch_size": 64, "learning_rate": 3e-3, "architecture": ARCHITECTURE, **(warm_start or {})},
            **changes,
        }

    def generator_config(self, **changes):
        return {
            "address": self.address,
            "buffer": self.buffer,
            "run_id": self.run_id,
            "task": self.task,
            "group_size": 8,
            "rows": 16,
            **changes,
        }

    def start(self, name, config, *arguments):
        number = len(self.processes)
        path = self.folder / f"{name}-{number}.json"
        path.write_text(json.dumps(config))
        self.processes.append(Process([binary(name), "--config", path, *arguments], self.folder / f"{name}-{number}.log"))
        return self.processes[-1]

    def warm_start(self, steps):
        done = self.start("trainer", self.trainer_config(warm_start={"steps": steps}), "--warm-start")
        assert done.wait(300) == 0, done.log()

    def trainer(self, *arguments, **changes):
        return self.start("trainer", self.trainer_config(**changes), *arguments)

    def generator(self, seed=1, **changes):
        return self.start("generator", self.generator_config(**changes), "--seed", seed)

    def records(self, event, output="out"):
        path = self.folder / output / "log.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [record for record in map(json.loads, lines) if record["event"] == event]

    def steps_done(self):
        steps = self.records("step")
        return steps[-1]["step"] if steps else 0

    def wait_for_step(self, step, timeout=60):
        wait_until(lambda: self.steps_done() >= step, timeout, lambda: f"step {self.steps_done()} of {step}\n" + self.logs())

    def logs(self):
        return "\n".join(f"{process.log_path.name}:\n{process.log()}" for process in self.processes)


def wait_until(condition, timeout, describe):
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout} s: {describe()}"
        time.sleep(0.05)
