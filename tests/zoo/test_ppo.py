"""What PPO learns only if all of it is right: masks, scales of observations and rewards, time limits, many buttons."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from realm.algorithms.batch import Batch
from realm.algorithms.losses import Outputs, ppo_losses
from realm.chunk import ChunkBuilder
from realm.contract import Prediction
from realm.errors import ConfigError
from realm.user import load_definition
from realm.zoo.ppo.algorithm.agent import Agent, imitation
from realm.zoo.ppo.config import Config
from tests.corridor import Training, context

TURNS = 8


class Cards(gymnasium.Env[Any, Any]):
    """TURNS times a card is shown, and the answer to it is worth 1. What a subclass changes is the difficulty."""

    observation_space: ClassVar[spaces.Space[Any]] = spaces.Box(-np.inf, np.inf, (4,), np.float32)
    action_space: ClassVar[spaces.Space[Any]] = spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.turn = 0
        return self.show(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward, over = self.judge(action)
        self.turn += 1
        return self.show(), reward, over or self.turn == TURNS, False, {}

    def show(self) -> Any:
        self.card = int(self.np_random.integers(3))
        return np.float32([*np.eye(3)[self.card], self.turn / TURNS])

    def judge(self, action: Any) -> tuple[float, bool]:
        return float(action == self.card), False


class Masked(Cards):
    """An illegal action ends the episode; the answer is the legal one of two, of which nothing but the mask tells."""

    observation_space = spaces.Dict({"a": Cards.observation_space, "action_mask": spaces.MultiBinary(4)})
    action_space = spaces.Discrete(4)

    def show(self) -> Any:
        a = super().show()
        self.legal = np.ones(4, np.int8)
        self.legal[self.np_random.integers(4)] = 0
        return {"a": a, "action_mask": self.legal}

    def judge(self, action: Any) -> tuple[float, bool]:
        assert self.legal[action], "an illegal action"
        best = self.card if self.legal[self.card] else 3
        return float(action == best), False


class Scales(Cards):
    """The card is in the thousandths, next to noise in the thousands."""

    observation_space = spaces.Box(-np.inf, np.inf, (7,), np.float32)

    def show(self) -> Any:
        return np.concatenate([1e-3 * super().show(), 1e3 * self.np_random.normal(size=3)]).astype(np.float32)


class Rich(Cards):
    """Rewards of ten thousand."""

    def judge(self, action: Any) -> tuple[float, bool]:
        return 1e4 * float(action == self.card), False


class Buttons(Cards):
    """Twelve buttons, of which a third is right with each card: 4,096 combinations."""

    action_space = spaces.MultiBinary(12)

    def judge(self, action: Any) -> tuple[float, bool]:
        return float((action == (np.arange(12) % 3 == self.card)).mean()), False


class Tempting(gymnasium.Env[Any, Any]):
    """Staying pays 1 a step, leaving 8 once. The time limit of five steps is none of the world: staying is worth 20."""

    observation_space: ClassVar[spaces.Space[Any]] = spaces.Box(0, 1, (1,), np.float32)
    action_space: ClassVar[spaces.Space[Any]] = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.ones(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.ones(1, np.float32), 8.0 if action else 1.0, bool(action), False, {}


class Fork(gymnasium.Env[Any, Any]):
    """Action 0 pays 0.3 at once. The others lead on, where one of five pays 1: chance makes 0.2 of it."""

    observation_space: ClassVar[spaces.Space[Any]] = spaces.Box(0, 1, (1,), np.float32)
    action_space: ClassVar[spaces.Space[Any]] = spaces.Discrete(5)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.on = False
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        over, reward = self.on or action == 0, float(action == 4) if self.on else 0.3 * (action == 0)
        self.on = True
        return np.ones(1, np.float32), reward, bool(over), False, {}


def trained(
    env: type[gymnasium.Env[Any, Any]], updates: int, played: bool = True, **settings: Any
) -> tuple[Agent, Any, dict[str, float]]:
    """The agent, environments of it, and the metrics of its last update. played: by it; else by one without training"""
    limit = 5 if env is Tempting else None
    gymnasium.register(f"{env.__name__}-v0", entry_point=env, max_episode_steps=limit)
    own = {"advantage": "gae", **settings}
    config = Config(chunk_length=32, minibatch_size=64, hidden=32, lr_start=3e-3, **own)
    definition = load_definition("realm.zoo.ppo")
    envs: Any = definition.make_envs(8, 0, config, {"id": f"{env.__name__}-v0"})
    spec = definition.spec(envs, config)
    agent = Agent(spec, config, "cpu", 0)
    player = agent if played else Agent(spec, config, "cpu", 0)
    training, metrics = Training(agent), dict[str, float]()
    obs, _ = envs.reset(seed=0)
    chunks = ChunkBuilder(spec, obs)
    while training.version.update < updates:
        action, extra, _ = player.predict(obs, context(8))
        obs, reward, terminated, truncated, _ = envs.step(action)
        chunks.step(Prediction(action, extra, training.version), reward, terminated, truncated, obs)
        if chunks.full:
            metrics = training.learn(chunks.take())
    return agent, envs, metrics


def greedy_return(agent: Agent, envs: Any) -> float:
    """Mean of 64 episodes of TURNS steps."""
    total, obs = 0.0, envs.reset(seed=1)[0]
    for _ in range(8):
        obs, _ = envs.reset()
        for _ in range(TURNS):
            obs, reward, *_ = envs.step(agent.predict(obs, context(8, explore=0.0))[0])
            total += reward.sum()
    return float(total) / 64


@pytest.mark.parametrize(
    ("env", "updates", "settings", "best"),
    [
        (Masked, 40, {}, TURNS),
        pytest.param(Scales, 40, {"normalise_obs": True}, TURNS, marks=pytest.mark.slow),
        pytest.param(Rich, 40, {"normalise_returns": True}, 1e4 * TURNS, marks=pytest.mark.slow),
        pytest.param(Buttons, 60, {}, TURNS, marks=pytest.mark.slow),
        pytest.param(Masked, 40, {"shared_trunk": True, "imitation": 0.1}, TURNS, marks=pytest.mark.slow),
        pytest.param(Masked, 60, {"advantage": "q"}, TURNS, marks=pytest.mark.slow),
    ],
)
def test_it_finds_the_best_answers(
    env: type[Cards], updates: int, settings: dict[str, Any], best: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gymnasium.envs.registration, "registry", dict(gymnasium.registry))
    agent, envs, metrics = trained(env, updates, **settings)
    assert greedy_return(agent, envs) > 0.95 * best
    assert ("imitation_loss" in metrics) == ("imitation" in settings)
    if env is Rich:
        assert metrics["explained_variance"] > 0.9


@pytest.mark.slow
@pytest.mark.parametrize(("advantage", "goes_on"), [("q", True), ("gae", False)])
def test_a_value_of_each_action_is_learned_from_what_another_policy_plays(
    advantage: str, goes_on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which goes on at random, so to GAE going on stays worse."""
    monkeypatch.setattr(gymnasium.envs.registration, "registry", dict(gymnasium.registry))
    agent, _, _ = trained(Fork, 60, played=False, advantage=advantage, clip=1e3, entropy_start=0.0)
    first, later = agent.greedy({"state": torch.tensor([[0.0], [1.0]])})["action"].tolist()
    assert (first > 0) == goes_on
    assert later == 4


