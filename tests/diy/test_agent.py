"""The agent: legal actions, learning, its networks and precisions. PPO itself is in `algorithms/test_ppo.py`."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from diy.algorithm.agent import FEW_ROWS, Agent
from diy.config import Config
from diy.feature.kernels import to_bfloat16
from realm.chunk import ChunkBuilder
from realm.contract import Array, Chunk, Prediction, Version
from tests.corridor import ACTIONS, STATES, Corridor, T, Training, context, copied, spec

SPEC = spec("int16")
TINY = Config(
    hidden=16,
    chunk_length=T,
    minibatch_size=64,
    precision="fp32",
    lr_start=3e-3,
    lr_end=1e-3,
    gamma_start=0.9,
    gamma_end=0.9,
    advantage="gae",
    value_source="actor",
)


def bfloat16(values: Array) -> Array:
    """As the small features are: i16."""
    out = np.empty(values.shape, np.int16)
    to_bfloat16(values.astype(np.float32), out)
    return out


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def make_agent(config: Config = TINY, seed: int = 3) -> Agent:
    return Agent(SPEC, config, "cpu", seed)


def play(agent: Agent, num_envs: int = 8) -> Iterator[Chunk]:
    return Training(agent).play(bfloat16, num_envs)


def learn(agent: Agent, chunk: Chunk) -> dict[str, float]:
    """The first update."""
    return Training(agent).learn(chunk)


def recorded(count: int, num_envs: int = 8) -> list[Chunk]:
    stream = play(make_agent(seed=9), num_envs)
    return [copied(next(stream)) for _ in range(count)]


def test_illegal_actions_are_never_chosen() -> None:
    agent, rng = make_agent(), np.random.default_rng(0)
    with torch.no_grad():  # strong preferences, so that a leak would show
        agent.model.actor_head.weight.normal_(0, 30)
    for explore in (0.0, 1.0):
        for _ in range(50):
            obs = {
                "features": bfloat16(rng.normal(size=(64, STATES))),
                "legal": rng.random((64, ACTIONS)) < 0.3,
            }
            obs["legal"][np.arange(64), rng.integers(ACTIONS, size=64)] = True
            action, extra = agent.predict(obs, context(64, explore))
            assert obs["legal"][np.arange(64), action].all()
            assert np.isfinite(extra["log_prob"]).all()
            assert (extra["log_prob"] <= 0).all()


VTRACE = {"advantage": "vtrace", "value_source": "learner"}


def test_the_heads_on_a_shared_trunk_answer_alone_as_together() -> None:
    agent, separate = make_agent(dataclasses.replace(TINY, shared_trunk=True)), make_agent()
    flat = {name: torch.from_numpy(x).flatten(0, 1) for name, x in recorded(1)[0].obs.items()}
    calls = []
    agent.model.body.register_forward_hook(lambda *_: calls.append(1))
    logits, value = agent.model(flat)
    assert len(calls) == 1
    assert torch.equal(logits, agent.model.actor(flat))
    assert torch.equal(value, agent.model.critic(flat))

    def size(model: torch.nn.Module) -> int:
        return sum(x.numel() for x in model.parameters())

    assert size(separate.model) - size(agent.model) == size(agent.model.body)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"advantage": "td"}, "diy.advantage is 'td', it must be one of 'gae', 'vtrace', 'delta', 'returns'"),
        (
            {"advantage": "vtrace", "value_source": "actor"},
            "diy.value_source is 'actor', it must be 'learner' if advantage is 'vtrace'",
        ),
        ({**VTRACE, "decoupled": True}, "diy.decoupled is True, it must be false if advantage is 'vtrace'"),
        (
            {"features": "reference", "shared_trunk": True},
            "diy.shared_trunk is True, it must be false unless features is 'small'",
        ),
    ],
)
def test_settings_that_do_not_go_together_are_refused(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=f"^{sentence}$"):
        Config(**fields)


# ---- learning ----


@pytest.mark.parametrize("fields", [
    {}, {"decoupled": True}, {"precision": "bf16"}, {"value_clip": 0.2}, VTRACE, {"shared_trunk": True},
    {**VTRACE, "shared_trunk": True},
], ids=str)  # fmt: skip
def test_it_learns_the_corridor(fields: dict[str, Any]) -> None:
    agent = make_agent(dataclasses.replace(TINY, **fields))
    training, lengths = Training(agent), []
    stream = training.play(bfloat16)
    for _ in range(60):
        chunk = next(stream)
        lengths.append(chunk.valid.sum() / max(1, chunk.terminated.sum()))
        metrics = training.learn(chunk)
    assert np.mean(lengths[:5]) > 10
    assert np.mean(lengths[-5:]) < 5  # the best is 4
    assert metrics["explained_variance"] > 0.5
    assert metrics["skipped"] == 0


def test_first_weights_depend_on_the_seed_alone() -> None:
    torch.manual_seed(1)
    one = make_agent(seed=5)
    torch.manual_seed(2)
    two, other = make_agent(seed=5), make_agent(seed=6)
    assert torch.equal(one.model.actor_head.weight, two.model.actor_head.weight)
    assert not torch.equal(one.model.actor_head.weight, other.model.actor_head.weight)


# ---- the reference network ----


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_reference_network_plays_and_learns(precision: str) -> None:
    from diy.feature.definition import make_envs
    from diy.feature.definition import spec as spec_of

    config = Config(
        features="reference",
        reward="reference",
        chunk_length=4,
        epochs=1,
        minibatch_size=8,
        precision=precision,
    )
    envs = make_envs(4, 1, config, {"treasure_num": 9})
    agent = Agent(spec_of(envs, config), config, "cpu", 1)
    obs, _ = envs.reset()
    chunks = ChunkBuilder(spec_of(envs, config), obs)
    while not chunks.full:
        action, extra = agent.predict(obs, context(4))
        obs, reward, terminated, truncated, _ = envs.step(action)
        chunks.step(Prediction(action, extra, Version(1, 0)), reward, terminated, truncated, obs)
    metrics = learn(agent, chunks.take())
    assert metrics["skipped"] == 0
    assert np.log(8) - 0.01 < metrics["entropy"] < np.log(16) + 0.01  # nearly uniform, some rows without a flash


@pytest.mark.parametrize("fields", [{}, {"shared_trunk": True}])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_it_acts_with_the_weights_that_were_learned_or_loaded(precision: str, fields: dict[str, Any]) -> None:
    config = dataclasses.replace(TINY, precision=precision, **fields)
    agent, other = make_agent(config), make_agent(config, seed=7)
    chunk = recorded(3)[2]
    obs = {name: array[:, 0] for name, array in chunk.obs.items()}
    values = []
    for _ in range(3):
        learn(agent, chunk)
        other.model.load_state_dict(agent.model.state_dict())
        truth = agent.model({name: torch.from_numpy(array) for name, array in obs.items()})[1].detach().numpy()
        for one in (agent, other):
            np.testing.assert_array_equal(one.predict(obs, context(len(truth)))[1]["value"], truth)
        values.append(truth)
    assert (values[0] != values[1]).any()


def test_values_are_not_asked_for_where_the_learner_computes_them() -> None:
    agent = make_agent(dataclasses.replace(TINY, value_source="learner"))
    assert set(agent.predict(Corridor(4, bfloat16).obs(), context(4))[1]) == {"log_prob"}


@pytest.mark.slow
def test_nobody_needs_the_compiler_of_torch() -> None:
    """Its import takes a second; `torch.optim.Adam` brings it."""
    code = """
