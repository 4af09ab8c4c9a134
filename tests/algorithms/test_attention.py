"""The transformer's memory: what a step may see, what trains it, and that a chunk at once is its steps one by one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from realm.algorithms.attention import AttentionNetwork, Shape, places
from realm.algorithms.batch import STATE
from realm.contract import ActionSpec

STEPS, LENGTH, LAYERS, WIDTH = 3, 6, 2, 8


class Raw(torch.nn.Module):
    def forward(self, obs: dict[str, torch.Tensor]) -> torch.Tensor:
        return obs["state"]


def network(detached: bool = False) -> AttentionNetwork:
    torch.manual_seed(0)
    made = AttentionNetwork(Raw(), Shape(WIDTH, STEPS, LAYERS, 2, detached), ActionSpec(n=3), ())
    for layer in made.layers:
        torch.nn.init.normal_(layer.distance)
    torch.nn.init.normal_(made.actor_head[0].weight)
    return made


firsts = st.lists(st.booleans(), min_size=LENGTH, max_size=LENGTH)


@settings(max_examples=40, deadline=None)
@given(firsts, st.integers(0, STEPS))
def test_a_step_sees_itself_and_what_its_episode_had_before(first: list[bool], age: int) -> None:
    allowed, back = places(torch.tensor([first]), torch.tensor([age]), STEPS)
    played = [None] * (STEPS - age) + [0] * age  # the number of the episode at each place
    episode = 0
    for step, begins in enumerate(first):
        episode += begins
        played.append(episode)
        wanted = [
            own == episode and step <= place <= step + STEPS
            for place, own in enumerate(played + [None] * (LENGTH - 1 - step))
        ]
        assert allowed[0, step].tolist() == wanted
        assert allowed[0, step, STEPS + step]  # so no row is masked wholly
        assert back[step].tolist() == [STEPS + step - place for place in range(STEPS + LENGTH)]


@settings(max_examples=40, deadline=None)
@given(firsts, st.integers(0, STEPS), st.integers(0, LENGTH - 1))
def test_no_gradient_comes_from_a_masked_step(first: list[bool], age: int, step: int) -> None:
    """With one layer: a step of a second one sees what the steps that it sees have seen."""
    torch.manual_seed(1)
    made = AttentionNetwork(Raw(), Shape(WIDTH, STEPS, 1, 2), ActionSpec(n=3), ())
    x = torch.randn(1, LENGTH, WIDTH, requires_grad=True)
    rows = torch.randn(1, 1, STEPS, 2 * WIDTH, requires_grad=True)
    obs = {"state": x, "first": torch.tensor([first]), STATE + "rows": rows, STATE + "age": torch.tensor([age])}
    made.unrolled(obs)[0][0, step].square().sum().backward()
    assert x.grad is not None
    assert rows.grad is not None
    reached = torch.cat((rows.grad[0, 0].abs().sum(1), x.grad[0].abs().sum(1))) > 0
    assert reached.tolist() == places(obs["first"], obs[STATE + "age"], STEPS)[0][0, step].tolist()


def test_detached_steps_get_no_gradient_from_later_ones() -> None:
    for detached in (False, True):
        x = torch.randn(1, LENGTH, WIDTH, requires_grad=True)
        first, age = torch.zeros(1, LENGTH, dtype=torch.bool), torch.zeros(1, dtype=torch.int64)
        rows = torch.zeros(1, LAYERS, STEPS, 2 * WIDTH)
        obs = {"state": x, "first": first, STATE + "rows": rows, STATE + "age": age}
        network(detached).unrolled(obs)[0][0, -1].square().sum().backward()
        assert x.grad is not None
        assert (x.grad[0, :-1].abs().max() == 0) == detached


@pytest.mark.parametrize("detached", [False, True])
def test_a_chunk_at_once_is_its_steps_one_by_one(detached: bool) -> None:
    """Also over ends of episodes, and from a memory that is full, in part full or empty."""
    made, random = network(detached).eval(), np.random.default_rng(3)
    age, rows = torch.tensor([0, 2, 3]), torch.randn(3, LAYERS, STEPS, 2 * WIDTH)
    x = torch.randn(3, 20, WIDTH)
    first = torch.from_numpy(random.random((3, 20)) < 0.2)
    with torch.no_grad():
        whole, _, _ = made({"state": x, "first": first, STATE + "rows": rows, STATE + "age": age})
        for step in range(20):
            now = {"state": x[:, step, None], "first": first[:, step, None], STATE + "rows": rows, STATE + "age": age}
            one, _, after = made(now)
            assert torch.allclose(one[:, 0], whole[:, step], atol=1e-5)
            rows, age = after[STATE + "rows"][:, 0], after[STATE + "age"][:, 0]
