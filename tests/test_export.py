"""A trained model outside of a run: `realm.load_policy`, and `realm export` with onnxruntime."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch

import realm
from realm.commands.export import ROWS
from realm.commands.main import main
from realm.config.load import load_config, to_toml
from realm.contract import PredictContext, Version
from realm.errors import ConfigError, ContractError
from realm.learn import checkpoint
from realm.learn.evaluate import Player
from realm.user import load_agent, load_definition, load_hyper

ROOT = Path(__file__).parents[1]
needs_onnx = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("onnx", "onnxruntime")),
    reason="needs the packages of the extra [onnx]: pip install onnx onnxruntime",
)


def make_run(folder: Path, config_file: str, *settings: str) -> Path:
    """A run with one checkpoint whose weights are random, so that its actions differ from row to row."""
    config = load_config(ROOT / "conf" / config_file, list(settings))
    algo = config.app.algo
    hyper, definition = load_hyper(algo, config.hyper), load_definition(algo)
    envs = definition.make_envs(1, 0, hyper, config.env)
    spec = definition.spec(envs, hyper)
    envs.close()
    agent = load_agent(algo)(spec, hyper, "cpu", 0)
    generator = torch.Generator().manual_seed(1)
    for weight in agent.model.parameters():
        weight.data += 0.1 * torch.randn(weight.shape, generator=generator)
    checkpoint.save(folder / "ckpt", agent, Version(1, 3), 100, spec.schema, keep=1)
    (folder / "config.toml").write_text(to_toml(config))
    return folder


@needs_onnx
@pytest.mark.parametrize(
    ("config_file", "settings", "rows"),
    [
        ("configure_app.toml", ["diy.precision=fp32"], ROWS),
        ("configure_app.toml", ["diy.precision=fp32", "diy.shared_trunk=true"], 1000),
        pytest.param("reference.toml", ["diy.precision=fp32", "diy.features=reference"], 200, marks=pytest.mark.slow),
        ("cartpole.toml", [], ROWS),
        ("cartpole.toml", ["algo=realm.zoo.ppo", "env.id=Acrobot-v1"], 1000),
        ("cartpole.toml", ["algo=realm.zoo.ppo", "env.id=FrozenLake-v1"], 1000),
        ("classic.toml", ["dqn.dueling=true", "dqn.noisy=true"], ROWS),
        ("pendulum.toml", [], ROWS),
        ("pendulum_sac.toml", [], ROWS),
    ],
)
def test_an_exported_model_acts_as_the_model_does(
    config_file: str,
    settings: list[str],
    rows: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("realm.commands.export.ROWS", rows)
    out = tmp_path / "model.onnx"
    assert main(["export", str(make_run(tmp_path, config_file, *settings)), "--onnx", str(out)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == (
        f"the same greedy actions as the model's on {rows:,} of {rows:,} observations"
    )


@needs_onnx
def test_a_file_that_acts_otherwise_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    run = make_run(tmp_path, "cartpole.toml")
    right = load_agent("realm.zoo.cartpole").greedy
    monkeypatch.setattr(
        "realm.zoo.cartpole.algorithm.agent.Agent.greedy", lambda self, obs: {"action": 1 - right(self, obs)["action"]}
    )
    assert main(["export", str(run), "--onnx", str(tmp_path / "model.onnx")]) == 1
    assert "acts otherwise than the model" in capsys.readouterr().err


@needs_onnx
def test_an_agent_that_cannot_be_exported_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    run = make_run(tmp_path, "cartpole.toml")
    monkeypatch.delattr("realm.zoo.cartpole.algorithm.agent.Agent.greedy")
    assert main(["export", str(run), "--onnx", str(tmp_path / "model.onnx")]) == 2
    assert "Agent has no greedy(obs)" in capsys.readouterr().err
    assert main(["export", str(run), "--onnx", str(tmp_path / "model.pt")]) == 2
    assert "must end in .onnx" in capsys.readouterr().err
    assert not (tmp_path / "model.onnx").exists()


def test_a_missing_package_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("realm.learn.export.PACKAGES", ("no_such_package",))
    assert main(["export", "shipped", "--onnx", str(tmp_path / "model.onnx")]) == 2
    assert "no_such_package must be installed" in capsys.readouterr().err


def test_a_policy_acts_on_one_observation_and_on_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    policy = realm.load_policy(make_run(tmp_path, "cartpole.toml"))
    env = gymnasium.make("CartPole-v1")
    seen = np.array([env.reset(seed=seed)[0] for seed in range(20)])
    many = policy.act({"state": seen})
    assert many.shape == (20,)
    assert many.dtype == np.int64
    assert [int(policy.act(one)) for one in seen.astype(np.float64)] == many.tolist()
    context = PredictContext(np.arange(20), np.ones(20, np.bool_), np.zeros(20, np.float32))
    assert policy.player.agent.predict({"state": seen}, context)[0].tolist() == many.tolist()
    env.step(policy.act(seen[0]))
    for wrong, text in (
        (seen[0, :3], "state must be float32"),
        ({"other": seen}, "the observations lack state"),
        (seen.astype(np.int64), "state must be float32"),
    ):
        with pytest.raises(ContractError, match=text):
            policy.act(wrong)


def test_the_shipped_policy_plays_its_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    policy = realm.load_policy("shipped")
    envs = policy.make_envs(3, seed=1)
    obs, _ = envs.reset()
    for _ in range(5):
        obs, _, terminated, _, _ = envs.step(policy.act(obs))
    assert not terminated.any()
    assert isinstance(policy.player, Player)
    with pytest.raises(ContractError, match="must be a dict of features, legal"):
        policy.act(obs["features"])
    with pytest.raises(ConfigError, match="no such run"):
        realm.load_policy("no-such-run")


def test_import_realm_stays_light() -> None:
    code = "import sys, realm; assert not {'torch', 'numba'} & set(sys.modules); realm.load_policy"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
