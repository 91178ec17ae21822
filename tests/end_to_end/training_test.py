"""The main job with the real binaries: generators answer, the trainer learns and publishes, and both outlive what happens to them."""

import json
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time

import pytest

SUPPORT = pathlib.Path(__file__).resolve().parents[1] / "support"
sys.path.insert(0, str(SUPPORT))

from daemon import Daemon, data_file  # noqa: E402
from training import Job, wait_until  # noqa: E402

QUESTIONS = pathlib.Path(__file__).resolve().parents[1] / "generator" / "questions.jsonl"

BUFFER = {
    "name": "rollouts",
    "policy": "positive_bias",
    "delta": 0.25,
    "capacity_items": 512,
    "capacity_bytes": "64MiB",
    "replay_ratio": 2,
    "tolerance": 64,
    "min_size": 32,
    "max_draws_per_sample": 64,
    "max_insert": 8,
}


@pytest.fixture(scope="module")
def warm_model(tmp_path_factory):
    """A model that answers some prompts, made once."""
    folder = tmp_path_factory.mktemp("warm")
    with Job(folder, "127.0.0.1:1") as job:
        job.warm_start(steps=1500)
    return folder / "warm"


@pytest.fixture
def daemon():
    with Daemon(buffers=[BUFFER]) as running:
        yield running


@pytest.fixture
def job(tmp_path, daemon, warm_model):
    with Job(tmp_path, daemon.tcp_address, model=warm_model) as running:
        yield running


def mean(records, key):
    return sum(record[key] for record in records) / len(records)


def test_a_model_learns_through_the_buffer(job, daemon):
    job.generator(1)
    job.generator(2)
    trainer = job.trainer(
        steps=200,
        batch_size=64,
        optimizer={"learning_rate": 3e-4},
        evaluation={"every_steps": 200, "prompts": 200, "samples": 8},
        compute={"mu": 5.28, "workers": 6, "trainers": 2},
    )
    assert trainer.wait() == 0, job.logs()

    first, last = job.records("evaluation")
    assert last["pass@1"] > first["pass@1"] + 0.1, (first, last)  # 0.20 to about 0.40, over 1,600 answers
    assert last["draws"] == 200 * 64
    assert 0 < last["mu_measured"] < 100 and last["mu_declared"] == 5.28
    # units = (mu rollouts + draws) / (batch (1 + mu)), and pacing held the ratio: 64 draws of tolerance, two batches ahead.
    assert last["units"] == pytest.approx((5.28 * last["rollouts"] + last["draws"]) / (64 * 6.28), rel=1e-4)
    assert last["draws"] / last["rollouts"] == pytest.approx(2, abs=0.1)
    steps = job.records("step")
    assert [record["step"] for record in steps] == list(range(1, 201))
    assert all(record["taken"] for record in steps)
    assert 0 < mean(steps[100:], "staleness_p50") < 60
    assert len(daemon.json_lines("export", "rollouts")) > 300


def test_segments_tell_which_tokens_came_from_which_version(tmp_path, daemon):
    # Answers of different lengths, so that some are under way whenever weights change.
    with Job(tmp_path, daemon.tcp_address, task={"kind": "arithmetic", "difficulty": 2}) as job:
        job.warm_start(steps=60)
        job.generator(1)
        assert job.trainer(steps=60).wait() == 0, job.logs()
        mixed = 0
        for rollout in daemon.json_lines("export", "rollouts"):
            segments = rollout["version_segments"]
            assert [begin for begin, _, _ in segments] == [rollout["prompt_length"]] + [end for _, end, _ in segments[:-1]]
            assert segments[-1][1] == len(rollout["token_ids"])
            versions = [version for _, _, version in segments]
            assert versions == sorted(set(versions)) and versions[-1] <= 60
            mixed += len(segments) > 1
            answer = len(rollout["token_ids"]) - rollout["prompt_length"]
            assert rollout["loss_mask"] == [0] * rollout["prompt_length"] + [1] * answer
            assert rollout["named_rewards"].keys() == {"group_mean"}
        assert mixed > 0


