"""realm/chunk.py: the builder against a slow literal version, on every pattern of ends around a chunk's borders."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from realm.chunk import ChunkBuilder
from realm.contract import ActionSpec, Arrays, Chunk, Field, Prediction, Spec, Version, check_arrays, chunk_to_arrays


def spec(length: int) -> Spec:
    return Spec(
        obs={"x": Field((2,), "float32"), "legal": Field((3,), "bool")},
        action=ActionSpec(nvec=(3, 5)),
        extra={"value": Field((), "float32"), "logits": Field((4,), "float64")},
        chunk_length=length,
    )


def observe(draw: np.random.Generator, envs: int) -> Arrays:
    return {"x": draw.normal(size=(envs, 2)).astype(np.float32), "legal": draw.random((envs, 3)) < 0.5}


def predict(draw: np.random.Generator, envs: int) -> Prediction:
    extra = {"value": draw.normal(size=envs).astype(np.float32), "logits": draw.normal(size=(envs, 4))}
    return Prediction(draw.integers(0, 3, (envs, 2)), extra, Version(1, int(draw.integers(100))))


@dataclass
class Row:
    action: Any
    reward: float
    terminated: bool
    truncated: bool
    valid: bool
    version: Version
    extra: dict[str, Any]


@dataclass
class Stream:
    """One environment, literally: rows in a list, observations in a list, one flag."""

    rows: list[Row] = field(default_factory=list)
    obs: list[dict[str, Any]] = field(default_factory=list)
    first: list[bool] = field(default_factory=list)
    over: bool = False

    def begin(self, obs: dict[str, Any]) -> None:
        self.obs.append(obs)
        self.first.append(True)

    def step(self, row: Row, obs: dict[str, Any], by_hand: bool = False) -> None:
        if self.over or by_hand:  # this step is the reset
            row.valid, row.reward, row.terminated, row.truncated = False, 0.0, False, False
            self.first.append(True)
            self.over = False
        else:
            self.first.append(False)
            self.over = row.terminated or row.truncated
        self.rows.append(row)
        self.obs.append(obs)

    def chunk(self, seq: int, length: int) -> dict[str, Any]:
        rows = self.rows[seq * length : (seq + 1) * length]
        obs = self.obs[seq * length : (seq + 1) * length + 1]
        return {
            "first": self.first[seq * length : (seq + 1) * length + 1],
            **{f"obs.{name}": [one[name] for one in obs] for name in obs[0]},
            **{f"extra.{name}": [one.extra[name] for one in rows] for name in rows[0].extra},
            **{
                name: [getattr(one, name) for one in rows]
                for name in ("action", "reward", "terminated", "truncated", "valid", "version")
            },
        }


def play(
    draw: np.random.Generator, length: int, envs: int, ends: Iterator[Any], steps: int, by_hand: float = 0.0
) -> tuple[list[Chunk], list[Stream]]:
    """Drive the builder and its literal twin; ends gives (terminated [E], truncated [E]) of each step."""
    obs = observe(draw, envs)
    builder, streams = ChunkBuilder(spec(length), obs, worker=4, incarnation=2), [Stream() for _ in range(envs)]
    for env, stream in enumerate(streams):
        stream.begin({name: array[env].copy() for name, array in obs.items()})
    taken: list[Chunk] = []
    for _ in range(steps):
        assert builder.first.tolist() == [stream.first[-1] for stream in streams]
        prediction, obs = predict(draw, envs), observe(draw, envs)
        reset = bool(draw.random() < by_hand)
        reward, (terminated, truncated) = draw.normal(size=envs), next(ends)
        if reset:
            builder.step_reset(prediction, obs)
        else:
            builder.step(prediction, reward, terminated, truncated, obs)
        for env, stream in enumerate(streams):
            row = Row(
                prediction.action[env].copy(),
                float(np.float32(reward[env])),
                bool(terminated[env]),
                bool(truncated[env]),
                True,
                prediction.version,
                {name: array[env].copy() for name, array in prediction.extra.items()},
            )
            stream.step(row, {name: array[env].copy() for name, array in obs.items()}, by_hand=reset)
        for array in (*obs.values(), prediction.action, *prediction.extra.values()):
            array[:] = 0  # the builder must have copied: environments write into their arrays again
        if builder.full:
            taken.append(copied(builder.take()))
    return taken, streams


def copied(chunk: Chunk) -> Chunk:
    def copy(value: Any) -> Any:
        return {name: array.copy() for name, array in value.items()} if isinstance(value, dict) else value.copy()

    return Chunk(**{name: copy(value) for name, value in vars(chunk).items()})


def compare(chunks: list[Chunk], streams: list[Stream], length: int) -> None:
    for seq, chunk in enumerate(chunks):
        flat = chunk_to_arrays(chunk)
        check_arrays(flat, spec(length).sample_fields, (len(streams),), "a round")
        assert (chunk.worker == 4).all()
        assert (chunk.incarnation == 2).all()
        assert (chunk.seq == seq).all()
        assert chunk.env.tolist() == list(range(len(streams)))
        for env, stream in enumerate(streams):
            for name, literal in stream.chunk(seq, length).items():
                assert (flat[name][env] == np.asarray(literal)).all(), (seq, env, name)


def test_every_pattern_of_ends_around_the_borders() -> None:
    """T = 3: nine steps, in which any, resets too, ends, is cut off, or neither; an environment for each pattern."""
    patterns = np.array(list(itertools.product("-tu", repeat=7)))
    steps = np.hstack((patterns, np.full((len(patterns), 2), "-"))).T
    ends = iter([(one == "t", one == "u") for one in steps])
    chunks, streams = play(np.random.default_rng(0), 3, len(patterns), ends, 9)
    assert len(chunks) == 3
    compare(chunks, streams, 3)
    seen = {tuple(one) for one in chunks[1].valid.tolist()}
    # in the middle chunk a reset is the first row, the last, both, or neither; two in a row there cannot be
    assert seen == {(a, b, c) for a in (0, 1) for b in (0, 1) for c in (0, 1) if (a or b) and (b or c)}


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 9), st.integers(1, 5), st.integers(0, 40), st.sampled_from([0, 0.1, 0.5, 1]), st.integers(0, 10**6),
    st.sampled_from([0.0, 0.0, 0.2]), st.sampled_from(["bool", "int8", "int64"]),
)  # fmt: skip
def test_random_streams(length: int, envs: int, steps: int, rate: float, seed: int, by_hand: float, dtype: str) -> None:
    draw = np.random.default_rng(seed)
    ends = iter([(draw.random((2, envs)) < rate).astype(dtype) for _ in range(steps)])
    chunks, streams = play(draw, length, envs, ends, steps, by_hand)
    assert len(chunks) == steps // length
    compare(chunks, streams, length)


def test_the_drawing_in_the_contract() -> None:
    """The example of realm/contract, number by number: T = 4 and an end at step 1."""
    none = np.array([False])
    names = ["o0", "o1", "o2*", "p0", "p1"]
    obs = [{"x": np.full((1, 2), n, np.float32), "legal": np.ones((1, 3), bool)} for n in range(len(names))]
    builder = ChunkBuilder(spec(4), obs[0])
    prediction = predict(np.random.default_rng(0), 1)
    for t, terminated in enumerate([False, True, False, False]):
        builder.step(prediction, np.array([t + 10.0]), np.array([terminated]), none, obs[t + 1])
    chunk = builder.take()
    assert chunk.obs["x"][0, :, 0].tolist() == [0, 1, 2, 3, 4]
    assert chunk.reward[0].tolist() == [10, 11, 0, 13]
    assert chunk.terminated[0].tolist() == [False, True, False, False]
    assert chunk.valid[0].tolist() == [True, True, False, True]
    assert chunk.first[0].tolist() == [True, False, False, True, False]


def test_a_reset_by_hand_is_the_row_of_an_autoreset() -> None:
    draw = np.random.default_rng(3)
    obs, prediction, yes, no = observe(draw, 2), predict(draw, 2), np.ones(2, bool), np.zeros(2, bool)
    by_hand, by_itself = ChunkBuilder(spec(3), obs), ChunkBuilder(spec(3), obs)
    last, new, after = observe(draw, 2), observe(draw, 2), observe(draw, 2)
    for builder in (by_hand, by_itself):
        builder.step(prediction, np.ones(2), yes, no, last)
    by_hand.step_reset(prediction, new)
    by_itself.step(prediction, np.full(2, 9.0), no, no, new)
    for builder in (by_hand, by_itself):
        assert builder.first.all()
        builder.step(prediction, np.ones(2), no, no, after)
    one, other = chunk_to_arrays(by_hand.take()), chunk_to_arrays(by_itself.take())
    for name, array in one.items():
        assert (array == other[name]).all(), name


def test_a_taken_chunk_stays_untouched_until_the_second_take_after() -> None:
    draw = np.random.default_rng(4)
    envs, length = 3, 4
    builder = ChunkBuilder(spec(length), observe(draw, envs))
    alive: list[tuple[Arrays, Arrays]] = []  # what was taken, and what it held then
    for _ in range(12):
        while not builder.full:
            ends = draw.random((2, envs)) < 0.3
            builder.step(predict(draw, envs), draw.normal(size=envs), *ends, observe(draw, envs))
        for taken, then in alive[-2:]:
            assert all((taken[name] == then[name]).all() for name in taken)
        chunk = builder.take()
        taken, then = alive[-1] if alive else ({}, {})
        assert all((taken[name] == then[name]).all() for name in taken)
        alive.append((chunk_to_arrays(chunk), chunk_to_arrays(copied(chunk))))


def test_take_waits_for_a_full_chunk() -> None:
    draw = np.random.default_rng(5)
    builder = ChunkBuilder(spec(2), observe(draw, 1))
    no = np.array([False])
    assert not builder.full
    for steps in range(2):
        with pytest.raises(RuntimeError, match=f"{steps} of 2 steps are recorded"):
            builder.take()
        builder.step(predict(draw, 1), np.ones(1), no, no, observe(draw, 1))
    builder.take()
    with pytest.raises(RuntimeError, match="0 of 2 steps are recorded"):
        builder.take()
