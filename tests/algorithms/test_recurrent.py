"""PPO with a memory: what it learns from is what acted, to the last rounding, and it recalls a cue."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from realm.chunk import ChunkBuilder
from realm.contract import Chunk, Field, PredictContext, Prediction, Spec
from realm.errors import UserCodeError
from realm.policy.state import PolicyState
from tests.corridor import Training, copied
from tests.recall.algorithm.agent import Agent
from tests.recall.config import Config
from tests.recall.feature.definition import make_envs, spec


def play(training: Training, envs: Any, of: Spec) -> Iterator[tuple[Chunk, list[float]]]:
    """Endless chunks, and the returns of the episodes that ended in them."""
    obs, _ = envs.reset(seed=1)
    everyone, memory, returns = np.arange(envs.num_envs), PolicyState(of.state, envs.num_envs), []
    chunks = ChunkBuilder(of, obs)
    while True:
        before, explore = memory.before(everyone, chunks.first), np.ones(envs.num_envs, np.float32)
        context = PredictContext(everyone, chunks.first.copy(), explore, state=before)
        action, extra, after = training.agent.predict(obs, context)
        memory.after(everyone, after)
        obs, reward, terminated, truncated, info = envs.step(action)
        returns += info["episode"]["r"][info["_episode"]].tolist() if "_episode" in info else []
        prediction = Prediction(action, extra, training.version, state=before)
        chunks.step(prediction, reward, terminated, truncated, obs)
        if chunks.full:
            yield chunks.take(), returns
            returns = []


def made(wait: int, **fields: Any) -> tuple[Training, Iterator[tuple[Chunk, list[float]]]]:
    config = Config(**{"hidden": 32, **fields})
    envs = make_envs(8, 1, config, {"wait": wait})
    of = spec(envs, config)
    training = Training(Agent(of, config, "cpu", 1))
    return training, play(training, envs, of)


@pytest.mark.parametrize("env_id", ["Recall", "BlindPole"])
def test_the_learner_has_the_log_probabilities_of_the_actor_before_its_first_step(env_id: str) -> None:
    """Whole chunks are unrolled from the memory with which each began, also over ends of episodes."""
    config = Config(hidden=32, chunk_length=24, advantage="vtrace", value_source="learner")
    envs = make_envs(8, 1, config, {"id": f"tests.recall.envs:{env_id}-v0"})
    training = Training(Agent(spec(envs, config), config, "cpu", 1))
    ppo = training.agent.ppo
    torch.nn.init.orthogonal_(training.agent.model.actor_head[0].weight, 2.0)
    stream = play(training, envs, spec(envs, config))
    for _ in range(4):
        chunk = copied(next(stream)[0])
        batch = ppo.estimate(chunk, config.schedule(0), stale=True)
        assert batch.valid is not None
        apart = (batch.proximal_log_prob - batch.log_prob)[batch.valid].abs().max()
        assert float(apart) <= 3e-7
        training.learn(chunk)
    assert (~chunk.valid).any()
    assert chunk.state["memory"].any()
    lost = dataclasses.replace(chunk, state={"memory": np.zeros_like(chunk.state["memory"])})
    batch = ppo.estimate(lost, config.schedule(0), stale=True)
    assert (batch.proximal_log_prob - batch.log_prob)[batch.valid].abs().max() > 1e-3


def test_an_episode_that_has_begun_anew_knows_nothing_of_the_one_before() -> None:
    training, stream = made(wait=4, chunk_length=16)
    chunk = copied(next(stream)[0])
    network, ppo = training.agent.model, training.agent.ppo
    obs = ppo.cut.inputs(chunk, torch.device("cpu"))
    begins = chunk.first[:, 1:].argmax(1) + 1
    other = {name: x.clone() for name, x in obs.items()}
    for env, begin in enumerate(begins):
        other["state"][env, :begin] += 1.0
    (one, _), (two, _) = network.unrolled(obs), network.unrolled(other)
    for env, begin in enumerate(begins):
        assert not torch.equal(one[env, :begin], two[env, :begin])
        torch.testing.assert_close(one[env, begin:], two[env, begin:])


def test_a_memory_needs_values_of_the_learner() -> None:
    with pytest.raises(ValueError, match=r"recall.value_source is 'actor', it must be 'learner'"):
        made(wait=4, value_source="actor")


def test_a_network_that_cannot_be_unrolled_is_refused_before_it_acts() -> None:
    training, stream = made(wait=4)
    training.agent.ppo.network = lambda obs: training.agent.model(obs)[:2]
    with pytest.raises(
        UserCodeError, match="cannot be unrolled: with RecurrentPPO a network returns policy, value and"
    ):
        next(stream)


def test_it_recalls_a_cue() -> None:
    training, stream = made(wait=3, chunk_length=8, minibatch_size=64, epochs=4, lr_start=5e-3)
    known: list[float] = []
    while training.env_steps < 8_000 and np.mean(known[-100:] or [0]) < 0.95:
        chunk, returns = next(stream)
        known += returns
        training.learn(chunk)
    assert len(known) > 100
    assert np.mean(known[-100:]) >= 0.95  # without a memory 0.5


def test_a_continuous_policy_has_a_memory_too() -> None:
    config = Config(hidden=8, chunk_length=8, advantage="vtrace", value_source="learner")
    envs = make_envs(4, 1, config, {"id": "Pendulum-v1"})
    of = spec(envs, config)
    of = dataclasses.replace(of, extra={**of.extra, "drawn": Field((1,), "float32")})
    training = Training(Agent(of, config, "cpu", 1))
    stream = play(training, envs, of)
    for _ in range(3):
        chunk = copied(next(stream)[0])
        batch = training.agent.ppo.estimate(chunk, config.schedule(0), stale=True)
        assert batch.valid is not None
        torch.testing.assert_close(batch.proximal_log_prob[batch.valid], batch.log_prob[batch.valid], rtol=0, atol=1e-5)
        assert training.learn(chunk)["skipped"] == 0


def test_a_memory_that_is_not_finite_is_cleared_and_counted() -> None:
    counted: list[tuple[str, float]] = []
    fields = {"memory": Field((2,), "float32"), "age": Field((), "int64")}
    memory = PolicyState(fields, 3, lambda name, amount: counted.append((name, amount)))
    everyone, none = np.arange(3), np.zeros(3, np.bool_)
    memory.after(everyone, {"memory": np.float32([[1, 2], [np.nan, 3], [4, 5]]), "age": np.array([1, 2, 3])})
    state = memory.before(everyone, none)
    assert state["memory"].tolist() == [[1, 2], [0, 0], [4, 5]]
    assert state["age"].tolist() == [1, 0, 3]
    huge = np.full((3, 2), np.finfo(np.float32).max)  # its sum is no float32, it is
    memory.after(everyone, {"memory": huge, "age": np.array([1, 2, 3])})
    assert (memory.before(everyone, none)["memory"] == huge).all()
    assert counted == [("cleared_memories", 1)]
