"""The workflow: what it yields, when, and with which observation."""

from __future__ import annotations

from typing import Any

import numpy as np

from diy.config import Config
from diy.feature.definition import make_envs, spec
from diy.train_workflow import workflow
from realm.contract import (
    Array,
    Arrays,
    Prediction,
    Version,
    WorkflowContext,
    check_arrays,
    chunk_fields,
    chunk_to_arrays,
)

E, T = 3, 8
CONFIG = Config(chunk_length=T)


class CountingPolicy:
    """Walks east; its version counts the calls."""

    calls = 0
    firsts: list[Array]

    def __init__(self) -> None:
        self.firsts = []

    def predict(self, obs: Arrays, first: Array, explore: float = 1.0) -> Prediction:
        self.calls += 1
        self.firsts.append(first.copy())
        extra = {name: np.full(len(first), float(self.calls), np.float32) for name in ("log_prob",)}
        return Prediction(np.zeros(len(first), np.int64), extra, Version(1, self.calls))


class Episodes:
    """A monitor that counts finished episodes."""

    finished = 0

    def put(self, name: str, value: float) -> None: ...

    def episodes(self, info: Any) -> None:
        if "_episode" in info:
            self.finished += int(info["_episode"].sum())
            assert set(info["episode"]) >= {"score", "length", "missed", "reached_end"}


def test_chunks_come_in_order_and_before_the_next_question() -> None:
    envs = make_envs(E, 1, CONFIG, {"treasure_num": 9, "max_step": 12})
    shapes, policy, monitor = spec(envs, CONFIG), CountingPolicy(), Episodes()
    stream = workflow(envs, policy, WorkflowContext(shapes, CONFIG, 1, 5, 2, monitor))
    for n in range(4):
        chunk = next(stream)
        assert policy.calls == T * (n + 1)
        check_arrays(chunk_to_arrays(chunk), chunk_fields(shapes), (E,), "chunk")
        np.testing.assert_array_equal(chunk.version[:, :, 1], np.tile(np.arange(1, T + 1) + T * n, (E, 1)))
        np.testing.assert_array_equal(chunk.extra["log_prob"], chunk.version[:, :, 1])
        assert (chunk.worker == 5).all()
        assert (chunk.incarnation == 2).all()
        np.testing.assert_array_equal(chunk.env, range(E))
        np.testing.assert_array_equal(chunk.seq, n)
        for t in range(T):
            row = T * n + t  # an episode is 12 steps and the row of its reset
            assert (chunk.first[:, t] == (row % 13 == 0)).all()
            assert (chunk.valid[:, t] == (row % 13 != 12)).all()
            assert (chunk.truncated[:, t] == (row % 13 == 11)).all()
            np.testing.assert_array_equal(policy.firsts[row], chunk.first[:, t])
    assert monitor.finished == 2 * E
