"""A trained model outside of a run: `realm.load_policy`, and `realm export` with onnxruntime."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import realm
from realm.commands.evaluate import ROWS
from realm.commands.main import main
from realm.config.load import load_config, to_toml
from realm.contract import PredictContext, Version
from realm.errors import ConfigError, ContractError, to_install
from realm.learn import checkpoint
from realm.learn.evaluation import Player
from realm.learn.export import PACKAGES, OnnxPolicy, write_onnx
from realm.user import load_agent, load_definition, load_hyper
from tests.odd import batched, untrained

ROOT = Path(__file__).parents[2]
needs_onnx = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("onnx", "onnxruntime")),
    reason="needs the packages of the extra [onnx]: requirements.ci.lock",
)


def make_run(folder: Path, config_file: str, *settings: str, env_steps: int = 100, bias: Sequence[float] = ()) -> Path:
    """A run with one checkpoint whose weights are random, so that its actions differ from row to row.

    env_steps: of the checkpoint. bias: what the last layer that acts gives to every observation, instead.
    """
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
    if bias:
        layers = [(name, one) for name, one in agent.model.named_modules() if isinstance(one, torch.nn.Linear)]
        *_, last = (one for name, one in layers if not name.startswith("critic"))
        torch.nn.init.zeros_(last.weight)
        last.bias.data = torch.tensor(bias)
    checkpoint.save(folder / "ckpt", agent, Version(1, 3), env_steps, spec.schema, keep=1)
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
        ("cartpole.toml", ["algo=realm.zoo.ppo", "env.id=Pendulum-v1"], 1000),
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
    monkeypatch.setattr("realm.commands.evaluate.ROWS", rows)
    out = tmp_path / "model.onnx"
    assert main(["export", str(make_run(tmp_path, config_file, *settings)), "--onnx", str(out)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == (
        f"the same greedy actions as the model's on {rows:,} of {rows:,} observations"
    )


GREY = spaces.Box(0, 255, (40, 44), np.uint8)
RICH = spaces.Dict({"a": spaces.Dict({7: spaces.Discrete(2)}), "b": spaces.Tuple((spaces.MultiDiscrete([2, 3]), GREY))})
NAMED = spaces.Dict({key: spaces.Box(-1, 1, (2,)) for key in ("action", "a/b", "größe", "logits", "action.1")})


def by_metadata(obs: Any, told: dict[str, Any]) -> Any:
    """An input of an exported file, by nothing but what its metadata says."""
    for key in told["path"]:
        obs = obs[key]
    array = np.asarray(obs)
    if "one_hot" in told:
        columns = np.reshape(array, (len(array), -1)).T
        pairs = zip(columns, told["one_hot"], strict=True)
        array = np.concatenate([np.eye(count)[column - least] for column, (least, count) in pairs], axis=1)
    if "transpose" in told:
        array = np.transpose(array, (0, *(1 + axis for axis in told["transpose"])))
    return array.reshape(-1, *told["shape"]).astype(told["dtype"])


@needs_onnx
@pytest.mark.parametrize(
    ("package", "obs", "action"),
    [
        ("ppo", NAMED, spaces.Discrete(3, start=5, dtype=np.int8)),
        ("dqn", spaces.Discrete(4, start=1), spaces.MultiDiscrete([3, 2], start=[1, -1])),
        ("td3", NAMED, spaces.Box(np.array([0.7, 1, 2]), np.array([0.9, 1, 3]), dtype=np.float64)),
        ("sac", spaces.Tuple((spaces.MultiBinary(3),)), spaces.Box(0.81, 1.19, (2, 2))),
        ("ppo", spaces.MultiBinary(3), spaces.Box(np.float16(0.1), np.float16(0.7), dtype=np.float16)),
        ("ppo", RICH, spaces.MultiBinary((2, 2))),
        ("dqn", spaces.Dict({"seen": spaces.Box(0, 255, (3, 40, 44), np.uint8), "grey": GREY}), spaces.Discrete(3)),
    ],
)
def test_an_exported_model_speaks_as_its_environment(
    package: str, obs: spaces.Space[Any], action: spaces.Space[Any], tmp_path: Path
) -> None:
    policy = untrained(package, obs, action)
    player, file = policy.player, tmp_path / "model.onnx"
    write_onnx(player.agent, player.spec, player.envs, file)
    seen = policy.make_envs(5).reset(seed=1)[0]
    session = OnnxPolicy(file)
    raw = batched(obs, [obs.sample() for _ in range(5)])
    converted = {name: by_metadata(raw, told) for name, told in session.about["inputs"].items()}
    np.testing.assert_allclose(session.act(converted), policy.act(raw), rtol=1e-3)
    assert session.about["action"] == {
        "space": " ".join(str(action).split()),
        "shape": list(action.shape),
        "dtype": str(action.dtype),
    }
    answer, wanted = OnnxPolicy(file).act(seen), policy.act(seen)
    assert answer.dtype == action.dtype
    assert all(action.contains(one) for one in answer)
    np.testing.assert_allclose(answer, wanted, rtol=1e-3)


@needs_onnx
@pytest.mark.parametrize(
    "setting", ["ppo.memory=gru", pytest.param("ppo.memory=attention", marks=pytest.mark.slow), "ppo.frames=3"]
)
def test_a_memory_goes_into_a_file_and_comes_out(
    setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    run, file = make_run(tmp_path, "ppo/cartpole.toml", setting), tmp_path / "model.onnx"
    assert main(["export", str(run), "--onnx", str(file)]) == 0
    said = capsys.readouterr().out
    assert f"on {ROWS:,} of {ROWS:,} observations" in said
    assert "next." in said
    policy, rows = OnnxPolicy(file), np.ones(4, np.bool_)
    obs = {"state": np.random.default_rng(1).normal(size=(4, 4)).astype(np.float32)}
    with pytest.raises(ContractError, match="first"):
        policy.act(obs)
    policy.act(obs, rows)  # the rest is compared by the command


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
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "needs_another.py").write_text("import no_such_package")
    (tmp_path / "does_not_fit.py").write_text("import numpy\nnumpy.string_.no_such_name")
    says = {
        "no_such_package": "no_such_package is not installed; ",
        "needs_another": "no_such_package is not installed; ",
        "does_not_fit": "does_not_fit cannot be loaded: AttributeError: ",
    }
    for name, text in says.items():
        monkeypatch.setattr("realm.learn.export.NEEDED", (name,))
        assert main(["export", "shipped", "--onnx", str(tmp_path / "model.onnx")]) == 2
        said = capsys.readouterr().err.splitlines()[-1]
        assert text in said
        assert said.endswith(f"; {to_install(PACKAGES)}")


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
    assert not any(module.training for module in policy.player.agent.model.modules())  # and so it is exported
    env.step(policy.act(seen[0]))
    for wrong, text in (
        (seen[0, :3], "got float32[3]"),
        (seen[None], "got float32[1, 20, 4]"),
        ({"other": seen}, "got a dict"),
        (env.reset(), "got a tuple"),
        (None, "got a NoneType"),
    ):
        with pytest.raises(
            ContractError, match=re.escape(f"the observation must be float32[4] or float32[N, 4], {text}")
        ):
            policy.act(wrong)


CONSTANT: list[Any] = [
    ("classic.toml", ("dqn.epsilon_steps=1000", "dqn.epsilon_end=0.04"), (0.0, 1.0), 1.0),
    ("pendulum.toml", ("td3.random_steps=1000", "td3.explore_noise=0.01"), (2.0,), 2 * np.tanh(2.0)),
    ("pendulum_sac.toml", ("sac.random_steps=1000",), (2.0, -9.0), 2 * np.tanh(2.0)),
]
"""Configuration, its settings, the last layer's bias, and the greedy action that comes of it."""


