"""The network of most packages: an MLP for the policy and one for the critic, on flat observations or images."""

from __future__ import annotations

from torch import Tensor, nn

from realm.algorithms.networks import MLP, Deviations, Encoder, Obs
from realm.algorithms.normalise import Moments, Observations
from realm.algorithms.settings import NetworkSettings
from realm.contract import ActionSpec, Fields


class ActorCritic(nn.Module):
    """Policy and critic share no weights. PPO finds its gradients by hand (`by_hand.py`), unless it sees images."""

    def __init__(self, fields: Fields, action: ActionSpec, settings: NetworkSettings) -> None:
        super().__init__()
        self.observations = Observations(fields) if settings.normalise_obs else None
        self.returns = Moments() if settings.normalise_returns else None
        self.actor_net = _net(fields, settings, action.n or sum(action.nvec) or len(action.low), 0.01)
        if action.low:
            self.actor_net.append(Deviations(len(action.low), settings.log_std))
        self.critic_net = _net(fields, settings, 1, 1.0)

    def actor(self, obs: Obs) -> Tensor:
        return self.actor_net(obs)  # type: ignore[no-any-return]

    def critic(self, obs: Obs) -> Tensor:
        return self.critic_net(obs).squeeze(-1)  # type: ignore[no-any-return]


def _net(fields: Fields, settings: NetworkSettings, outputs: int, gain: float) -> nn.Sequential:
    encoder, hidden = Encoder(fields, settings.frames), settings.hidden
    layers = MLP((encoder.features, hidden, hidden, outputs), nn.Tanh if settings.activation == "tanh" else nn.ReLU)
    linears = [layer for layer in layers if isinstance(layer, nn.Linear)]
    if not settings.orthogonal:  # as torch makes them
        return nn.Sequential(encoder, layers)
    for layer, scale in zip(linears, (2**0.5, 2**0.5, gain), strict=True):
        nn.init.orthogonal_(layer.weight, scale)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(encoder, layers)
