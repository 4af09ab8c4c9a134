"""Distributions of PPO's actions against torch.distributions, and that what acts is what is learned."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.distributions import Categorical as TorchCategorical
from torch.distributions import Independent, Normal

from realm.algorithms.batch import Batch
from realm.algorithms.distributions import Categorical, Distribution, Gaussian, distribution_of
from realm.algorithms.losses import Outputs, ppo_losses
from realm.algorithms.settings import Settings
from realm.contract import ActionSpec, Array

LOW, HIGH = (-2.0, 0.0, -1.0), (2.0, 10.0, 1.0)
GAUSSIAN = Gaussian(ActionSpec(low=LOW, high=HIGH))


def outputs_of(rows: int, seed: int = 0) -> torch.Tensor:
    """Means and logs of standard deviations, f32 [rows, 6]."""
    return torch.randn(rows, 6, generator=torch.Generator().manual_seed(seed)) * 0.7


def acted(distribution: Distribution, outputs: torch.Tensor, explore: float | Array) -> tuple[Array, Array, Any]:
    """Actions, log-probabilities and what was drawn."""
    explores = np.broadcast_to(np.asarray(explore, np.float32), len(outputs))
    action, extra = distribution.act(outputs, {}, explores, torch.Generator().manual_seed(1))
    drawn = extra.get("drawn", action)
    return action, extra["log_prob"], torch.from_numpy(drawn)


def truth(outputs: torch.Tensor) -> Independent:
    mean, log_std = outputs.chunk(2, -1)
    return Independent(Normal(mean, log_std.exp()), 1)


@pytest.mark.parametrize("explore", [0.0, 0.3, 1.0])
def test_continuous_actions_are_those_of_torchs_normal_distribution(explore: float) -> None:
    outputs = outputs_of(500)
    _, log_prob, drawn = acted(GAUSSIAN, outputs, explore)
    np.testing.assert_allclose(log_prob, truth(outputs).log_prob(drawn), atol=1e-5)
    again, entropy = GAUSSIAN.log_prob_and_entropy(outputs, {}, drawn)
    assert torch.allclose(again, truth(outputs).log_prob(drawn), atol=1e-5)
    assert torch.allclose(entropy, truth(outputs).entropy(), atol=1e-5)


def test_gradients_are_those_of_torchs_normal_distribution() -> None:
    ours, theirs = outputs_of(100).requires_grad_(), outputs_of(100).requires_grad_()
    drawn = acted(GAUSSIAN, outputs_of(100), 1.0)[2]
    log_prob, entropy = GAUSSIAN.log_prob_and_entropy(ours, {}, drawn)
    (log_prob.sum() + 0.3 * entropy.sum()).backward()  # type: ignore[no-untyped-call]
    (truth(theirs).log_prob(drawn).sum() + 0.3 * truth(theirs).entropy().sum()).backward()
    assert ours.grad is not None
    assert theirs.grad is not None
    assert torch.allclose(ours.grad, theirs.grad, atol=1e-4)


def test_samples_have_the_means_and_deviations_of_the_outputs() -> None:
    outputs = outputs_of(1).expand(100_000, -1)
    drawn = acted(GAUSSIAN, outputs, 1.0)[2]
    mean, log_std = outputs[0].chunk(2)
    assert torch.allclose(drawn.mean(0), mean, atol=0.02)
    assert torch.allclose(drawn.std(0), log_std.exp(), rtol=0.02)
    halved = acted(GAUSSIAN, outputs, 0.5)[2]
    assert torch.allclose(halved.std(0), log_std.exp() / 2, rtol=0.02)


def test_the_environment_gets_actions_within_its_bounds() -> None:
    outputs = outputs_of(2000)
    action, _, drawn = acted(GAUSSIAN, outputs, 1.0)
    assert ((np.array(LOW) <= action) & (action <= np.array(HIGH))).all()
    middle, half = (np.array(HIGH) + LOW) / 2, (np.array(HIGH) - LOW) / 2
    np.testing.assert_allclose(action, middle + half * drawn.clamp(-1, 1).numpy(), rtol=1e-5, atol=1e-5)
    assert (drawn.abs() > 1).any()  # what is learned from is what was drawn, not what it was cut to


@pytest.mark.parametrize("action", [ActionSpec(n=4), ActionSpec(nvec=(3, 1)), ActionSpec(low=LOW, high=HIGH)])
def test_the_greedy_action_is_what_acts_without_exploration(action: ActionSpec) -> None:
    distribution = distribution_of(action)
    outputs = outputs_of(300) if action.low else outputs_of(300)[:, :4]
    np.testing.assert_array_equal(distribution.greedy(outputs, {})["action"], acted(distribution, outputs, 0.0)[0])
    mixed = np.arange(300) % 2
    assert (acted(distribution, outputs, mixed)[0][::2] == acted(distribution, outputs, 0.0)[0][::2]).all()


def test_discrete_actions_are_those_of_torchs_categorical_distribution() -> None:
    logits = outputs_of(400)[:, :4]
    legal = torch.rand(400, 4, generator=torch.Generator().manual_seed(2)) < 0.5
    legal[:, 1] = True
    explore = np.ones(400, np.float32)
    action, extra = Categorical().act(logits, {"legal": legal}, explore, torch.Generator().manual_seed(1))
    drawn = torch.from_numpy(action)
    assert legal.gather(1, drawn[:, None]).all()
    known = TorchCategorical(logits=logits.masked_fill(~legal, -1e9))
    log_prob, entropy = Categorical().log_prob_and_entropy(logits, {"legal": legal}, drawn)
    assert torch.allclose(log_prob, known.log_prob(drawn), atol=1e-5)
    assert torch.allclose(entropy, known.entropy(), atol=1e-5)
    np.testing.assert_allclose(extra["log_prob"], log_prob, atol=1e-5)


@pytest.mark.parametrize("masked", [False, True])
def test_several_numbers_are_drawn_by_themselves(masked: bool) -> None:
    """Log-probability and entropy are sums over torch's distribution of each number."""
    counts, draw = (3, 2, 5), torch.Generator().manual_seed(0)
    product, logits = distribution_of(ActionSpec(nvec=counts)), torch.randn(500, sum(counts), generator=draw)
    legal = torch.rand(500, sum(counts), generator=draw) < 0.5
    legal[:, [0, 3, 5]] = True
    legal[:50, :3] = False  # the first number has no legal one, so the learner takes all of it as equals, too
    obs = {"legal": legal} if masked else {}
    action, extra = product.act(logits, obs, np.ones(500, np.float32), torch.Generator().manual_seed(1))
    assert (action.shape, action.dtype) == ((500, 3), np.int64)
    drawn = torch.from_numpy(action)
    seen = logits.masked_fill(~legal, -1e9) if masked else logits.clone()
    if masked:
        seen[:50, :3] = 0.0
    each = [TorchCategorical(logits=x) for x in seen.split(counts, 1)]
    log_prob, entropy = product.log_prob_and_entropy(logits, obs, drawn)
    assert torch.allclose(log_prob, sum(one.log_prob(x) for one, x in zip(each, drawn.T, strict=True)), atol=1e-5)
    assert torch.allclose(entropy, sum(one.entropy() for one in each), atol=1e-5)
    np.testing.assert_allclose(extra["log_prob"], log_prob, atol=1e-5)
    if masked:
        pairs = zip(legal[50:].split(counts, 1), drawn[50:].T, strict=True)
        assert all(part.gather(1, x[:, None]).all() for part, x in pairs)
    share = (drawn[:, 1] == 0).float().mean()  # numbers do not follow each other's draws
    assert abs(float(each[1].probs[:, 0].mean() - share)) < 0.07


