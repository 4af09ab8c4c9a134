"""A batch of chunks as PPO trains on it: what was estimated of its steps, and how it is cut into minibatches.

`Rows` are valid rows, each alone, for networks without a memory. `Sequences` are whole chunks, for networks that are
unrolled from the memory which the chunk began with. Losses see n rows either way.
Axes: B chunks, T steps, R valid rows of a batch, n rows of a minibatch, k chunks of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from realm.algorithms.group import Group
from realm.algorithms.networks import Obs
from realm.algorithms.settings import Settings
from realm.contract import Array, Chunk

STATE = "state."  # how the names of memories begin among the inputs and outputs of a network
FORWARD_ROWS = 4096  # rows of one forward pass without gradients: enough to be fast, few enough for the cache


@dataclass(frozen=True)
class Batch:
    """The steps of a batch, [B, T, ...] each, or the n rows of a minibatch, [n, ...] each."""

    obs: Obs  # what the network takes: name -> [B, T + 1, ...], with what `Sequences` adds; of rows [n, ...]
    valid: Tensor | None  # bool [B, T]: of other steps only the observation counts; None: these are rows
    raw_action: Tensor  # i64, or f32 [..., A]: actions as the distribution has drawn them
    log_prob: Tensor  # f32, of the policy that acted
    proximal_log_prob: Tensor  # f32, of the policy that the loss clips around: that one, or the one before the update
    value: Tensor  # f32, before the update
    advantage: Tensor  # f32; [..., A] with a ratio of each number of an action, and pay of its own
    target: Tensor  # f32, for the critic

    def of_rows(self, part: Tensor) -> tuple[Tensor, ...]:
        """Everything but `obs` and `valid` at `part`: a mask, or indices."""
        every = (self.raw_action, self.log_prob, self.proximal_log_prob, self.value, self.advantage, self.target)
        return tuple(x[part] if part.dtype == torch.bool else x.index_select(0, part) for x in every)

    def rows(self, output: Tensor) -> Tensor:
        """What the network gave for `obs`, or one of `obs`, of the n valid rows alone: [n, ...]."""
        return output if self.valid is None else output[:, :-1][self.valid]


class Rows:
    """The R valid rows of a batch, each alone; the base of what else a batch may be cut into."""

    def __init__(self, batch: Batch) -> None:
        assert batch.valid is not None
        self.batch = batch
        chunk, step = batch.valid.nonzero(as_tuple=True)
        self._index = chunk * (batch.valid.shape[1] + 1) + step  # where each row's observation is
        self._obs = {name: x.flatten(0, 1) for name, x in batch.obs.items()}
        self._rows = Batch({}, None, *batch.of_rows(batch.valid))
        self.count = len(step)

    def at(self, part: Tensor) -> Batch:
        """A minibatch: those of i64 [...], out of `count`."""
        index = self._index[part]
        obs = {name: x.index_select(0, index) for name, x in self._obs.items()}
        return Batch(obs, None, *self._rows.of_rows(part))

    @staticmethod
    def inputs(chunk: Chunk, device: torch.device) -> Obs:
        """What the network takes of B chunks, each with a leading B."""
        return {name: tensor(array, device) for name, array in chunk.obs.items()}

    @staticmethod
    @torch.no_grad()  # it holds for one thread only
    def forward(obs: Obs, net: Callable[[Obs], Tensor]) -> Tensor:
        """Apply `net` to obs name -> [B, K, ...] in parts of FORWARD_ROWS; returns [B, K, ...]."""
        parts = zip(*(torch.split(x.flatten(0, 1), FORWARD_ROWS) for x in obs.values()), strict=True)
        result = torch.cat([net(dict(zip(obs, part, strict=True))) for part in parts])
        return result.view(*next(iter(obs.values())).shape[:2], *result.shape[1:])


class Sequences(Rows):
    """The B chunks of a batch. Besides the observations the network gets `first`, bool [k, T + 1], where it forgets,
    and for each memory of `Spec.state` `state.<name>`, [k, ...], what it was before row 0."""

    def __init__(self, batch: Batch) -> None:
        self.batch, self.count = batch, len(batch.log_prob)

    def at(self, part: Tensor) -> Batch:
        chunks = Batch({name: x[part] for name, x in self.batch.obs.items()}, None, *self.batch.of_rows(part))
        assert self.batch.valid is not None
        valid = self.batch.valid[part]
        return Batch(chunks.obs, valid, *chunks.of_rows(valid))

    @staticmethod
    def inputs(chunk: Chunk, device: torch.device) -> Obs:
        memory = {STATE + name: array for name, array in chunk.state.items()}
        return {name: tensor(array, device) for name, array in {**chunk.obs, "first": chunk.first, **memory}.items()}

    @staticmethod
    @torch.no_grad()
    def forward(obs: Obs, net: Callable[[Obs], Tensor]) -> Tensor:
        return net(obs)


def of_a_pass(
    count: int, rows: int, settings: Settings, generator: torch.Generator, device: torch.device
) -> tuple[Tensor, ...]:
    """What the minibatches of a pass hold: i64 [...] each, out of `count`. rows: of all of them, valid ones"""
    if not rows:
        return ()
    order = torch.randperm(count, generator=generator)
    if settings.minibatches == "drawn":
        order = torch.randint(count, (count,), generator=generator)
    return order.to(device).tensor_split(min(count, max(1, round(rows / settings.minibatch_size))))


def tensor(array: Array, device: torch.device) -> Tensor:
    """The array on the device. On a CPU it is not copied, even if it is read-only: nobody writes into it."""
    return torch.from_numpy(np.require(array, requirements="A")).to(device)


def normalised(advantage: Tensor, settings: Settings, group: Group) -> Tensor:
    """advantage: of this rank's rows of those that are normalised; see `Settings.normalise_advantage`."""
    if settings.normalise_advantage == "none" or (group.size == 1 and len(advantage) < 2):
        return advantage
    if group.size == 1:  # torch rounds the root of a variance otherwise
        mean, deviation = advantage.mean(), advantage.std()
    else:
        count, mean, variance = group.moments(advantage.flatten())
        if count < 2:
            return advantage
        deviation = (variance * (count / (count - 1))).sqrt()
    return (advantage - mean if settings.normalise_advantage == "mean_std" else advantage) / (deviation + 1e-8)