def test_killing_a_generator_changes_nothing_but_time(job, daemon):
    victim = job.generator(1)
    trainer = job.trainer(steps=60)
    job.wait_for_step(10)
    victim.kill()
    job.generator(2)
    assert trainer.wait() == 0, job.logs()
    # Groups are whole, whatever happened to whoever wrote them.
    stats = daemon.json("stats", "rollouts")["buffers"][0]
    assert stats["accepted"] % 8 == 0 and stats["rejected"] == 0
    groups = {}
    for rollout in daemon.json_lines("export", "rollouts"):
        groups.setdefault(rollout["group_id"], set()).add(rollout["index_in_group"])
    assert len({group_id.rsplit("-", 1)[0] for group_id in groups}) == 2  # of two processes


def test_a_daemon_that_restarts_empty_is_survived_by_both(tmp_path, warm_model):
    # A port of its own that stays the same: the daemon that comes back must be found.
    with Daemon(buffers=[BUFFER]) as daemon, Job(tmp_path, daemon.address, model=warm_model) as job:
        generators = [job.generator(1), job.generator(2)]
        trainer = job.trainer(steps=120)
        job.wait_for_step(20)
        daemon.kill()
        time.sleep(1.5)
        stood_at = job.steps_done()
        time.sleep(1)
        assert job.steps_done() == stood_at, "steps without a daemon"  # stopping the daemon stops learning
        daemon.start()
        assert trainer.wait() == 0, job.logs()
        assert job.steps_done() == 120
        assert all(generator.running() for generator in generators), job.logs()
        versions = daemon.json_lines("versions", "list", "run")
        assert versions, "the registry of the new daemon knows the run"
        rollouts = daemon.json("stats", "rollouts")["buffers"][0]["accepted"]
        assert rollouts >= 32
        assert [generator.stop() for generator in generators] == [0, 0], job.logs()


def trainer_waits(job):
    stood_at = job.steps_done()
    time.sleep(1)
    return job.steps_done() == stood_at


def test_a_generator_that_starts_after_the_daemon_restarted_gets_weights(tmp_path, warm_model):
    with Daemon(buffers=[BUFFER]) as daemon, Job(tmp_path, daemon.address, model=warm_model) as job:
        generator = job.generator(1)
        trainer = job.trainer(steps=60)
        job.wait_for_step(5)
        generator.kill()
        wait_until(lambda: trainer_waits(job), 60, job.logs)  # pacing allows no more steps
        daemon.kill()
        daemon.start()
        job.generator(2)  # knows no version, and the new daemon none either until the trainer says so
        assert trainer.wait() == 0, job.logs()
        assert "restarted without the versions of this run: publishing" in trainer.log()


def test_a_stopped_trainer_goes_on_from_its_checkpoint(job, daemon):
    job.generator(1)
    trainer = job.trainer(steps=10_000, checkpoint_every=10, keep_checkpoints=2)
    job.wait_for_step(25)
    assert trainer.stop() == 0, trainer.log()
    stopped_at = job.steps_done()
    checkpoints = sorted(int(path.name.split("-")[1]) for path in (job.folder / "out").glob("checkpoint-*"))
    assert len(checkpoints) == 2 and checkpoints[-1] == stopped_at  # one more when it is asked to stop

    resumed = job.trainer("--resume", steps=stopped_at + 10, checkpoint_every=10, keep_checkpoints=2)
    assert resumed.wait() == 0, resumed.log()
    assert [record["step"] for record in job.records("step")][-10:] == list(range(stopped_at + 1, stopped_at + 11))
    # kill -9 loses what came after the last checkpoint: the run goes back to it, in a new epoch, since its versions start again.
    killed = job.trainer("--resume", steps=10_000, checkpoint_every=1_000, keep_checkpoints=2)
    job.wait_for_step(stopped_at + 25)
    killed.kill()
    again = job.trainer("--resume", steps=stopped_at + 20, checkpoint_every=1_000)
    assert again.wait() == 0, again.log()
    assert {version["epoch"] for version in daemon.json_lines("versions", "list", "run")} >= {0, 1}