@pytest.mark.parametrize(("config_file", "settings", "bias", "greedy"), CONSTANT)
@pytest.mark.parametrize("env_steps", [0, 5000])
def test_sampled_actions_are_those_of_the_checkpoints_env_steps(
    config_file: str,
    settings: tuple[str, ...],
    bias: tuple[float, ...],
    greedy: float,
    env_steps: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A schedule of exploration that has ended stays ended where the model plays."""
    monkeypatch.chdir(ROOT)
    run = make_run(tmp_path, config_file, *settings, env_steps=env_steps, bias=bias)
    policy = realm.load_policy(run)
    obs = np.zeros((1000, *policy.spec.obs["state"].shape), np.float32)
    assert np.allclose(policy.act(obs), greedy)
    near = np.abs(policy.act(obs, explore=1.0) - greedy) < 0.1
    assert near.mean() > 0.95 if env_steps else near.mean() < 0.6
    file = tmp_path / "eval.json"
    assert main(["eval", str(run), "--both", "--episodes", "5", "--json", str(file)]) == 0
    assert "sampled actions" in capsys.readouterr().out
    returns = np.array(json.loads(file.read_text())["episodes"]["r"]).reshape(2, 5)
    difference = np.abs(returns[1] - returns[0]).mean() / np.abs(returns[0]).mean()
    assert difference < 0.1 if env_steps else difference > 0.1


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
