"""The notebook's base: two convolutions and a dense layer."""

from torch import Tensor, nn

from realm.algorithms.networks import Obs, of_images, relu
from realm.zoo.pong.config import FEATURES, Config
from realm.zoo.pong.networks.heads import Trunk


def pixels(obs: Obs, config: Config) -> Tensor:
    """u8, or f32 if normalised, [n, 84, 84, 1] or [n, frames, 84, 84, 1], as f32 [n, channels, 84, 84]."""
    x, raw = obs["state"].float(), config.raw_pixels or config.normalise_images
    if x.dim() == 5:
        x = x[:, 1] - x[:, 0] if config.difference else x.squeeze(-1).permute(0, 2, 3, 1)
    return (x if raw else x / 255).permute(0, 3, 1, 2)  # channels are last in memory


class Conv(Trunk):
    width = FEATURES

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        layers: list[nn.Module] = []
        for inputs, outputs, side, stride in ((1 if config.difference else config.frames, 16, 8, 4), (16, 32, 4, 2)):
            layers += [nn.Conv2d(inputs, outputs, side, stride), *_norm(outputs, config.batch_norm), relu()]
        self.layers = nn.Sequential(*layers, nn.Flatten(), nn.Linear(32 * 9 * 9, self.width), relu())

    def forward(self, obs: Obs) -> tuple[Tensor, Obs]:
        image = pixels(obs, self.config)
        with of_images(self.config.precision, image.device):
            features = self.layers(image)
        return features.float(), {}


def _norm(channels: int, when: str) -> list[nn.Module]:
    """when: "always" knows the statistics of each batch alone, those of the eight frames that it acts on, too."""
    return [nn.BatchNorm2d(channels, track_running_stats=when == "updates")] if when != "none" else []
