"""Running moments, and PPO with normalised observations and returns."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch import Tensor

from realm.algorithms.actor_critic import ActorCritic
from realm.algorithms.normalise import Moments, Observations, learn_observations
from realm.algorithms.ppo import PPO
from realm.chunk import ChunkBuilder
from realm.contract import ActionSpec, Arrays, Chunk, Field, PredictContext, Prediction, Spec, Version
from realm.errors import CheckpointError, UserCodeError
from realm.learn.checkpoint import load_bytes, to_bytes
from realm.zoo.ppo.algorithm.agent import Agent
from realm.zoo.ppo.config import Config
from tests.corridor import Training

FIELDS = {"state": Field((3,), "float32"), "legal": Field((2,), "bool"), "card": Field((), "int64")}
SPEC = Spec(FIELDS, ActionSpec(n=2), {"log_prob": Field((), "float32")}, 8)
BOTH = Config(chunk_length=8, minibatch_size=16, normalise_obs=True, normalise_returns=True, advantage="gae", hidden=16)


def learned(parts: list[Tensor]) -> Moments:
    moments = Moments(parts[0].shape[1:])
    for part in parts:
        moments.learn(part)
    return moments


@pytest.mark.parametrize("sizes", [[1, 1, 1, 5], [1000, 3, 0, 1], [17] * 60, [1, 100_000]])
@pytest.mark.parametrize(("mean", "deviation"), [(0.0, 1.0), (1e6, 1.0), (-3e-4, 1e-3), (5e3, 1e3)])
def test_merging_is_one_pass_over_all(sizes: list[int], mean: float, deviation: float) -> None:
    draw = np.random.default_rng(0)
    rows = draw.normal(mean, deviation, (sum(sizes), 3))
    moments = learned([torch.from_numpy(x) for x in np.split(rows, np.cumsum(sizes)[:-1])])
    assert moments.count == len(rows)
    np.testing.assert_allclose(moments.mean, rows.mean(0), rtol=1e-12, atol=1e-12 * abs(mean) + 1e-12 * deviation)
    np.testing.assert_allclose(moments.variance, rows.var(0), rtol=1e-9)


def test_ten_million_rows_keep_what_they_know() -> None:
    """Of 1e6 + noise in float32, whose sum of squares would leave nothing."""
    draw = np.random.default_rng(0)
    part = draw.normal(1e6, 2.0, 100_000).astype(np.float32)
    moments = learned([torch.from_numpy(part)] * 100)
    exact = part.astype(np.float64)
    assert moments.count == 10**7
    np.testing.assert_allclose([moments.mean, moments.variance], [exact.mean(), exact.var()], rtol=1e-10)
    scaled = moments.scaled(torch.from_numpy(part))
    assert abs(float(scaled.mean())) < 1e-5
    assert abs(float(scaled.std()) - 1) < 1e-4


def test_observations_are_scaled_cut_and_left_alone() -> None:
    observations = Observations(FIELDS, BOTH)
    rows = torch.tensor([[0.0, 5.0, 1e6], [2.0, 5.0, 1e6 + 8]])
    obs = {"state": rows, "legal": torch.ones(2, 2, dtype=torch.bool), "card": torch.tensor([3, 4])}
    observations.learn(obs)
    seen = observations({**obs, "state": torch.tensor([[1.0, 5.0, 1e6 + 4], [1e9, 5.1, -1e9]])})
    np.testing.assert_allclose(seen["state"], [[0, 0, 0], [10, 10, -10]])  # the second column was constant
    assert seen["legal"] is obs["legal"]
    assert seen["card"] is obs["card"]


def test_images_are_scaled_pixel_by_pixel_if_asked_for() -> None:
    """Against one pass in float64; a pixel that never changed says nothing, one that has not before is cut."""
    fields = {**FIELDS, "screen": Field((40, 40, 1), "uint8")}
    settings = dataclasses.replace(BOTH, normalise_obs=False, normalise_images=True)
    draw = np.random.default_rng(0)
    rows = draw.integers(0, 256, (300, 40, 40, 1), np.uint8)
    rows[:, 7, 9] = 87
    observations = Observations(fields, settings)
    for part in np.split(rows, [100, 101]):
        observations.learn({"screen": torch.from_numpy(part)})
    shown = rows[:2].copy()
    shown[1, 7, 9] = 88
    obs = {"state": torch.ones(2, 3), "screen": torch.from_numpy(shown)[:, None]}  # with an axis of frames
    seen = observations(obs)
    assert seen["state"] is obs["state"]
    assert seen["screen"].dtype == torch.float32
    known = rows.astype(np.float64)
    exact = np.divide(shown - known.mean(0), known.std(0), where=known.std(0) > 0, out=np.zeros(shown.shape))
    exact[1, 7, 9] = 10
    np.testing.assert_allclose(seen["screen"][:, 0], exact, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_is_named_and_not_learned(value: float) -> None:
    observations = Observations(FIELDS, BOTH)
    rows = torch.zeros(4, 3)
    rows[2, 1] = value
    with pytest.raises(ValueError, match=rf"observation state\[1\] is {value}, it must be finite"):
        observations.learn({"state": rows})
    assert observations.moments[0].count == 0  # type: ignore[union-attr]


def a_chunk(scale: float = 1.0, steps: int = 8, seed: int = 0) -> Chunk:
    """Of 4 environments; in the second one step 3 is a reset. scale: of the rewards, around 10 times as much."""
    draw = np.random.default_rng(seed)

    def obs() -> Arrays:
        state = draw.normal(1.0, [1e-3, 1.0, 1e3], (4, 3)).astype(np.float32)
        return {"state": state, "legal": np.ones((4, 2), np.bool_), "card": np.zeros(4, np.int64)}

    builder, never = ChunkBuilder(dataclasses.replace(SPEC, chunk_length=steps), obs()), np.zeros(4, np.bool_)
    for step in range(steps):
        action = Prediction(draw.integers(2, size=4), {"log_prob": np.full(4, np.log(0.5), np.float32)}, Version(1, 0))
        reward = scale * draw.normal(10.0, 1.0, 4).astype(np.float32)
        builder.step(action, reward, np.arange(4) == (1 if step == 2 else -1), never, obs())
    return builder.take()


def test_only_valid_rows_are_learned() -> None:
    agent, chunk = Agent(SPEC, BOTH, "cpu", 0), a_chunk()
    learn_observations(agent.model, BOTH, chunk)
    rows = chunk.obs["state"][:, :-1][chunk.valid].astype(np.float64)
    assert len(rows) == 31
    (moments,) = agent.model.observations.moments
    np.testing.assert_allclose(moments.mean, rows.mean(0), rtol=1e-9)
    np.testing.assert_allclose(moments.variance, rows.var(0), rtol=1e-9)


@pytest.mark.parametrize("scale", [1e-4, 1e4])
def test_a_critic_learns_rewards_of_any_scale(scale: float) -> None:
    config = dataclasses.replace(BOTH, gamma_start=0.9, gamma_end=0.9, lr_start=3e-3, epochs=20)
    training = Training(Agent(SPEC, config, "cpu", 0))
    metrics = [training.learn(a_chunk(scale, 64, seed)) for seed in range(8)]
    assert metrics[-1]["value_mean"] == pytest.approx(scale * 10 / (1 - 0.9), rel=0.15)
    assert metrics[-1]["value_loss"] < 2.0  # in deviations, squared


def test_acting_reads_the_moments_and_an_update_goes_out_with_them() -> None:
    training = Training(Agent(SPEC, BOTH, "cpu", 0))
    agent = training.agent
    training.learn(a_chunk())
    sent = to_bytes(agent.model, agent.acting)
    assert len(sent) < len(to_bytes(agent.model))  # the critic stays
    actor = Agent(SPEC, BOTH, "cpu", 1)
    load_bytes(actor.model, sent, actor.acting)
    obs = {name: x[:, 0] for name, x in a_chunk(seed=5).obs.items()}
    policies = [one.greedy({name: torch.from_numpy(x) for name, x in obs.items()})["logits"] for one in (agent, actor)]
    assert torch.equal(*policies)
    before = {name: x.clone() for name, x in agent.model.state_dict().items()}
    agent.predict(obs, PredictContext(np.arange(4), np.zeros(4, np.bool_), np.ones(4, np.float32)))
    assert all(torch.equal(x, before[name]) for name, x in agent.model.state_dict().items())


def test_a_normalised_model_is_refused_without_normalisation() -> None:
    plain = dataclasses.replace(BOTH, normalise_obs=False, normalise_returns=False)
    normalised, other = (Agent(SPEC, config, "cpu", 0) for config in (BOTH, plain))
    for first, second, fault in ((normalised, other, "it has no observations"), (other, normalised, "they lack obs")):
        with pytest.raises(CheckpointError, match=f"these weights do not fit the model: {fault}"):
            load_bytes(second.model, to_bytes(first.model))


def test_a_network_without_moments_is_refused_where_they_are_asked_for() -> None:
    plain = ActorCritic(SPEC.obs, SPEC.action, dataclasses.replace(BOTH, normalise_obs=False, normalise_returns=False))
    for name in ("normalise_obs", "normalise_returns"):
        one = dataclasses.replace(BOTH, **{"normalise_obs": False, "normalise_returns": False, name: True})
        with pytest.raises(UserCodeError, match=r"to normalise (observations|returns), ActorCritic must .*add_moments"):
            PPO(plain, one, torch.device("cpu"), 0)