@pytest.mark.parametrize("bootstrapped", [True, False])
def test_a_time_limit_is_bootstrapped(bootstrapped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Taken for an end of the world it makes leaving the better choice."""
    monkeypatch.setattr(gymnasium.envs.registration, "registry", dict(gymnasium.registry))
    if not bootstrapped:
        step = ChunkBuilder.step
        monkeypatch.setattr(
            ChunkBuilder, "step", lambda self, p, r, ends, cut, obs: step(self, p, r, ends | cut, cut & False, obs)
        )
    agent, _, _ = trained(Tempting, 40, gamma_start=0.95, gamma_end=0.95, entropy_start=0.1)
    greedy = int(agent.greedy({"state": torch.ones(1, 1)})["action"])
    assert greedy == (0 if bootstrapped else 1)


@pytest.mark.parametrize("numbers", [(), (3,)])
def test_imitation_is_of_the_rows_whose_return_beat_the_value(numbers: tuple[int, ...]) -> None:
    value, target, before = torch.randn(9), torch.randn(9), torch.randn(9, *numbers)
    log_prob = torch.randn(9, *numbers, requires_grad=True)
    nothing = torch.empty(0)
    rows = Batch({}, None, nothing, before, before, value, nothing, target)
    loss = imitation(0.5).function(rows, Outputs(log_ratio=log_prob - before))
    expected = sum(-max(0.0, float(target[n] - value[n])) * float(log_prob[n].detach().sum()) for n in range(9)) / 9
    assert float(loss.detach()) == pytest.approx(expected, abs=1e-5)
    loss.backward()
    assert log_prob.grad is not None
    assert ((log_prob.grad.reshape(9, -1) != 0).any(1) == (target > value)).all()


def test_each_number_of_an_action_may_have_its_own_advantage() -> None:
    log_ratio, advantage, nothing = 0.5 * torch.randn(9, 3), torch.randn(9, 3), torch.empty(0)
    rows = Batch({}, None, nothing, nothing, nothing, nothing, advantage, nothing)
    loss = ppo_losses(Config(ratio="each", advantage="gae"))[0].function(rows, Outputs(proximal_log_ratio=log_ratio))
    expected = 0.0
    for ratio, of_it in zip(log_ratio.exp().flatten().tolist(), advantage.flatten().tolist(), strict=True):
        expected -= min(ratio * of_it, max(0.8, min(1.2, ratio)) * of_it) / 9
    assert float(loss) == pytest.approx(expected, abs=1e-5)


def test_minibatches_with_a_memory_are_of_whole_chunks() -> None:
    with pytest.raises(ValueError, match="minibatch_size is 64, it must be chunk_length, 128, or more with a memory"):
        Config(memory="gru", minibatch_size=64)


def test_a_value_of_each_action_needs_one_action_of_n() -> None:
    definition, config = load_definition("realm.zoo.ppo"), Config(advantage="q")
    with pytest.raises(ConfigError, match="advantage is 'q', but actions here are not one of n; it must be"):
        definition.spec(definition.make_envs(1, 0, config, {"id": "Pendulum-v1"}), config)
    with pytest.raises(ValueError, match="advantage is 'q', it must be another than 'q' with a memory"):
        Config(advantage="q", memory="gru")
    with pytest.raises(ValueError, match="it must be 0 if advantage is 'q'"):
        Config(advantage="q", imitation=0.1)
