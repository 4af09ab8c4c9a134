"""A further loss for a shared trunk: its features must suffice to reconstruct the observations.

A network has a `Decoder`, and returns its features as a third result of `forward`, {"features": ...}; then
`PPO(..., losses=[reconstruction(network.decoder, coefficient)])`.
Axes: n rows of a minibatch.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from realm.algorithms.batch import Batch
from realm.algorithms.losses import Loss, Outputs
from realm.contract import Fields


class Decoder(nn.Module):
    """From features f32 [n, F] to all observations next to each other, f32 [n, numbers]; for those without images."""

    def __init__(self, fields: Fields, features: int) -> None:
        super().__init__()
        self.names = sorted(name for name in fields if name != "legal")  # a mask is no observation
        self.net = nn.Linear(features, sum(fields[name].size for name in self.names))

    def forward(self, features: Tensor) -> Tensor:
        return self.net(features)  # type: ignore[no-any-return]


def reconstruction(decoder: Decoder, coefficient: float) -> Loss:
    """The mean squared error of each number."""

    def error(minibatch: Batch, outputs: Outputs) -> Tensor:
        numbers = [minibatch.rows(minibatch.obs[name]).flatten(1).float() for name in decoder.names]
        return nn.functional.mse_loss(decoder(outputs.more["features"]), torch.cat(numbers, 1))

    return Loss("reconstruction_loss", error, coefficient)
