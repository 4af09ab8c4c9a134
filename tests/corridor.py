"""A small world for tests of PPO, and what counts for an agent as a trainer does."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator, Iterator
from typing import Any

import numpy as np

from realm.chunk import ChunkBuilder
from realm.contract import (
    ActionSpec,
    Array,
    Arrays,
    Chunk,
    Field,
    Learned,
    PredictContext,
    Prediction,
    SampleInfo,
    Spec,
    Version,
    arrays_to_chunk,
    chunk_to_arrays,
)

STATES, ACTIONS, T = 5, 6, 16


def complete(learning: Any, at_yield: Callable[[], object] | None = None) -> Learned:
    """What an update comes to, whichever form `Agent.learn` has."""
    learned: Learned = learning
    if isinstance(learning, Generator):
        try:
            next(learning)
            if at_yield is not None:
                at_yield()
            next(learning)
        except StopIteration as end:
            learned = end.value
    return learned


def spec(dtype: str) -> Spec:
    """dtype: of the features."""
    return Spec(
        obs={"features": Field((STATES,), dtype), "legal": Field((ACTIONS,), "bool")},
        action=ActionSpec(n=ACTIONS),
        extra={"log_prob": Field((), "float32"), "value": Field((), "float32")},
        chunk_length=T,
    )


class Corridor:
    """E walks over STATES cells; action 1 goes on, the others stay; the last cell pays 1 and ends. One action, other at
    each cell, is illegal. NEXT_STEP autoreset."""

    def __init__(self, num_envs: int, encode: Callable[[Array], Array]) -> None:
        """encode: features f64 [E, STATES], one-hot, as the agent takes them."""
        self.encode = encode
        self.at = np.zeros(num_envs, np.int64)
        self.steps = np.zeros(num_envs, np.int64)
        self.over = np.zeros(num_envs, np.bool_)

    def obs(self) -> Arrays:
        legal = np.ones((len(self.at), ACTIONS), np.bool_)
        legal[np.arange(len(self.at)), 2 + self.at % 4] = False
        return {"features": self.encode(np.eye(STATES)[self.at]), "legal": legal}

    def step(self, action: Array) -> tuple[Array, Array, Array, Arrays]:
        assert self.obs()["legal"][np.arange(len(self.at)), action].all(), "an illegal action"
        self.at = np.where(self.over, 0, self.at + (action == 1))
        self.steps = np.where(self.over, 0, self.steps + 1)
        terminated = self.at == STATES - 1
        truncated = ~terminated & (self.steps >= 30)
        self.over = terminated | truncated
        return terminated.astype(np.float32), terminated, truncated, self.obs()


def context(rows: int, explore: float = 1.0) -> PredictContext:
    return PredictContext(np.arange(rows), np.zeros(rows, np.bool_), np.full(rows, explore, np.float32))


class Training:
    """Updates of an agent, with what a trainer counts."""

    def __init__(self, agent: Any, update: int = 0) -> None:
        self.agent, self.version, self.env_steps = agent, Version(1, update), 0
        self._changed = False  # the weights that went out are not those of now

    def learn(self, chunk: Chunk, at_yield: Callable[[], object] | None = None) -> dict[str, float]:
        """at_yield: takes the weights there."""
        b, steps = len(chunk.worker), int(chunk.valid.sum())
        stale = self._changed or bool((chunk.version != self.version).any())
        info = SampleInfo(
            np.arange(b, dtype=np.uint64), np.ones(b), np.ones(b, np.int64), steps, b, self.env_steps + steps,
            self.version, stale,
        )  # fmt: skip
        learned = complete(self.agent.learn(chunk, info), at_yield)
        self.version, self.env_steps = Version(1, self.version.update + 1), info.env_steps
        self._changed = at_yield is not None
        assert learned[1] is None
        return learned[0]

    def play(self, encode: Callable[[Array], Array], num_envs: int = 8) -> Iterator[Chunk]:
        """Endless chunks of the corridor; the agent may learn between two of them."""
        game, agent = Corridor(num_envs, encode), self.agent
        obs = game.obs()
        fields = spec(str(obs["features"].dtype))
        extra = {
            name: field for name, field in fields.extra.items()
            if name != "value" or agent.config.value_source == "actor"
        }  # fmt: skip
        chunks = ChunkBuilder(dataclasses.replace(fields, extra=extra), obs)
        while True:
            action, values = agent.predict(obs, context(num_envs))
            reward, terminated, truncated, obs = game.step(action)
            chunks.step(Prediction(action, values, self.version), reward, terminated, truncated, obs)
            if chunks.full:
                yield chunks.take()


def copied(chunk: Chunk) -> Chunk:
    return arrays_to_chunk({name: array.copy() for name, array in chunk_to_arrays(chunk).items()})
