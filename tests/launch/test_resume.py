"""What a start says about a run that is there, and that a run which was stopped goes on to the bit."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from realm.config.keys import AppConfig
from realm.config.load import load_config
from realm.config.plan import decide, this_machine
from realm.errors import ConfigError
from realm.launch.rundir import claim_run_dir
from realm.launch.smoke_test import try_user_code
from realm.launch.start import beginning, changed_keys, prepare
from realm.learn.checkpoint import Checkpoint, find
from realm.user import hyper_of, load_preferences
from tests.cluster import ROOT
from tests.console import finished
from tests.saved import checkpoint

UPDATES = 4  # of a session

WORKFLOW = f'''
from realm.chunk import ChunkBuilder


def workflow(envs, policy, context):
    """Sessions of {UPDATES} rounds. Each begins its episodes anew, as a start does: they cannot be saved."""
    for session in range(context.config.sessions):
        obs, _ = envs.reset(seed=7)
        chunks = ChunkBuilder(context.spec, obs, context.worker, session)
        for _ in range({UPDATES}):
            while not chunks.full:
                prediction = policy.predict(obs, chunks.first)
                obs, reward, terminated, truncated, info = envs.step(prediction.action)
                chunks.step(prediction, reward, terminated, truncated, obs)
            yield chunks.take()
'''

NOISE = '''

class Noisy(Agent):
    """Learns with noise of every generator that a process has."""

    def __init__(self, spec, config, device, seed):
        super().__init__(spec, config, device, seed)
        random.seed(seed)
        np.random.seed(seed)

    def learn(self, batch, info):
        learned = yield from self.ppo.update(batch, info)
        with torch.no_grad():
            for weight in self.model.parameters():
                weight.add_(torch.rand(()) * np.random.normal() * random.random(), alpha=1e-3)
        return learned


Agent = Noisy
'''


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Holds a package `noisy`: the zoo's cartpole with the workflow and the noise above."""
    package = tmp_path / "noisy"
    shutil.copytree(ROOT / "realm" / "zoo" / "cartpole", package)
    for path in package.rglob("*.py"):
        path.write_text(path.read_text().replace("realm.zoo.cartpole", "noisy"))
    (package / "train_workflow.py").write_text(WORKFLOW)
    agent, config = package / "algorithm" / "agent.py", package / "config.py"
    agent.write_text(f"import random\nimport numpy as np\n{agent.read_text()}{NOISE}")
    config.write_text(f"{config.read_text()}    sessions: int = 1\n")
    (tmp_path / "noisy.toml").write_text(
        '[app]\nalgo = "noisy"\nwrapper_type = "local"\naisrv_connect_to_kaiwu_env_count = 4\ntorch_num_threads = 1\n'
        'log_dir = "runs"\n[noisy]\nchunk_length = 16\nepochs = 2\n'
    )
    return tmp_path


