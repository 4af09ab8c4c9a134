"""Small networks that the algorithms share, and what their targets need."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TypeVar, cast

import torch
from torch import Tensor, nn

Module = TypeVar("Module")


def mlp(sizes: Sequence[int], activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """Linear layers of these sizes, inputs first, with the activation between them. As torch makes them."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), activation()]
    return nn.Sequential(*layers[:-1])


class Several(nn.Module):
    """`count` MLPs with ReLU and one output, of the same sizes: the critics of an algorithm that compares them."""

    def __init__(self, count: int, sizes: Sequence[int]) -> None:
        super().__init__()
        self.nets = nn.ModuleList(mlp((*sizes, 1)) for _ in range(count))

    def forward(self, x: Tensor, count: int) -> Tensor:
        """The values of the first `count` of them; x: f32 [n, inputs]. Returns f32 [count, n]."""
        # one after the other: on a CPU a batch of matrices is slower, by a fifth with gradients
        return torch.stack([net(x).squeeze(-1) for net in list(self.nets)[:count]])


def frozen_copy(network: Module) -> Module:
    """A copy that gets no gradients: the target of a network."""
    target = copy.deepcopy(network)
    cast(nn.Module, target).requires_grad_(False)
    return target


@torch.no_grad()
def follow(targets: Iterable[Tensor], sources: Iterable[Tensor], tau: float) -> None:
    """Polyak averaging: target <- target + tau (source - target)."""
    torch._foreach_lerp_(list(targets), list(sources), tau)
