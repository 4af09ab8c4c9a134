"""Observations with the frames before them: the same where a policy acts and where it learns."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from realm.algorithms.windows import Windows, gathered
from realm.chunk import ChunkBuilder
from realm.contract import ActionSpec, Chunk, Field, PredictContext, Prediction, Spec, Version
from realm.policy.state import PolicyState
from realm.zoo.gym import frames_before
from realm.zoo.ppo.algorithm.agent import Agent
from realm.zoo.ppo.config import Config
from tests.corridor import copied

N, T, FRAMES = 3, 5, 4
OBS = {"x": Field((2,), "float32"), "screen": Field((36, 36, 1), "uint8"), "legal": Field((3,), "bool")}
EXTRA = {"log_prob": Field((), "float32")}


def observed(step: int) -> dict[str, Any]:
    numbers = np.arange(N * 2, dtype=np.float32).reshape(N, 2)
    screen = np.random.default_rng(step).integers(0, 256, (N, 36, 36, 1), np.uint8)
    return {"x": np.sin(numbers + step), "screen": screen, "legal": np.arange(3) != (np.arange(N)[:, None] + step) % 4}


def played(agent: Agent, spec: Spec, chunks: int) -> tuple[list[Chunk], list[Any]]:
    """Chunks of episodes that end now and then, and what the policy's network saw in each step."""
    seen, act = [], agent.ppo.act
    agent.ppo.act = lambda obs, explore: seen.append(obs) or act(obs, explore)  # type: ignore
    memory, everyone = PolicyState(spec.state, N), np.arange(N)
    builder, taken, step = ChunkBuilder(spec, observed(0)), list[Chunk](), 0
    while len(taken) < chunks:
        before = memory.before(everyone, builder.first)
        context = PredictContext(everyone, builder.first.copy(), np.ones(N, np.float32), state=before)
        action, extra, after = agent.predict(observed(step), context)
        memory.after(everyone, after)
        step += 1
        over = np.array([step % 7 == 0, step == 3, False])
        prediction = Prediction(action, extra, Version(1, 0), state=before)
        builder.step(prediction, np.ones(N, np.float32), over, over & False, observed(step))
        if builder.full:
            taken.append(copied(builder.take()))
    return taken, seen


@pytest.mark.parametrize("kind", [torch.uint8, torch.float32])
@pytest.mark.parametrize("shape", [(2,), (5, 3, 1), (4, 6, 3)])
def test_frames_are_gathered(shape: tuple[int, ...], kind: torch.dtype) -> None:
    """What indexing gives, and images as convolutions want them: stacked along channels without a copy."""
    frames = torch.arange(7 * math.prod(shape)).reshape(7, *shape).to(kind)
    place = torch.tensor([[0, 0, 0, 1], [3, 4, 5, 6], [6, 0, 6, 2]])
    found = gathered(frames, place)
    torch.testing.assert_close(found, frames[place], rtol=0, atol=0)
    if len(shape) > 1:
        stacked = found.movedim(1, -2).flatten(-2)
        assert stacked.is_contiguous()
        assert stacked.data_ptr() == found.data_ptr()


@pytest.mark.parametrize("normalise", [False, True])
def test_the_learner_sees_what_the_policy_saw(normalise: bool) -> None:
    config = Config(
        frames=FRAMES, chunk_length=T, hidden=8, normalise_obs=normalise, normalise_images=normalise, advantage="vtrace"
    )
    spec = Spec(OBS, ActionSpec(n=3), EXTRA, T, state=frames_before(OBS, FRAMES - 1))
    agent = Agent(spec, config, "cpu", 0)
    torch.nn.init.orthogonal_(agent.model.actor_net[1][4].weight, 2.0)  # type: ignore
    taken, seen = played(agent, spec, 4)
    assert len(seen) == 4 * T
    for number, chunk in enumerate(taken):
        batch = agent.ppo.estimate(chunk, config.schedule(0), stale=True)
        torch.testing.assert_close(
            batch.proximal_log_prob[batch.valid], batch.log_prob[batch.valid], rtol=0.0, atol=1e-5
        )
        if normalise:
            continue
        rows = Windows(batch)
        env, step = np.nonzero(chunk.valid)
        minibatch = rows.at(torch.arange(rows.count))
        acted = [seen[number * T + t]["x"][e] for e, t in zip(env, step, strict=True)]
        np.testing.assert_array_equal(minibatch.obs["x"], np.stack(acted))
        np.testing.assert_array_equal(minibatch.obs["legal"], chunk.obs["legal"][env, step])


def test_a_window_begins_with_its_episode() -> None:
    first = np.zeros((1, 6), bool)
    first[0, 3] = True
    frames = np.arange(6, dtype=np.float32).reshape(1, 6, 1)
    before = np.array([-3, -2, -1], np.float32).reshape(1, 3, 1)
    obs = {
        "x": torch.from_numpy(np.concatenate([before, frames], 1)),
        "first": torch.from_numpy(first),
    }
    shown = Windows.forward(obs, lambda seen: seen["x"][:, :, 0])[0]
    assert shown.tolist() == [
        [-3, -2, -1, 0], [-2, -1, 0, 1], [-1, 0, 1, 2], [3, 3, 3, 3], [3, 3, 3, 4], [3, 3, 4, 5],
    ]  # fmt: skip


def test_what_looks_back_needs_values_of_the_learner() -> None:
    with pytest.raises(ValueError, match=r"ppo.value_source is 'actor'"):
        Config(frames=2, value_source="actor")
    for name, value, usual in (("frames", 2, 1), ("activation", "relu", "'tanh'"), ("precision", "bf16", "'fp32'")):
        with pytest.raises(ValueError, match=rf"ppo.{name} is {value!r}, it must be {usual} with a memory"):
            Config(**{name: value}, memory="gru")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"ppo.frames is 0, it must be at least 1"):
        Config(frames=0)
