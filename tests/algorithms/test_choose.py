"""Choosing actions: the kernel against a slow literal version, and against the policy that it draws from."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from realm import returns
from realm.algorithms.choose import choose
from realm.contract import Array

ACTIONS = 7


def chosen(logits: Array, legal: Array, explore: Array, uniform: Array) -> tuple[NDArray[np.int64], Array]:
    action, log_prob = np.full(len(logits), -1), np.full(len(logits), np.nan, np.float32)
    choose(logits, legal, explore.astype(np.float32), uniform.astype(np.float32), action, log_prob)
    return action, log_prob


def literal(logits: Array, legal: Array, explore: float, uniform: float) -> int:
    """Of one row: the first legal action at which the sum of probabilities exceeds `uniform`."""
    allowed = [a for a in range(len(logits)) if legal[a]]
    if explore == 0:
        return max(allowed, key=lambda a: float(logits[a]))
    top = max(float(logits[a]) for a in allowed)
    weight = {a: math.exp((float(logits[a]) - top) / explore) for a in allowed}
    below = 0.0
    for a in allowed:
        below += weight[a] / sum(weight.values())
        if below > uniform:
            return a
    return allowed[-1]


def random_rows(rows: int, seed: int, scale: float) -> tuple[Array, Array]:
    """Logits f32 and legal bool, [rows, ACTIONS]; in each row one action is legal at least, in some just one."""
    rng = np.random.default_rng(seed)
    legal = rng.random((rows, ACTIONS)) < rng.random((rows, 1))
    legal[np.arange(rows), rng.integers(ACTIONS, size=rows)] = True
    return (scale * rng.normal(size=(rows, ACTIONS))).astype(np.float32), legal


def test_actions_are_the_literal_ones() -> None:
    rng, rows = np.random.default_rng(1), 3000
    for scale in (0.01, 1.0, 30.0):
        logits, legal = random_rows(rows, 2, scale)
        explore = rng.choice([0.0, 1.0, 1.0, 0.3, 0.7], size=rows)
        uniform = np.minimum(rng.random(rows), 1 - 2**-24)
        action, _ = chosen(logits, legal, explore, uniform)
        wanted = [literal(logits[i], legal[i], float(explore[i]), float(uniform[i])) for i in range(rows)]
        # a number may lie so near to the border of two actions that rounding decides
        assert (action != wanted).sum() <= 2
        assert legal[np.arange(rows), action].all()


def test_probabilities_are_those_the_learner_computes() -> None:
    for scale in (0.01, 1.0, 30.0, 1000.0):
        logits, legal = random_rows(500, 3, scale)
        action, log_prob = chosen(logits, legal, np.arange(500) % 2, np.linspace(0, 0.999, 500))
        wanted = returns.masked_log_softmax(torch.from_numpy(logits), torch.from_numpy(legal)).numpy()
        np.testing.assert_allclose(log_prob, wanted[np.arange(500), action], rtol=1e-5, atol=1e-6)


def test_the_greatest_and_the_least_number_draw_legal_actions() -> None:
    for scale in (0.01, 1.0, 30.0):
        logits, legal = random_rows(2000, 4, scale)
        for uniform in (0.0, 1 - 2**-24):
            action, log_prob = chosen(logits, legal, np.ones(2000), np.full(2000, uniform))
            assert legal[np.arange(2000), action].all()
            assert np.isfinite(log_prob).all()


def test_actions_are_drawn_as_often_as_the_policy_says() -> None:
    rows = 100_000
    logits, legal = np.tile(np.arange(ACTIONS, dtype=np.float32) / 2, (rows, 1)), np.ones((rows, ACTIONS), np.bool_)
    legal[:, 5] = False
    for temperature in (1.0, 0.5):
        weight = np.where(legal[0], np.exp(logits[0] / temperature), 0)
        action, _ = chosen(logits, legal, np.full(rows, temperature), np.random.default_rng(5).random(rows))
        np.testing.assert_allclose(np.bincount(action, minlength=ACTIONS) / rows, weight / weight.sum(), atol=0.006)


def test_a_row_without_a_legal_action_gets_the_first_of_equals() -> None:
    """The observation of a reset row is asked about, too, and there an episode may be over."""
    logits, legal = np.zeros((2, 3), np.float32), np.array([[False] * 3, [False, True, False]])
    for explore in (0.0, 1.0):
        action, log_prob = np.full(2, 9), np.full(2, 9, np.float32)
        choose(logits, legal, np.full(2, explore, np.float32), np.full(2, 0.5, np.float32), action, log_prob)
        assert (action.tolist(), log_prob.tolist()) == ([0, 1], [pytest.approx(-math.log(3)), 0.0])


def test_what_is_not_finite_is_answered_with_what_is_not_finite() -> None:
    logits = np.full((4, ACTIONS), np.nan, np.float32)
    action, log_prob = chosen(logits, np.ones((4, ACTIONS), np.bool_), np.array([0, 1, 0.5, 1]), np.full(4, 0.5))
    assert ((action >= 0) & (action < ACTIONS)).all()
    assert np.isnan(log_prob).all()