@pytest.mark.parametrize("source", ["questions", "gsm8k"])
def test_questions_from_a_file_run_the_whole_loop(tmp_path, daemon, source):
    path = QUESTIONS if source == "questions" else data_file("gsm8k_test.jsonl")
    task = {"kind": "file", "path": str(path), "max_prompt_tokens": 256, "max_answer_tokens": 12}
    with Job(tmp_path, daemon.tcp_address, task=task) as job:
        job.warm_start(steps=20)
        job.generator(1)
        trainer = job.trainer(steps=6, evaluation={"every_steps": 3, "prompts": 8, "samples": 2})
        assert trainer.wait() == 0, job.logs()
        assert len(job.records("evaluation")) == 3
        rollout = daemon.json_lines("export", "rollouts")[0]
        assert bytes(rollout["token_ids"][: rollout["prompt_length"]]).decode().startswith("Question: ")
        assert rollout["status"] in ("completed", "truncated_length")


def test_draws_that_cannot_be_trained_on_are_named_and_stop_the_trainer(job, daemon):
    rollouts = [
        {"token_ids": [1, 2, 999, 3], "prompt_length": 2, "loss_mask": [0, 0, 1, 1], "behaviour_logprobs": [None, None, -1, -1],
         "version_segments": [[2, 4, 0]], "reward": 1, "advantage": 1}
        for _ in range(32)
    ]
    daemon.ctl("import", "rollouts", "-", input="\n".join(map(json.dumps, rollouts)))
    trainer = job.trainer(steps=100, max_bad_steps=2)
    assert trainer.wait() == 76, trainer.log()
    assert "token id 999 at 2: the vocabulary has 23" in trainer.log()
    assert job.records("diverged")


def test_weights_that_cannot_be_written_are_written_when_they_can(job, daemon):
    # A file stands where the folder of the weights has to go, as good as a full disk.
    weights = job.folder / "weights"
    weights.write_text("")
    job.generator(1)
    trainer = job.trainer(steps=100)
    wait_until(lambda: "version 0 is not published" in trainer.log(), 30, job.logs)
    assert str(weights) in trainer.log()
    weights.unlink()
    job.wait_for_step(10)
    # Now it happens in the middle: training goes on, with rollouts of the weights that the generator has. The folder is renamed,
    # at once, since the trainer writes into it; and again where the trainer made a new one before the file was there.
    for attempt in range(100):
        try:
            weights.rename(job.folder / f"away-{attempt}")
            weights.write_text("")
            break
        except (IsADirectoryError, FileNotFoundError):
            continue
    assert weights.is_file()
    assert trainer.wait() == 0, job.logs()
    assert len(job.records("not_published")) >= 2 and job.steps_done() == 100


@pytest.mark.parametrize(
    "name, change, status, message",
    [
        ("trainer", {"lerning_rate": 1}, 78, 'unknown key lerning_rate'),
        ("trainer", {"loss": {"kind": "ppo"}}, 78, 'loss.kind is "ppo": must be "grpo", "asymre" or "reinforce"'),
        ("trainer", {"batch_size": 0}, 78, "batch_size is 0: must be from 1 to 65536"),
        ("trainer", {"task": {"kind": "chess"}}, 78, 'task.kind is "chess"'),
        ("trainer", {"model": "nowhere"}, 74, "nowhere/config.json: cannot be opened: No such file or directory"),
        ("trainer", {"task": {"kind": "arithmetic"}}, 78, "model has a vocabulary of 23: the task needs 257"),
        ("generator", {"rows": 4}, 78, "rows is 4: must be at least group_size, 8"),
        ("generator", {"equal_rewards": "drop"}, 78, 'equal_rewards is "drop": must be "keep" or "skip"'),
    ],
)
def test_a_wrong_configuration_is_named(job, name, change, status, message):
    config = job.trainer_config() if name == "trainer" else job.generator_config()
    process = job.start(name, {**config, **change})
    assert process.wait() == status, process.log()
    assert message in process.log()