def start(folder: Path, *settings: str, options: Sequence[str] = ()) -> str:
    """Start in one process; returns what was on the screen."""
    command = ["-m", "realm", "start", "--config", "noisy.toml", *options]
    for setting in settings:
        command += ["--set", setting]
    done = finished(*command, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def newest(run_dir: Path) -> Checkpoint:
    return find(run_dir / "ckpt", "latest")


def same(one: Any, other: Any) -> bool:
    """Whether two states are equal to the bit."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def content(run_dir: Path) -> dict[str, bytes]:
    return {str(path.relative_to(run_dir)): path.read_bytes() for path in run_dir.rglob("*") if path.is_file()}


def test_keys_that_changed_are_named_with_both_values(tmp_path: Path) -> None:
    tables = (
        "[app]\nseed = 1\n[env]\nstart = 2\ngone = true\n[eval_env]\nend = 3\n[diy]\nlr_start = 1e-4\nways = [1, 2]\n"
    )
    (tmp_path / "config.toml").write_text(tables)
    old = load_config(tmp_path / "config.toml")
    assert changed_keys(old, old) == []
    set_now = ["seed=2", "env.start=3", "diy.lr_start=0.0002", "diy.ways=[1]", "diy.hidden=64"]
    new = load_config(tmp_path / "config.toml", set_now)
    del new.env["gone"]
    assert changed_keys(old, new) == [
        "seed: 1 -> 2",
        "env.start: 2 -> 3",
        "env.gone: true -> not set",
        "diy.lr_start: 0.0001 -> 0.0002",
        "diy.ways: [1, 2] -> [1]",
        "diy.hidden: not set -> 64",
    ]


def test_a_former_configuration_that_cannot_be_read_is_no_obstacle(tmp_path: Path) -> None:
    config = load_config(ROOT / "conf" / "local.toml")
    assert beginning(tmp_path, config) == [f"new run: {tmp_path}"]
    (tmp_path / "config.toml").write_text("[app]\nwho = 1\n")
    resuming, why = beginning(tmp_path, config)
    assert resuming.startswith(f"resuming the run {tmp_path}")
    assert "cannot be compared" in why
    assert "config.toml:2: key 'who': unknown" in why


def test_a_fresh_run_takes_the_first_free_number(tmp_path: Path) -> None:
    held = []

    def claimed(name: str, fresh: bool) -> str:
        run_dir, run_file = claim_run_dir(AppConfig(run_name=name, log_dir=str(tmp_path)), fresh)
        held.append(run_file)  # with the lock
        return run_dir.name

    assert [claimed("one", True) for _ in range(3)] == ["one", "one-2", "one-3"]
    with pytest.raises(ConfigError, match=r"uses it; .* or begin a new run with --fresh"):
        claimed("one", False)  # this process holds it
    long = "x" * 80
    assert [claimed(long, True) for _ in range(2)] == [long, f"{'x' * 78}-2"]
    assert claimed("two", False) == "two"


@pytest.mark.system
@pytest.mark.slow
def test_a_run_that_was_stopped_goes_on_to_the_bit_and_says_so(folder: Path) -> None:
    runs = folder / "runs"
    said = start(folder, "run_name=whole", "noisy.sessions=2")
    assert "new run: runs/whole" in said
    assert "training begins at update 0 with new weights" in said
    assert "changed since" not in said

    start(folder, "run_name=halves")
    half = newest(runs / "halves")
    assert half.version == (1, UPDATES)
    before = content(runs / "halves")
    said = start(folder, "run_name=halves", "dump_model_freq=50", 'level="DEBUG"')
    assert "resuming the run runs/halves, which keeps all its files" in said
    assert "changed since its last start: dump_model_freq: 100 -> 50\n" in said
    assert 'changed since its last start: level: "INFO" -> "DEBUG"\n' in said
    assert said.count("changed since") == 2
    at = f"runs/halves/ckpt/model.ckpt-1-{UPDATES} (update {UPDATES}, {half.env_steps} env steps)"
    assert at in said

    one, other = newest(runs / "whole"), newest(runs / "halves")
    assert (one.version, other.version) == ((1, 2 * UPDATES), (2, 2 * UPDATES))
    assert one.env_steps == other.env_steps > half.env_steps
    assert one.weights == other.weights
    assert half.weights != other.weights
    assert one.state["agent"]["optimizers"][0]["state"].keys()
    assert same(one.state, other.state)  # Adam's moments and steps, counters, and the state of every generator
    assert not same(half.state, other.state)

    # nothing of the first session is gone: its configuration has another name, and its curves have a file of their own
    after = content(runs / "halves")
    before[str(Path("config.toml.1"))] = before.pop("config.toml")
    del before["run.json"]
    assert after["progress.csv"].startswith(before.pop("progress.csv"))  # one table of both
    assert {name: after.get(name) for name in before} == before

    said = start(folder, "run_name=halves", options=["--fresh"])
    assert "new run: runs/halves-2" in said
    assert newest(runs / "halves-2").weights == half.weights
    assert 'run_name = "halves-2"' in (runs / "halves-2" / "config.toml").read_text()
    assert content(runs / "halves") == after


@pytest.mark.slow
def test_a_replay_memory_of_another_size_leaves_the_run_as_it_was(tmp_path: Path) -> None:
    run = ("-m", "realm", "start", "--config", str(ROOT / "conf" / "classic.toml"), "--set", f"log_dir={tmp_path}")
    sets = ("run_name=a", "save_replay=true", "warm_up_steps=100", "eval_every_steps=0")
    assert finished(*run, *sets, "max_env_steps=300").returncode == 0
    config, models = tmp_path / "a" / "config.toml", sorted((tmp_path / "a" / "ckpt").iterdir())
    before = config.read_text()
    done = finished(*run, *sets, "max_env_steps=600", "replay_buffer_capacity=1000")
    assert done.returncode == 2
    assert "restore replay_buffer_capacity" in done.stderr
    assert config.read_text() == before
    assert sorted((tmp_path / "a" / "ckpt").iterdir()) == models
    assert finished(*run, *sets, "max_env_steps=600").returncode == 0


def test_a_run_that_would_end_before_its_first_update_is_refused(tmp_path: Path) -> None:
    """Off-policy with chunks; and with a replay memory that the run has not kept so far."""
    own = f"log_dir={tmp_path}", "wrapper_type=local", "algorithm_on_policy_or_off_policy=off-policy"
    (tmp_path / "q.toml").write_text('[app]\nalgo = "realm.zoo.ppo"\n[env]\nid = "CartPole-v1"\n')
    rounds = "aisrv_connect_to_kaiwu_env_count=8", "ppo.advantage=q", "max_env_steps=3000"
    of_chunks = load_config(tmp_path / "q.toml", [*own, *rounds])
    sets = "run_name=old", "max_env_steps=3000", "save_replay=true"
    of_rows = load_config(ROOT / "conf" / "classic.toml", [*own, *sets])
    checkpoint(tmp_path / "old" / "ckpt", 1, 7, 2500, try_user_code(of_rows, hyper_of(of_rows)).schema)
    there = sorted(tmp_path.rglob("*"))
    for config, says in (
        (of_chunks, "begins after preload_ratio, 16384"),
        (of_rows, "goes on from 2500 with an empty"),
    ):
        with pytest.raises(ConfigError, match=f"max_env_steps is 3000, but training {says}"):
            prepare(config, decide(config.app, this_machine(), load_preferences(config.app.algo)))
    assert sorted(tmp_path.rglob("*")) == there


def test_a_port_that_is_taken_while_a_start_tries_the_package(tmp_path: Path) -> None:
    """It was free at the first look."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        sets = [f"log_dir={tmp_path}", f"base_port={taken.getsockname()[1]}"]
        config = load_config(ROOT / "tests" / "counting" / "counting.toml", sets)
        with pytest.raises(ConfigError, match=f"port {sets[-1][10:]} "):
            prepare(config, decide(config.app, this_machine(), load_preferences(config.app.algo)))
    assert not list(tmp_path.iterdir())
