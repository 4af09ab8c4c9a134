"""A memory made of attention: a gated transformer (Parisotto et al. 2020) over the last steps of an episode.

Trained by `RecurrentPPO` as `GRUNetwork` is. What it remembers of a step are the keys and values of each layer, so a
step that acts computes those of its own observation alone.
Axes: k sequences of K steps, M steps of the memory, S = M + K places that a step may look at.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from realm.algorithms.batch import STATE
from realm.algorithms.networks import Encoder, Obs, deviations_of
from realm.algorithms.normalise import add_moments
from realm.algorithms.recurrent import MemoryNetwork
from realm.algorithms.settings import NetworkSettings
from realm.algorithms.windows import begins
from realm.contract import ActionSpec, Fields


@dataclass(frozen=True)
class Shape:
    """Of a transformer. detached: no gradient passes through keys and values, those of a step's own row included."""

    width: int
    steps: int  # M
    layers: int = 1
    heads: int = 4
    detached: bool = False


class AttentionNetwork(MemoryNetwork):
    """Features, a transformer over them and those before, and heads. The memory: `rows` f32 [layers, M, 2 width], the
    newest last, of which the last `age` are of this episode."""

    def __init__(self, encoder: nn.Module, shape: Shape, action: ActionSpec, end: Sequence[nn.Module]) -> None:
        """encoder: from observations to features f32 [n, width]. end: of the policy's head."""
        super().__init__(encoder, shape.width, action, end)
        self.shape = shape
        self.layers = nn.ModuleList(_Layer(shape) for _ in range(shape.layers))

    def remembered(self, features: Tensor, obs: Obs) -> tuple[Tensor, Obs]:
        before, age, x = obs[STATE + "rows"], obs[STATE + "age"], features
        allowed, back = places(obs["first"], age, self.shape.steps)
        new = []
        for number, layer in enumerate(self.layers):
            x, rows = layer(x, before[:, number], allowed, back)
            new.append(rows)
        if features.shape[1] > 1:  # a batch has the memory of its first row, and needs no later one
            return x, {}
        after = torch.cat((before[:, :, 1:], torch.stack(new, 1)), 2)
        age = (torch.where(obs["first"][:, 0], 0, age) + 1).clamp(max=self.shape.steps)
        return x, {STATE + "rows": after[:, None], STATE + "age": age[:, None]}


def attention_network(fields: Fields, action: ActionSpec, settings: NetworkSettings) -> AttentionNetwork:
    encoder = Encoder(fields)
    features = nn.Sequential(encoder, nn.Linear(encoder.features, settings.hidden), nn.Tanh())
    shape = Shape(settings.hidden, settings.memory_steps, settings.memory_layers)
    network = AttentionNetwork(features, shape, action, deviations_of(action, settings))
    add_moments(network, fields, settings)
    return network


def places(first: Tensor, age: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """Which places each step may look at, bool [k, K, S], and how far back these are, i64 [K, S]. Its own is one of
    them, so no row is masked wholly. first: bool [k, K]; age: i64 [k]"""
    step = torch.arange(first.shape[1], device=first.device)
    place = torch.cat((torch.arange(-steps, 0, device=first.device), step))
    back = step[:, None] - place
    return (back >= 0) & (back <= steps) & (place >= begins(first, age[:, None])[:, :, None]), back


class _Layer(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width, self.shape = shape.width, shape
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.query, self.key_value = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)
        # what a step back is worth to each head
        self.distance = nn.Parameter(torch.zeros(shape.heads, shape.steps + 1))
        self.dense = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))
        self.gates = nn.ModuleList(_Gate(width) for _ in range(2))

    def forward(self, x: Tensor, memory: Tensor, allowed: Tensor, back: Tensor) -> tuple[Tensor, Tensor]:
        """x: f32 [k, K, width]; memory: f32 [k, M, 2 width]. Returns x, and what to remember, f32 [k, K, 2 width]."""
        seen = self.norms[0](x)
        rows = self.key_value(seen.detach() if self.shape.detached else seen)
        key, value = torch.cat((memory, rows), 1).chunk(2, -1)
        worth = self.distance[:, back.clamp(0, self.shape.steps)]
        mask = torch.where(allowed[:, None], worth, -math.inf)
        query, key, value = (
            y.unflatten(-1, (self.shape.heads, -1)).transpose(1, 2) for y in (self.query(seen), key, value)
        )
        found = nn.functional.scaled_dot_product_attention(query, key, value, mask)
        x = self.gates[0](x, self.out(found.transpose(1, 2).flatten(2)).relu())
        return self.gates[1](x, self.dense(self.norms[1](x)).relu()), rows


class _Gate(nn.Module):
    """A GRU cell in place of a sum; at first it lets pass what was there (section 3.2, "Gated-Recurrent-Unit-type")."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.of_new, self.of_old = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, 2 * width, bias=False)
        self.of_reset = nn.Linear(width, width, bias=False)
        self.keep = nn.Parameter(torch.full((width,), 2.0))

    def forward(self, old: Tensor, new: Tensor) -> Tensor:
        reset, update, candidate = self.of_new(new).chunk(3, -1)
        old_reset, old_update = self.of_old(old).chunk(2, -1)
        share = torch.sigmoid(update + old_update - self.keep)
        candidate = torch.tanh(candidate + self.of_reset(torch.sigmoid(reset + old_reset) * old))
        return (1 - share) * old + share * candidate
