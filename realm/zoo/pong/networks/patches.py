"""Attention between the patches of a frame, of pixels or of what two small convolutions make of them."""

from itertools import pairwise

import torch
from torch import Tensor, nn

from realm.algorithms.networks import Obs, relu
from realm.zoo.pong.config import FEATURES, Config
from realm.zoo.pong.networks.conv import pixels
from realm.zoo.pong.networks.heads import Trunk


class Patches(Trunk):
    """From 49 patches of 12 x 12 pixels, or 144 of 7 x 7 numbers, to features."""

    width = FEATURES

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config, convolved = config, config.patches == "conv"
        self.side = 7 if convolved else 12
        self.convolutions = nn.Sequential()
        if convolved:
            self.convolutions.extend((nn.Conv2d(1, 4, 3, padding=1), relu(), nn.Conv2d(4, 1, 3, padding=1), relu()))
        self.rows = 84 // self.side
        numbers = self.side**2 + (2 * self.rows if config.where == "onehot" else 0)
        self.places = nn.Parameter(torch.zeros(self.rows**2, numbers)) if config.where == "learned" else None
        self.onehot: Tensor
        one = torch.eye(self.rows)
        where = torch.cat((one.repeat_interleave(self.rows, 0), one.repeat(self.rows, 1)), 1)  # y, x
        self.register_buffer("onehot", where, persistent=False)
        sizes = (numbers, *config.widths)
        self.layers = nn.ModuleList(_Attention(*pair) for pair in pairwise(sizes))
        self.last = nn.Sequential(nn.Flatten(), nn.Linear(self.rows**2 * sizes[-1], self.width), relu())

    def tokens(self, obs: Obs) -> Tensor:
        """f32 [n, patches, numbers]."""
        frame = self.convolutions(pixels(obs, self.config))
        cut = frame.reshape(-1, self.rows, self.side, self.rows, self.side).transpose(2, 3)  # quicker than `unfold`
        patches: Tensor = cut.flatten(3).flatten(1, 2)
        if self.config.where == "onehot":
            patches = torch.cat((patches, self.onehot.expand(patches.shape[0], -1, -1)), 2)
        return patches if self.places is None else patches + self.places

    def forward(self, obs: Obs) -> tuple[Tensor, Obs]:
        x = self.tokens(obs)
        for layer in self.layers:
            x = layer(x)
        return self.last(x), {}


class _Attention(nn.Module):
    """One head over all patches; it keeps `kept` numbers of each."""

    def __init__(self, numbers: int, kept: int) -> None:
        super().__init__()
        self.project, self.kept = nn.Linear(numbers, 3 * kept), kept

    def forward(self, x: Tensor) -> Tensor:
        one_head = self.project(x).unsqueeze(1).split(self.kept, 3)  # torch has no quick way without an axis of heads
        return nn.functional.scaled_dot_product_attention(*one_head).squeeze(1)
