"""Policy and critic on a trunk that they share, or each on one of its own."""

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from realm.algorithms.batch import Rows
from realm.algorithms.losses import Loss
from realm.algorithms.networks import Obs


class Trunk(nn.Module):
    """From observations to features f32 [n, width], and what further losses need, name -> [n, ...]."""

    width: int

    def forward(self, obs: Obs) -> tuple[Tensor, Obs]:
        raise NotImplementedError


class Heads(nn.Module):
    """A linear layer each. cut, losses: what PPO has to know of the trunk."""

    cut: type[Rows] = Rows

    def __init__(self, trunk: Callable[[], Trunk], actions: int, shared: bool) -> None:
        super().__init__()
        self.trunk = trunk()
        self.critic_trunk = None if shared else trunk()
        self.actor_head, self.critic_head = nn.Linear(self.trunk.width, actions), nn.Linear(self.trunk.width, 1)

    def actor(self, obs: Obs) -> Tensor:
        return self.actor_head(self.trunk(obs)[0])  # type: ignore[no-any-return]

    def critic(self, obs: Obs) -> Tensor:
        return self.critic_head((self.critic_trunk or self.trunk)(obs)[0]).squeeze(-1)  # type: ignore[no-any-return]

    def forward(self, obs: Obs) -> tuple[Tensor, Tensor, Obs]:
        features, more = self.trunk(obs)
        own = self.critic_trunk(obs)[0] if self.critic_trunk else features
        return self.actor_head(features), self.critic_head(own).squeeze(-1), more

    def losses(self) -> Sequence[Loss]:
        """Besides those of PPO."""
        return ()
