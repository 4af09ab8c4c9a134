"""`realm.load_policy` in a program of one's own: what it takes, what it gives, and the memory that it keeps."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector.utils import batch_space

import realm
from realm.contract import PredictContext
from realm.errors import CheckpointError, ConfigError, ContractError
from realm.learn.checkpoint import find
from realm.learn.evaluation import evaluate, load_player
from tests.learn.test_export import make_run
from tests.odd import batched, registered

CONFIGS = {"ppo": "cartpole.toml", "dqn": "classic.toml", "td3": "pendulum.toml", "sac": "pendulum_sac.toml"}
FLOATS = spaces.Box(-1, 1, (2,), np.float64)
RICH = spaces.Dict(
    {"a": spaces.Dict({7: spaces.Discrete(2)}), "b": spaces.Tuple((spaces.MultiDiscrete([2, 3]), FLOATS))}
)


def load(folder: Path, package: str, obs: spaces.Space[Any], action: spaces.Space[Any], *settings: str) -> Any:
    """A policy with random weights."""
    env = f"env.id={registered(obs, action)}"
    return realm.load_policy(make_run(folder, CONFIGS[package], f"algo=realm.zoo.{package}", env, *settings))


@pytest.mark.parametrize(
    ("package", "obs", "action"),
    [
        ("ppo", FLOATS, spaces.Discrete(3, start=5)),
        ("ppo", spaces.Tuple((spaces.Discrete(3), FLOATS)), spaces.MultiBinary((2, 2))),
        ("ppo", RICH, spaces.MultiDiscrete([2, 3], start=[1, -1])),
        ("ppo", spaces.Dict({"a": FLOATS, "action_mask": spaces.MultiBinary(3)}), spaces.Discrete(3, start=-1)),
        ("ppo", spaces.Box(0, 255, (3, 40, 44), np.uint8), spaces.Box(np.float16(0), np.float16(1), dtype=np.float16)),
        ("dqn", spaces.Dict({"seen": spaces.Box(0, 255, (40, 44), np.uint8)}), spaces.Discrete(2, dtype=np.int32)),
        ("dqn", spaces.Discrete(4, start=1), spaces.MultiDiscrete([3, 2], start=[1, -1])),
        ("dqn", spaces.MultiDiscrete([2, 3]), spaces.Box(0, 9, (2,), np.int32)),
        ("td3", spaces.Box(-1, 1, ()), spaces.Box(np.array([0.7, 1, 2]), np.array([0.9, 1, 3]), dtype=np.float64)),
        ("sac", spaces.MultiBinary(3), spaces.Box(0.81, 1.19, (2, 2))),
    ],
)  # fmt: skip
def test_a_policy_acts_as_evaluation_plays(
    package: str, obs: spaces.Space[Any], action: spaces.Space[Any], tmp_path: Path
) -> None:
    """On each raw observation, and on all at once, by actions of the environment's own space."""
    policy = load(tmp_path, package, obs, action)
    player = load_player(policy.config, find(tmp_path / "ckpt", "latest"), 1, 0)
    evaluate(policy.config, player.envs, player.predict, 4, 0.0, 0)
    seen, took = zip(*player.envs.unwrapped.envs[0].unwrapped.took, strict=True)
    assert len(seen) == 20
    for one, wanted in zip(seen, took, strict=True):
        chosen = policy.act(one)
        assert action.contains(chosen), chosen
        assert chosen.dtype == action.dtype
        np.testing.assert_array_equal(chosen, wanted)
    many = policy.act(batched(obs, list(seen)))
    assert batch_space(action, 20).contains(many)
    np.testing.assert_allclose(many, took, rtol=1e-3)
    assert batch_space(action, 20).contains(policy.act(batched(obs, list(seen)), explore=1.0))
    envs = policy.make_envs(3)
    envs.step(policy.act(envs.reset()[0]))


