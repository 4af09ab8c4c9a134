"""A gated transformer as the memory of the policy."""

from torch import Tensor, nn

from realm.algorithms.attention import AttentionNetwork, Shape
from realm.algorithms.networks import Obs, relu
from realm.contract import ActionSpec
from realm.zoo.pong.config import Config
from realm.zoo.pong.networks.conv import Conv


class _Features(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.conv = Conv(config)
        self.last = nn.Sequential(nn.Linear(Conv.width, config.memory_width), relu())

    def forward(self, obs: Obs) -> Tensor:
        return self.last(self.conv(obs)[0])  # type: ignore[no-any-return]


def transformer(config: Config, action: ActionSpec) -> AttentionNetwork:
    detached = not config.memory_attached
    shape = Shape(config.memory_width, config.memory_steps, config.memory_layers, config.memory_heads, detached)
    return AttentionNetwork(_Features(config), shape, action, ())