def test_damaged_weights_are_named(job, warm_model):
    damaged = job.folder / "damaged"
    damaged.mkdir()
    (damaged / "config.json").write_bytes((warm_model / "config.json").read_bytes())
    whole = (warm_model / "model.safetensors").read_bytes()
    (damaged / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    trainer = job.trainer(model=str(damaged))
    assert trainer.wait() == 74, trainer.log()
    assert "model.safetensors" in trainer.log() and "truncated" in trainer.log()


def test_both_wait_for_a_daemon_and_end_when_asked(tmp_path, warm_model):
    with Job(tmp_path, "127.0.0.1:1", model=warm_model) as job:
        trainer, generator = job.trainer(), job.generator()
        wait_until(lambda: "no daemon at 127.0.0.1:1 yet" in trainer.log(), 10, job.logs)
        wait_until(lambda: "waiting for the first version" in generator.log(), 30, job.logs)
        assert trainer.stop() == 0 and generator.stop() == 0, job.logs()


def test_groups_of_equal_rewards_can_be_left_out(job, daemon):
    generator = job.generator(1, equal_rewards="skip", max_groups=60)
    trainer = job.trainer(steps=10_000)
    assert generator.wait() == 0, job.logs()
    trainer.process.send_signal(signal.SIGTERM)
    rewards = {}
    for rollout in daemon.json_lines("export", "rollouts"):
        rewards.setdefault(rollout["group_id"], set()).add(rollout["reward"])
    assert rewards and all(len(each) == 2 for each in rewards.values())
    assert "60 groups" in generator.log()


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def demo(*arguments):
    script = pathlib.Path(__file__).resolve().parents[2] / "deploy/demo.sh"
    return subprocess.run([script, "--no-install", *map(str, arguments)], capture_output=True, text=True, timeout=300)


def test_the_demo_ends_with_a_table_and_a_picture(tmp_path):
    """Whole, from the shipped configurations with less of everything."""
    shipped, config, folder = pathlib.Path(__file__).resolve().parents[2] / "deploy/config/demo", tmp_path / "config", tmp_path / "run"
    config.mkdir()
    port, metrics_port = free_port(), free_port()
    for name in ("replayd", "generator", "trainer"):
        text = (shipped / f"{name}.json").read_text().replace("127.0.0.1:7170", f"127.0.0.1:{port}")
        settings = json.loads(re.sub(r"^ *//.*$", "", text.replace("127.0.0.1:7171", f"127.0.0.1:{metrics_port}"), flags=re.M))
        if name == "trainer":
            settings["steps"] = 12
            settings["evaluation"] = {"every_units": 5, "prompts": 20, "samples": 2}
            settings["warm_start"]["steps"] = 60
        (config / f"{name}.json").write_text(json.dumps(settings, indent=1).replace("[\n   ", "["))
    done = demo("--config", config, "--dir", folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^replay buffer .*^no buffer ", done.stdout, re.M | re.S), done.stdout
    result = json.loads((folder / "demo.json").read_text())
    assert set(result["runs"]) == {"replay", "no_buffer"}
    # The picture needs matplotlib, which the script says when it is missing.
    assert (folder / "demo.png").exists() or "matplotlib" in done.stdout + done.stderr
    # What an earlier run left is replaced; other folders are not touched.
    other = tmp_path / "other"
    other.mkdir()
    (other / "weights").write_text("mine")
    refused = demo("--config", config, "--dir", other)
    assert refused.returncode == 2 and "is not empty" in refused.stderr and (other / "weights").read_text() == "mine"
