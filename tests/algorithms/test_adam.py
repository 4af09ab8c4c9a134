"""The project's Adam against torch.optim.Adam."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from realm.algorithms.adam import Adam

EPS = 1e-5
RATES = (1e-2, 3e-3, 1e-3)


def parameters() -> list[nn.Parameter]:
    torch.manual_seed(1)
    return [nn.Parameter(torch.randn(7, 5)), nn.Parameter(torch.randn(5)), nn.Parameter(torch.randn(3, 2))]


def gradients(step: int) -> list[Tensor | None]:
    """The last parameter has none at first, and from the second step on it has."""
    torch.manual_seed(100 + step)
    found = [torch.randn(7, 5), torch.randn(5), torch.randn(3, 2)]
    return [*found[:2], found[2] if step else None]


def descend(adam: Adam | torch.optim.Adam, of: list[nn.Parameter], first: int = 0) -> None:
    """A step for each of RATES, the gradients of which have the numbers from `first` on."""
    for number, lr in enumerate(RATES, first):
        for parameter, gradient in zip(of, gradients(number), strict=True):
            parameter.grad = gradient
        if isinstance(adam, Adam):
            adam.step(lr)
        else:
            adam.param_groups[0]["lr"] = lr
            adam.step()
        adam.zero_grad()
        assert all(one.grad is None for one in of)


def assert_same(one: list[nn.Parameter], other: list[nn.Parameter]) -> None:
    for mine, theirs in zip(one, other, strict=True):
        assert torch.equal(mine, theirs)


def test_it_steps_as_torchs_does() -> None:
    mine, theirs = parameters(), parameters()
    descend(Adam(mine, EPS), mine)
    descend(torch.optim.Adam(theirs, eps=EPS, fused=True), theirs)
    assert_same(mine, theirs)


@pytest.mark.parametrize("fused", [True, False])
def test_it_divides_gradients_as_if_they_had_been_bounded_before(fused: bool) -> None:
    """Against torch's clip_grad_norm_; with the kernel of cpu and cuda, and without, as on other devices."""
    mine, theirs = parameters(), parameters()
    adam, other = Adam(mine, EPS), torch.optim.Adam(theirs, eps=EPS, fused=True)
    adam._fused = fused
    for number, lr in enumerate(RATES):
        for a, b, gradient in zip(mine, theirs, gradients(number), strict=True):
            a.grad, b.grad = (None, None) if gradient is None else (gradient.clone(), gradient.clone())
        norm = adam.grad_norm()
        bound = float(norm) * (0.3 if number != 1 else 2.0)  # longer than the bound, but for one
        torch.testing.assert_close(norm, nn.utils.clip_grad_norm_(theirs, bound))
        adam.step(lr, (norm / bound).clamp(min=1.0))
        other.param_groups[0]["lr"] = lr
        other.step()
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b)
    assert not torch.equal(mine[0], parameters()[0])


@pytest.mark.parametrize("of", [Adam, partial(torch.optim.Adam, fused=True)], ids=["diy", "torch"])
def test_it_goes_on_from_a_state(of: Any) -> None:
    """Of its own, and of torch.optim.Adam, as checkpoints before it hold. The one it comes from goes on by itself."""
    straight, first = parameters(), parameters()
    whole = torch.optim.Adam(straight, eps=EPS, fused=True)
    descend(whole, straight, 1)
    descend(whole, straight, 4)
    before = of(first, eps=EPS)
    descend(before, first, 1)
    second = [nn.Parameter(one.detach().clone()) for one in first]
    after = Adam(second, EPS)
    after.load_state_dict(before.state_dict())
    descend(after, second, 4)
    assert_same(second, straight)
    descend(before, first, 4)
    assert_same(first, straight)


def test_the_state_of_one_that_never_stepped_is_that_of_a_new_one() -> None:
    mine, theirs = parameters(), parameters()
    adam = Adam(mine, EPS)
    adam.load_state_dict(Adam(theirs, EPS).state_dict())
    descend(adam, mine)
    descend(torch.optim.Adam(theirs, eps=EPS, fused=True), theirs)
    assert_same(mine, theirs)


def test_a_state_of_other_parameters_is_refused() -> None:
    one = parameters()
    adam = Adam(one[:2], EPS)
    trained = Adam(one, EPS)
    descend(trained, one)
    with pytest.raises(ValueError, match=r"the state is of 3 parameters, not of 2"):
        adam.load_state_dict(trained.state_dict())
