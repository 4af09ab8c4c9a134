"""The notebook's base: two convolutions and a dense layer."""

from torch import Tensor, nn

from realm.algorithms.networks import Obs, relu
from realm.zoo.pong.config import Config
from realm.zoo.pong.networks.heads import Trunk


def pixels(obs: Obs, config: Config) -> Tensor:
    """u8 [n, 84, 84, 1], or [n, frames, 84, 84, 1], as f32 [n, channels, 84, 84]."""
    x = obs["state"].float()
    if x.dim() == 5:
        x = x[:, 1] - x[:, 0] if config.difference else x.squeeze(-1).permute(0, 2, 3, 1)
    return (x if config.raw_pixels else x / 255).permute(0, 3, 1, 2)  # channels are last in memory


class Conv(Trunk):
    width = 256

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        channels = 1 if config.difference else config.frames
        layers = nn.Conv2d(channels, 16, 8, 4), relu(), nn.Conv2d(16, 32, 4, 2), relu(), nn.Flatten()
        self.layers = nn.Sequential(*layers, nn.Linear(32 * 9 * 9, self.width), relu())

    def forward(self, obs: Obs) -> tuple[Tensor, Obs]:
        return self.layers(pixels(obs, self.config)), {}