@pytest.mark.parametrize("action", [ActionSpec(nvec=(2,) * 7), ActionSpec(low=LOW, high=HIGH)])
def test_the_log_probability_of_each_number(action: ActionSpec) -> None:
    """Of buttons and of durations, against a loop over rows and numbers."""
    joint, each = distribution_of(action), distribution_of(action, each=True)
    outputs = torch.randn(50, 14 if action.nvec else 6, generator=torch.Generator().manual_seed(0))
    _, of_all, drawn = acted(joint, outputs, 1.0)
    _, of_each, again = acted(each, outputs, 1.0)
    assert torch.equal(drawn, again)
    numbers = drawn.shape[1]
    known = np.zeros((50, numbers))
    for row in range(50):
        for number in range(numbers):
            if action.nvec:  # a button: its two logits are those of a Bernoulli
                off, on = outputs[row, 2 * number : 2 * number + 2].tolist()
                held = 1 / (1 + np.exp(off - on))
                known[row, number] = np.log(held if drawn[row, number] else 1 - held)
            else:
                mean, log_std = float(outputs[row, number]), float(outputs[row, numbers + number])
                error = (float(drawn[row, number]) - mean) / np.exp(log_std)
                known[row, number] = -(error**2) / 2 - log_std - np.log(2 * np.pi) / 2
    np.testing.assert_allclose(of_each, known, atol=1e-4)
    np.testing.assert_allclose(of_all, known.sum(1), atol=1e-4)
    log_prob, entropy = each.log_prob_and_entropy(outputs, {}, drawn)
    np.testing.assert_allclose(log_prob, known, atol=1e-4)
    assert torch.allclose(entropy, joint.log_prob_and_entropy(outputs, {}, drawn)[1])


def test_a_ratio_of_each_number_is_clipped_by_itself() -> None:
    draw = torch.Generator().manual_seed(0)
    log_ratio, advantage = torch.randn(20, 7, generator=draw) / 3, torch.randn(20, generator=draw)
    none = torch.zeros(20)
    minibatch = Batch({}, None, none, none, none, none, advantage, none)
    policy = ppo_losses(Settings(advantage="gae", ratio="each", clip=0.2))[0]
    known = []
    for row in range(20):
        for number in range(7):
            ratio, gain = float(log_ratio[row, number].exp()), float(advantage[row])
            known.append(-min(ratio * gain, max(0.8, min(1.2, ratio)) * gain))
    loss = policy.function(minibatch, Outputs(proximal_log_ratio=log_ratio))
    assert float(loss) == pytest.approx(np.sum(known) / 20, abs=1e-6)
    both = []
    for shape in ("each", "joint"):  # where no ratio is clipped yet, both have the same gradient
        zero = torch.zeros(20, 7, requires_grad=True)
        ratio = zero if shape == "each" else zero.sum(1)
        of_it = ppo_losses(Settings(advantage="gae", ratio="each") if shape == "each" else Settings())[0]
        of_it.function(minibatch, Outputs(proximal_log_ratio=ratio)).backward()
        both.append(zero.grad)
    torch.testing.assert_close(both[0], both[1])
    with pytest.raises(ValueError, match="ratio is 'each', it must be 'joint'"):
        Settings(ratio="each")