def test_a_program_that_loads_a_model_keeps_its_random_numbers_and_gets_the_environments_of_training(
    tmp_path: Path,
) -> None:
    load(tmp_path, "ppo", FLOATS, spaces.Discrete(2), "eval_env.max_episode_steps=2")
    drawn = []
    for seed in (7, 8):
        torch.manual_seed(seed)
        policy = realm.load_policy(tmp_path)
        drawn.append(float(torch.rand(())))
    assert drawn[0] != drawn[1]
    envs = policy.make_envs(1)
    envs.reset(seed=0)
    assert not any(envs.step(np.zeros(1, np.int64))[3].any() for _ in range(3))
    with pytest.raises(CheckpointError, match="is the checkpoint of update 3, not 7"):
        realm.load_policy(next((tmp_path / "ckpt").iterdir()), 7)


def test_a_best_model_is_of_the_run_and_not_of_one_of_its_checkpoints(tmp_path: Path) -> None:
    load(tmp_path, "ppo", FLOATS, spaces.Discrete(2))
    with pytest.raises(ConfigError, match="--id best is the best model of"):
        realm.load_policy(next((tmp_path / "ckpt").iterdir()), "best")


def test_a_mirrored_observation_is_evaluated(tmp_path: Path) -> None:
    """As it is trained on: torch takes no array that runs backwards."""
    policy = load(tmp_path, "ppo", FLOATS, spaces.Discrete(2))
    player = load_player(policy.config, find(tmp_path / "ckpt", "latest"), 2, 0)
    nothing = np.zeros(2)
    context = PredictContext(np.arange(2), np.ones(2, bool), nothing, 0, {}, 0)
    seen = np.arange(4, dtype=np.float32).reshape(2, 2)
    backwards, straight = (player.predict({"state": x}, context)[0] for x in (seen[:, ::-1], seen[:, ::-1].copy()))
    np.testing.assert_array_equal(backwards, straight)


def test_what_does_not_fit_is_a_sentence(tmp_path: Path) -> None:
    policy = load(tmp_path, "ppo", RICH, spaces.Discrete(2))
    numbers, floats = np.array([1, 2]), np.zeros(2)
    of_three = np.zeros((3, 2))
    for wrong, text in (
        ({"a": {7: 1}}, "the observation must be a dict of a, b, got one without b"),
        ({"a": {7: 1}, "b": numbers}, "the observation['b'] must be a tuple of 2 parts, got a ndarray"),
        ({"a": 1, "b": (numbers, floats)}, "the observation['a'] must be a dict of 7, got a int"),
        ({"a": {7: 0.5}, "b": (numbers, floats)}, "the observation['a'][7] must be int64[] or int64[N], got float64[]"),
        (
            {"a": {7: 1}, "b": (numbers, np.zeros(3))},
            "the observation['b'][1] must be float64[2] or float64[N, 2], got float64[3]",
        ),
        (
            {"a": {7: 1}, "b": (numbers, [[1], [1, 2]])},
            "the observation['b'][1] must be float64[2] or float64[N, 2], got a list",
        ),
        (
            {"a": {7: 1}, "b": (numbers, of_three)},
            "the parts of the observation differ in their leading axes, [3] and []",
        ),
        ({"a": {7: 5}, "b": (numbers, floats)}, "the observation 'a.7' of Odd"),
    ):
        with pytest.raises(ContractError, match=re.escape(text)):
            policy.act(wrong)
    assert policy.act({"a": {7: True}, "b": ([1, 2], [0, 1]), "more": 0}) in (0, 1)


def test_a_memory_is_kept_for_each_row_until_reset(tmp_path: Path) -> None:
    policy = load(tmp_path, "dqn", FLOATS, spaces.Discrete(9), "dqn.frames=3")
    seen = np.random.default_rng(0).uniform(-1, 1, (3, 40, 2))  # of three environments
    alone = []
    for rows in seen:
        policy.reset()
        alone.append([int(policy.act(obs)) for obs in rows])
    begun = [int(policy.act(obs)) for obs in seen[0]]
    assert begun[2:] == alone[0][2:]  # three frames later nothing is left of what was seen before
    policy.reset()
    assert np.array([policy.act(obs) for obs in seen.swapaxes(0, 1)]).T.tolist() == alone
    assert [int(policy.act(obs)) for obs in seen[0]] != [int(policy.act(obs, first=[True])) for obs in seen[0]]
    policy.reset()
    again = [policy.act(obs, first=[t in (0, 20)] * 3).tolist() for t, obs in enumerate(seen.swapaxes(0, 1))]
    assert np.array(again[:20]).T.tolist() == [row[:20] for row in alone]
