"""Attention over the features of past frames, as they were when these were played: a batch has them, so no frame is
encoded again. They get no gradient.

Axes: B chunks, T steps, K = T + 1, n rows, W features of `past`, N environments.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from realm.algorithms.batch import FORWARD_ROWS, STATE, Batch, Rows, tensor
from realm.algorithms.losses import Loss, Network, Outputs
from realm.algorithms.networks import MLP, Obs
from realm.algorithms.normalise import seen_by
from realm.algorithms.ppo import PPO
from realm.algorithms.windows import begins
from realm.contract import Array, Arrays, Chunk, PredictContext
from realm.zoo.pong.config import FEATURES, Config
from realm.zoo.pong.networks.conv import Conv
from realm.zoo.pong.networks.heads import Heads, Trunk


class Past(Rows):
    """The valid rows of a batch, each alone, with the features before it: `past` f32 [n, W, 256], the newest last, of
    which the last `age` i64 [n] are of this episode; and after it: `next` f32 [n, 256], if `has_next` bool [n]."""

    def __init__(self, batch: Batch) -> None:
        super().__init__(batch)
        self._inputs = batch.obs

    def at(self, part: Tensor) -> Batch:
        return Batch(rows_of(self._inputs, self._index[part]), None, *self._rows.of_rows(part))

    @staticmethod
    def inputs(chunk: Chunk, device: torch.device) -> Obs:
        """Frames [B, K, ...], features [B, W + T, 256], from those before the chunk on, and `age` [B, K]."""
        first, steps = tensor(chunk.first, device), torch.arange(chunk.first.shape[1], device=device)
        before = tensor(chunk.state["age"], device)[:, None]
        features = (chunk.state["features"], chunk.extra["features"])
        return {
            "state": tensor(chunk.obs["state"], device),
            "features": torch.cat([tensor(x, device) for x in features], 1),
            "age": (steps - begins(first, before)).clamp(max=chunk.state["features"].shape[1]),
        }

    @staticmethod
    @torch.no_grad()
    def forward(obs: Obs, net: Callable[[Obs], Tensor]) -> Tensor:
        rows = torch.arange(obs["age"].numel(), device=obs["age"].device)
        result = torch.cat([net(rows_of(obs, part)) for part in torch.split(rows, FORWARD_ROWS // 8)])
        return result.view(*obs["age"].shape, *result.shape[1:])


def rows_of(obs: Obs, rows: Tensor) -> Obs:
    """Those i64 [n] of B * K of what `Past.inputs` gives."""
    length, every = obs["age"].shape[1], obs["features"]
    width = every.shape[1] - (length - 1)  # W
    chunk, step = rows // length, rows % length
    before = chunk * every.shape[1] + step  # of the oldest feature of each row
    flat = every.flatten(0, 1)
    has_next = step + 1 < length - 1  # of the last row of a chunk no features are known
    return {
        "state": obs["state"].flatten(0, 1).index_select(0, rows),
        "past": flat[before[:, None] + torch.arange(width, device=rows.device)],
        "age": obs["age"].flatten()[rows],
        "next": flat[(before + width + 1).clamp(max=len(flat) - 1)],
        "has_next": has_next,
    }


class Attending(Trunk):
    """Features of the frame, and next to them what attention finds in these and those before."""

    width = 2 * FEATURES

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.conv = Conv(config)
        self.query, self.value = nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, FEATURES)
        self.key = nn.Linear(FEATURES, FEATURES, bias=False)  # one would be the same for every past frame
        self.broken_mask = config.broken_mask
        self.positions = nn.Parameter(torch.zeros(config.past + 1, FEATURES)) if config.positions else None

    def forward(self, obs: Obs) -> tuple[Tensor, Obs]:
        features, _ = self.conv(obs)
        back = torch.arange(obs["past"].shape[1], -1, -1, device=features.device)
        allowed = back <= obs["age"][:, None]  # its own is among them, so no row is masked wholly
        seen = torch.cat((torch.where(allowed[:, :-1, None], obs["past"], 0.0), features[:, None]), 1)
        placed = seen if self.positions is None else seen + self.positions
        mask = torch.where(allowed, 0.0, -1e-7 if self.broken_mask else -math.inf)
        # a single query needs no keys and values of past frames: q (K x) = (q K) x, and sum(a V x) = V sum(a x)
        query, rows = (self.query(features) @ self.key.weight)[:, None, None], placed[:, None]  # and one head
        found = nn.functional.scaled_dot_product_attention(query, rows, rows, mask[:, None, None])
        attended = self.value(found.flatten(1))
        return torch.cat((features, attended), 1), {"features": features, "attended": attended}


class Attention(Heads):
    cut = Past

    def __init__(self, config: Config, actions: int) -> None:
        super().__init__(lambda: Attending(config), actions, shared=True)
        self.coefficient, self.actions = config.predict_coef, actions
        if self.coefficient:
            self.predictor = MLP((2 * FEATURES + actions, FEATURES, FEATURES))

    def losses(self) -> Sequence[Loss]:
        return [Loss("predict_loss", self.error, self.coefficient)] if self.coefficient else []

    def error(self, minibatch: Batch, outputs: Outputs) -> Tensor:
        """Of the next frame's features, predicted from what is seen and the action."""
        some = minibatch.obs["has_next"]
        action = nn.functional.one_hot(minibatch.raw_action, self.actions)
        guess = self.predictor(torch.cat((outputs.more["features"], outputs.more["attended"], action), 1))
        missed = (guess - minibatch.obs["next"]).square().mean(1)
        return torch.where(some, missed, 0.0).sum() / some.sum().clamp(min=1)


class PastPPO(PPO):
    @torch.inference_mode()
    def remember(self, obs: Arrays, context: PredictContext) -> tuple[Array, Arrays, Arrays]:
        """As `PPO.remember`; the features of the frames are among the extra."""
        past, age = context.state["features"], context.state["age"]
        every = {name: tensor(x, self.device) for name, x in {**obs, "past": past, "age": age}.items()}
        policy, _, more = self.network(seen_by(self.network, self.settings, every))  # type: ignore[misc]
        action, extra = self.distribution.act(policy, {}, context.explore, self.generator)
        features = more["features"].cpu().numpy()
        after = {
            "features": np.concatenate((past[:, 1:], features[:, None]), 1),
            "age": np.minimum(age + 1, past.shape[1]),
        }
        return action, {**extra, "features": features}, after

    def greedy(self, obs: Obs, network: Network | None = None) -> Obs:
        """As `PPO.greedy`; the memory is among `obs`, the one after it among what it gives."""
        past, age = obs[STATE + "features"], obs[STATE + "age"]
        network, every = network or self.network, {"state": obs["state"], "past": past, "age": age}
        policy, _, more = network(seen_by(network, self.settings, every))  # type: ignore[misc]
        after = torch.cat((past[:, 1:], more["features"].unsqueeze(1)), 1), (age + 1).clamp(max=past.shape[1])
        return {**self.distribution.greedy(policy, {}), STATE + "features": after[0], STATE + "age": after[1]}
