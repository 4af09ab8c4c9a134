"""The network of most packages: an MLP for the policy and one for the critic, on flat observations or images."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from realm.algorithms.networks import MLP, Encoder, Obs, deviations_of
from realm.algorithms.normalise import add_moments
from realm.algorithms.settings import NetworkSettings
from realm.contract import ActionSpec, Fields


class ActorCritic(nn.Module):
    """Policy and critic, on layers of their own or on a `shared_trunk`. If they share none and see no images, PPO finds
    their gradients by hand (`by_hand.py`)."""

    def __init__(self, fields: Fields, action: ActionSpec, settings: NetworkSettings) -> None:
        super().__init__()
        add_moments(self, fields, settings)
        outputs = action.n or sum(action.nvec) or len(action.low)
        values = outputs if settings.advantage == "q" else 1
        encoder = _encoder(fields, settings)
        if settings.shared_trunk:
            self.trunk = nn.Sequential(encoder)
            if not encoder.cnns:
                self.trunk.append(_mlp((encoder.features, settings.hidden), settings, 2**0.5))
                self.trunk.append(_ACTIVATIONS[settings.activation]())
            width = settings.hidden if not encoder.cnns else encoder.features
            self.actor_net = nn.Sequential(_mlp((width, outputs), settings, 0.01))
            self.critic_net = nn.Sequential(_mlp((width, values), settings, 1.0))
        else:
            sizes = encoder.features, settings.hidden, settings.hidden
            self.trunk = nn.Sequential()
            self.actor_net = nn.Sequential(encoder, _mlp((*sizes, outputs), settings, 0.01))
            self.critic_net = nn.Sequential(_encoder(fields, settings), _mlp((*sizes, values), settings, 1.0))
        self.actor_net.extend(deviations_of(action, settings))

    def actor(self, obs: Obs) -> Tensor:
        return self.actor_net(self.trunk(obs))  # type: ignore[no-any-return]

    def critic(self, obs: Obs) -> Tensor:
        return self.critic_net(self.trunk(obs)).squeeze(-1)  # type: ignore[no-any-return]

    def forward(self, obs: Obs) -> tuple[Tensor, Tensor]:
        features = self.trunk(obs)
        return self.actor_net(features), self.critic_net(features).squeeze(-1)


_ACTIVATIONS: dict[str, type[nn.ReLU] | type[nn.Tanh]] = {"tanh": nn.Tanh, "relu": nn.ReLU}


def _encoder(fields: Fields, settings: NetworkSettings) -> Encoder:
    encoder = Encoder(fields, settings)
    if settings.orthogonal:
        _make_orthogonal(encoder, 2**0.5)
    return encoder


def _mlp(sizes: Sequence[int], settings: NetworkSettings, gain: float) -> MLP:
    """gain: of the first weights of the last layer."""
    layers = MLP(sizes, _ACTIVATIONS[settings.activation])
    if settings.orthogonal:
        _make_orthogonal(layers, gain)
    return layers


def _make_orthogonal(net: nn.Module, gain: float) -> None:
    """The first weights; gain: of those of the last layer."""
    layers = [layer for layer in net.modules() if isinstance(layer, (nn.Linear, nn.Conv2d))]
    for layer in layers:
        nn.init.orthogonal_(layer.weight, gain if layer is layers[-1] else 2**0.5)
        nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