import dataclasses, sys
import numpy as np
from tests.diy.test_agent import SPEC, STATES, ACTIONS, TINY, Agent, context, learn, recorded
from realm.learn.checkpoint import load_bytes, to_bytes

for precision in ("fp32", "bf16"):
    agent = Agent(SPEC, dataclasses.replace(TINY, precision=precision), "cpu", 1)
    load_bytes(agent.model, to_bytes(agent.model))
    obs = {"features": np.zeros((4, STATES), np.int16), "legal": np.ones((4, ACTIONS), bool)}
    agent.predict(obs, context(4))
    learn(agent, recorded(3)[2])
    agent.load_model(agent.save_model())
print("torch._dynamo" in sys.modules)
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split()) == (0, ["False"]), done.stderr


def test_a_few_rows_are_predicted_on_one_thread_and_many_on_all() -> None:
    agent, used = make_agent(), []
    agent.player.model().actor_head.register_forward_pre_hook(lambda *_: used.append(torch.get_num_threads()))
    torch.set_num_threads(2)
    for rows in (1, FEW_ROWS, FEW_ROWS + 1):
        obs = {"features": bfloat16(np.zeros((rows, STATES))), "legal": np.ones((rows, ACTIONS), np.bool_)}
        agent.predict(obs, context(rows))
        assert torch.get_num_threads() == 2
    assert used == [1, 1, 2]
