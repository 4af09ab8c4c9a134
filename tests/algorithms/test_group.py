"""Several learners that train as one: after some updates they have the weights that one learner has, and its metrics.

Four processes make the updates of every case, as four ranks and as two. In float64 the only difference that is left is
the order in which numbers are added.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import distributed

from realm.algorithms.group import ALONE, Group, Ranks
from realm.contract import (
    ActionSpec,
    Arrays,
    Chunk,
    Field,
    Fields,
    SampleInfo,
    Spec,
    Version,
    arrays_to_chunk,
    chunk_to_arrays,
)
from realm.zoo.ppo.algorithm.agent import Agent
from realm.zoo.ppo.config import Config
from tests.corridor import complete

B, T = 8, 6  # chunks of a batch, steps of each
PATIENCE_S = 600.0
DISCRETE, CONTINUOUS = ActionSpec(n=4), ActionSpec(low=(-1.0, 0.0), high=(1.0, 4.0))
FIELDS: Fields = {"a": Field((3,), "float64"), "legal": Field((4,), "bool")}
SMALL = Config(
    chunk_length=T, hidden=8, minibatch_size=9, epochs=3, entropy_start=0.02, log_std=-0.3, total_env_steps=400
)
PLAIN = {"advantage": "gae", "lam": 0.9}
CASES: dict[str, dict[str, Any]] = {
    "gae": PLAIN,
    "vtrace": {},
    "decoupled": {**PLAIN, "decoupled": True},
    "shared trunk": {"shared_trunk": True},
    "continuous": {**PLAIN, "continuous": True},
    "continuous shared": {"continuous": True, "shared_trunk": True, "value_clip": 0.1},
    "moments": {**PLAIN, "continuous": True, "normalise_obs": True, "normalise_returns": True},
    "minibatches": {**PLAIN, "normalise_over": "minibatch", "minibatch_size": 5, "normalise_advantage": "std"},
    "few rows": {**PLAIN, "minibatch_size": 2, "minibatches": "drawn", "epochs": 1},
    "each pass": {"estimate_each_pass": True, "normalise_over": "minibatch"},
    "kl": {**PLAIN, "kl_stop": 0.1, "kl_target": 1e-3, "epochs": 6},
    "memory": {"memory": "gru", "continuous": True, "normalise_obs": True, "epochs": 2},
    "frames": {"frames": 3},
    "nan": {**PLAIN, "nan": True},
    "nan of a minibatch": {**PLAIN, "nan": True, "normalise_advantage": "none", "minibatch_size": 5},
    "float32": PLAIN,
}


def agent_of(case: dict[str, Any], device: str = "cpu") -> tuple[Agent, Spec]:
    own = {name: value for name, value in case.items() if name not in ("nan", "continuous")}
    config = dataclasses.replace(SMALL, **own)
    state = {"memory": Field((8,), "float64")} if config.memory == "gru" else {}
    if config.frames > 1:
        state = {"a": Field((config.frames - 1, 3), "float64")}
    action = CONTINUOUS if "continuous" in case else DISCRETE
    fields = FIELDS if action is DISCRETE else {"a": FIELDS["a"]}
    extra = {"log_prob": Field((), "float64")} | ({"drawn": Field((2,), "float64")} if action is CONTINUOUS else {})
    spec = Spec(fields, action, extra, T, state=state)
    agent = Agent(spec, config, device, 1)
    for part in agent.ppo.parts:
        part.adam._fused = not in_float64()  # torch's fused kernel wants the divisor as float32
    assert not (agent.ppo.nets and in_float64())  # gradients by hand are in float32
    for parameter in agent.model.parameters():  # far from where all actions are equally likely
        noise = 0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2))
        parameter.data += noise.to(device)
    return agent, spec


def chunk_of(spec: Spec, number: int, nan: bool) -> Chunk:
    """Rows that are not valid everywhere; the first ranks have many, and the last quarter of the chunks has none."""
    draw = np.random.default_rng(number)

    def some(shape: tuple[int, ...], dtype: str) -> Any:
        return draw.random((B, *shape)) < 0.3 if dtype == "bool" else draw.normal(size=(B, *shape))

    items: Arrays = {name: some(one.shape, one.dtype) for name, one in spec.sample_fields.items()}
    items["valid"] = draw.random((B, T)) < np.repeat([0.9, 0.5, 0.2, 0.0], B // 4)[:, None]
    items["extra.log_prob"] = -1.5 + 0.3 * draw.normal(size=(B, T))
    if spec.action.n:
        items["action"] = draw.integers(4, size=(B, T))
        np.put_along_axis(items["obs.legal"][:, :-1], items["action"][..., None], True, -1)
        items["obs.legal"][:, -1, 0] = True
    if nan:
        row = np.argwhere(items["valid"])[-1]  # of the last rank that has any
        items["reward"][tuple(row)] = np.nan
    if not in_float64():
        items = {name: x.astype(np.float32) if x.dtype == np.float64 else x for name, x in items.items()}
    return arrays_to_chunk(items)


def part_of(chunk: Chunk, group: Group) -> Chunk:
    own = slice(group.rank * B // group.size, (group.rank + 1) * B // group.size)
    return arrays_to_chunk({name: array[own] for name, array in chunk_to_arrays(chunk).items()})


def in_float64() -> bool:
    return torch.get_default_dtype() == torch.float64


@contextmanager
def numbers_of(dtype: torch.dtype) -> Iterator[None]:
    """Have every computation of PPO in this precision."""
    to_float32 = torch.Tensor.float
    torch.set_default_dtype(dtype)
    torch.Tensor.float = lambda x: x.to(dtype)  # type: ignore[method-assign]
    yield
    torch.Tensor.float = to_float32  # type: ignore[method-assign]
    torch.set_default_dtype(torch.float32)


def trained(name: str, group: Group) -> Any:
    """Weights, state and metrics after some updates of a case, as this rank sees them."""
    if not in_float64() and name != "float32":
        with numbers_of(torch.float64):
            return trained(name, group)
    agent, spec = agent_of(CASES[name])
    assert agent.ppo.nets or in_float64()
    agent.join(group)
    metrics = []
    for update in range(3 if in_float64() else 10):
        chunk = chunk_of(spec, update, update == 1 and "nan" in CASES[name])
        steps = int(chunk.valid.sum())
        part = part_of(chunk, group)
        known = np.zeros(len(part.worker), np.int64)
        info = SampleInfo(known, known, known, steps, B, (update + 1) * steps, Version(1, update), stale=True)
        metrics.append(complete(agent.learn(part, info))[0])
        assert not isinstance(group, Ranks) or not group.differs(agent.model.state_dict().values())
    return {"weights": agent.model.state_dict(), "state": agent.save_model(), "metrics": metrics}


def work(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    for size in (4, 2):
        if rank < size:
            group = Ranks(rank, size, folder / f"C# or what? {size}", "cpu", PATIENCE_S)
            torch.save({name: trained(name, group) for name in CASES}, folder / f"{size}-{rank}")
            distributed.destroy_process_group()
    if rank == 0:
        torch.save({name: trained(name, ALONE) for name in CASES}, folder / "alone")


def run(target: Callable[[int, Path], None], folder: Path, size: int) -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    processes = [context.Process(target=target, args=(rank, folder)) for rank in range(size)]
    for one in processes:
        one.start()
    for one in processes:
        one.join(PATIENCE_S)
        one.kill()
    assert [one.exitcode for one in processes] == [0] * size


def compared(one: Any, other: Any, close: Callable[[Any, Any], None], place: str = "") -> None:
    if isinstance(one, dict | list | tuple):
        keys = one.keys() if isinstance(one, dict) else range(len(one))
        assert len(one) == len(other)
        for key in keys:
            compared(one[key], other[key], close, f"{place}.{key}")
    else:
        try:
            close(one, other)
        except AssertionError as error:
            raise AssertionError(f"{place}: {error}") from error


def to_the_bit(one: Any, other: Any) -> None:
    np.testing.assert_array_equal(one, other)


def to_1e_12(one: Any, other: Any) -> None:
    np.testing.assert_allclose(np.asarray(other, np.float64), np.asarray(one, np.float64), rtol=1e-12, atol=1e-12)


def to_1e_5(one: Any, other: Any) -> None:
    """Of the largest number of each tensor."""
    one, other = np.asarray(one, np.float64), np.asarray(other, np.float64)
    assert np.abs(one - other).max() <= 1e-5 * np.abs(one).max()


@pytest.mark.slow
def test_ranks_make_the_updates_of_one_learner(tmp_path: Path) -> None:
    """All cases in one test: what takes the time is to start the processes."""
    run(work, tmp_path, 4)
    alone, *others = (torch.load(tmp_path / name) for name in ("alone", "2-0", "2-1", "4-0", "4-1", "4-2", "4-3"))
    for name in CASES:
        check(name, alone[name], [rank[name] for rank in others[:2]])
        check(name, alone[name], [rank[name] for rank in others[2:]])


def check(name: str, alone: Any, ranks: list[Any]) -> None:
    assert alone["metrics"][0]["skipped"] == 0, name
    assert (alone["metrics"][1]["skipped"] > 0) == name.startswith("nan"), name
    if name == "kl":
        assert float(alone["state"]["optimizers"][0]["state"][0]["step"]) < 3 * 6 * 2  # it did stop
        assert alone["state"]["lr_scale"] != 1.0
    for other in ranks[1:]:
        compared(ranks[0], other, to_the_bit, name)
    if name == "float32":
        compared(alone["weights"], ranks[0]["weights"], to_1e_5, name)
    else:
        compared(alone, ranks[0], to_1e_12, name)
