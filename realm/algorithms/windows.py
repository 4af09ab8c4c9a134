"""Networks that look back: each observation with the frames before it, from frames that are stored once.

The frames before a chunk are its memory: `Spec.state` has the last observations by their names, and `predict` calls
`with_frames`. Where an episode is younger, its first observation stands for what came before.
Axes: B chunks, K = T + 1 rows of each, N environments, n rows of a minibatch.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from realm.algorithms.batch import FORWARD_ROWS, STATE, Batch, Rows, tensor
from realm.algorithms.networks import Obs
from realm.contract import Array, Arrays, Chunk, PredictContext
from realm.jit import jit


class Windows(Rows):
    """The valid rows of a batch, each alone, with the frames before it: name -> [n, frames, ...], the newest last."""

    def __init__(self, batch: Batch) -> None:
        super().__init__(batch)
        self._obs = batch.obs
        self._places = places(batch.obs)

    def at(self, part: Tensor) -> Batch:
        return Batch(windows(self._obs, self._places, self._index[part]), None, *self._rows.of_rows(part))

    @staticmethod
    def inputs(chunk: Chunk, device: torch.device) -> Obs:
        """Observations behind the frames before the chunk, [B, frames - 1 + K, ...], and `first`, bool [B, K]."""
        obs = {name: tensor(array, device) for name, array in {**chunk.obs, "first": chunk.first}.items()}
        return obs | {name: torch.cat((tensor(x, device), obs[name]), 1) for name, x in chunk.state.items()}

    @staticmethod
    @torch.no_grad()
    def forward(obs: Obs, net: Callable[[Obs], Tensor]) -> Tensor:
        found, rows = places(obs), torch.arange(obs["first"].numel(), device=obs["first"].device)
        result = torch.cat([net(windows(obs, found, part)) for part in torch.split(rows, FORWARD_ROWS)])
        return result.view(*obs["first"].shape, *result.shape[1:])


def begins(first: Tensor, before: int | Tensor) -> Tensor:
    """The step where the episode of each step began, i64 [B, K]; below 0 if it began in the `before` steps, an int or
    i64 [B, 1], that lie before the chunk. first: bool [B, K]"""
    began = torch.where(first, torch.arange(first.shape[1], device=first.device), -before)
    return began if first.shape[1] == 1 else began.cummax(1).values  # ONNX knows no cummax, and exports one step


def places(obs: Obs) -> Tensor:
    """Where the frames of each row are, i64 [B * K, frames], in the frames of all chunks, which lie one after another.
    obs: of `Windows.inputs`"""
    first = obs["first"]
    before = max(x.shape[1] for x in obs.values()) - first.shape[1]
    rows = torch.arange(first.shape[1], device=first.device)
    back = torch.arange(-before, 1, device=first.device)
    place = torch.maximum(rows[:, None] + back, begins(first, before)[:, :, None]) + before  # [B, K, frames]
    chunks = torch.arange(len(first), device=first.device) * (before + first.shape[1])
    return (place + chunks[:, None, None]).flatten(0, 1)


def windows(obs: Obs, found: Tensor, rows: Tensor) -> Obs:
    """The rows i64 [n] of B * K, name -> [n, frames, ...]; of `legal`, bool [n, A]."""
    length, place = obs["first"].shape[1], found[rows]
    seen = {}
    for name, x in obs.items():
        if name != "first":
            flat, many = x.flatten(0, 1), x.shape[1] > length
            seen[name] = gathered(flat, place) if many else flat[rows]
    return seen


def gathered(frames: Tensor, place: Tensor) -> Tensor:
    """frames [F, ..., c] at place i64 [n, k], as [n, k, ..., c]. On a CPU images lie in memory as convolutions want
    them, with `k` and `c` last."""
    if frames.dim() < 4 or frames.device.type != "cpu":
        return frames[place]
    out = frames.new_empty((len(place), *frames.shape[1:-1], place.shape[1], frames.shape[-1]))
    _gather(frames.flatten(1, -2).numpy(), place.numpy(), out.flatten(1, -3).numpy())
    return out.movedim(-2, 1)


@jit
def _gather(frames: Array, place: Array, out: Array) -> None:
    """frames [F, m, c], out [n, m, k, c]"""
    for i in range(out.shape[0]):
        for f in range(out.shape[2]):
            for c in range(out.shape[3]):
                source, target = frames[place[i, f], :, c], out[i, :, f, c]
                for j in range(out.shape[1]):
                    target[j] = source[j]


def with_frames(obs: Arrays, context: PredictContext) -> tuple[Arrays, Arrays]:
    """Observations with the frames before them, name -> [N, frames, ...], and the memory after: the newest of these.
    Without a memory both are as they were."""
    seen = {}
    for name, before in context.state.items():
        now = obs[name][:, None]
        begins = context.first.reshape(-1, *[1] * (now.ndim - 1))
        seen[name] = np.concatenate([np.where(begins, now, before), now], 1)
    return {**obs, **seen}, {name: frames[:, 1:] for name, frames in seen.items()}


def frames_of(obs: Obs) -> tuple[Obs, Obs]:
    """`with_frames` by torch alone, for `Agent.greedy`: obs has `first`, and the frames before as `state.<name>`."""
    seen, after = {name: x for name, x in obs.items() if name != "first" and not name.startswith(STATE)}, {}
    for name in [name for name in seen if STATE + name in obs]:
        now = obs[name].unsqueeze(1)
        begins = obs["first"].reshape(-1, *[1] * (now.dim() - 1))
        seen[name] = torch.cat((torch.where(begins, now, obs[STATE + name]), now), 1)
        after[STATE + name] = seen[name][:, 1:]
    return seen, after
