"""Every algorithm on a device other than the CPU: nothing stays behind there, and the numbers are the CPU's.

Where there is no GPU, a device that computes on the CPU stands in for it (`elsewhere.py`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from realm.contract import PredictContext, SampleInfo, Version
from tests.algorithms import test_group as ranks
from tests.algorithms.test_off_policy import (
    INFO,
    DQNAgent,
    DQNConfig,
    SACAgent,
    SACConfig,
    TD3Agent,
    TD3Config,
    batch,
    spec,
)
from tests.corridor import Training, complete
from tests.diy import test_agent as diy
from tests.elsewhere import DEVICE, elsewhere

CUDA = torch.cuda.is_available()
PPOS = {name: case for name, case in ranks.CASES.items() if CUDA or case.get("memory") != "gru"}  # it has no GRU
OFF_POLICY: dict[str, tuple[Any, Any]] = {
    "td3": (TD3Agent, TD3Config(hidden=8, minibatch_size=12)),
    "sac": (SACAgent, SACConfig(hidden=8, minibatch_size=12, temperature=0.2)),
    "dqn": (DQNAgent, DQNConfig(hidden=8, minibatch_size=12, double=True, dueling=True)),
}


@contextlib.contextmanager
def device() -> Iterator[tuple[str, list[str]]]:
    with elsewhere() if not CUDA else contextlib.nullcontext([]) as waits:
        yield "cuda" if CUDA else DEVICE.type, waits


def ppo(case: dict[str, Any], where: str, waits: list[str]) -> tuple[Any, dict[str, float]]:
    """Weights and metrics after two updates."""
    agent, shapes = ranks.agent_of(case, where)
    for update in range(2):
        chunk = ranks.chunk_of(shapes, update, "nan" in case)
        known = np.zeros(len(chunk.worker), np.int64)
        steps = int(chunk.valid.sum())
        info = SampleInfo(known, known, known, steps, len(known), steps, Version(1, update), stale=True)
        waits.clear()
        metrics, _ = complete(agent.learn(chunk, info))
    return {name: x.cpu() for name, x in agent.model.state_dict().items()}, dict(metrics)


@pytest.mark.parametrize("name", PPOS)
def test_ppo_learns_there_what_it_learns_here(name: str) -> None:
    weights, metrics = ppo(PPOS[name], "cpu", [])
    with device() as (there, waits):
        other, others = ppo(PPOS[name], there, waits)
    ranks.compared(weights, {key: x.numpy() for key, x in other.items()}, near)
    ranks.compared(metrics, others, near)


@pytest.mark.skipif(CUDA, reason="the device that is none counts")
def test_how_often_an_update_waits_for_the_device() -> None:
    """Three times in each gradient step of two parts (whether advantages, and both gradients, are finite), and for its
    report."""
    chunk = ranks.chunk_of(ranks.agent_of(PPOS["gae"])[1], 1, False)
    steps = ranks.SMALL.epochs * round(chunk.valid.sum() / ranks.SMALL.minibatch_size)
    with device() as (there, waits):
        ppo(PPOS["gae"], there, waits)
    assert 3 * steps <= len(waits) <= 3 * steps + 40


def test_the_games_agent_acts_and_learns_there_as_here() -> None:
    chunks = diy.recorded(2)

    def results(where: str) -> Any:
        agent = diy.Agent(diy.SPEC, diy.TINY, where, 3)
        training = Training(agent)
        metrics = [dict(training.learn(chunk)) for chunk in chunks]
        rows = {name: array[:, 0] for name, array in chunks[0].obs.items()}
        acts = agent.predict(rows, diy.context(len(chunks[0].worker), 0.0))[0]
        return metrics, acts, {key: x.cpu().numpy() for key, x in agent.model.state_dict().items()}

    here = results("cpu")
    with device() as (where, _):
        ranks.compared(here, results(where), near)


@pytest.mark.parametrize("name", OFF_POLICY)
def test_off_policy_algorithms_act_and_learn_there_as_here(name: str) -> None:
    make, config = OFF_POLICY[name]
    discrete = name == "dqn"
    rows = batch(discrete, np.random.default_rng(0))
    obs, count = rows.obs, len(rows.reward)
    context = PredictContext(np.arange(count), np.zeros(count, np.bool_), np.zeros(count, np.float32), 10**6)

    def results(where: str) -> Any:
        agent = make(spec(discrete), config, where, 0)
        before = agent.predict(obs, context)[0]
        metrics, _ = complete(agent.learn(rows, INFO))
        return before, dict(metrics), {key: x.cpu().numpy() for key, x in agent.model.state_dict().items()}

    here = results("cpu")
    with device() as (where, _):
        ranks.compared(here, results(where), near)


def near(one: Any, other: Any) -> None:
    np.testing.assert_allclose(np.asarray(other, np.float64), np.asarray(one, np.float64), rtol=1e-3, atol=2e-4)
