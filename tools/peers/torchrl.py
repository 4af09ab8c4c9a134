"""TorchRL: PPO as in its example; action masks.

Its collector, GAE, replay buffer and ClipPPOLoss in the loop of `sota-implementations/ppo`, without compiling or CUDA
graphs. All environments are one vector environment; the policy network masks.
"""

# requires: torchrl==0.14.1

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModule
from torch import Tensor, nn
from torchrl.collectors import Collector
from torchrl.data import Binary, Categorical, Composite, LazyTensorStorage, TensorDictReplayBuffer, Unbounded
from torchrl.data.replay_buffers.samplers import SamplerWithoutReplacement
from torchrl.envs import EnvBase
from torchrl.modules import ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

from tools.peers.common import Realms, network, read_setup, report


class Envs(EnvBase):
    """E realms in one call."""

    def __init__(self, realms: Realms) -> None:
        count = realms.num_envs
        super().__init__(batch_size=[count], device="cpu")
        self.realms = realms
        self.observation_spec = Composite(
            features=Unbounded((count, realms.size), dtype=getattr(torch, realms.dtype.name)),
            legal=Binary(realms.actions, (count, realms.actions), dtype=torch.bool), shape=[count],
        )  # fmt: skip
        self.action_spec = Categorical(realms.actions, (count,))
        self.reward_spec = Unbounded((count, 1))

    def _seen(self, features: Any, legal: Any) -> dict[str, Tensor]:
        return {"features": torch.from_numpy(features), "legal": torch.from_numpy(legal)}

    def _reset(self, tensordict: TensorDictBase | None, **options: Any) -> TensorDictBase:
        if tensordict is None or "_reset" not in tensordict:
            self._now = self._seen(*self.realms.reset())
        return TensorDict(self._now, self.batch_size)  # else `_step` has reset those that have ended

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        step = self.realms.step(tensordict["action"].numpy())
        self._now = self._seen(step.features, step.legal)
        final = step.features
        if step.final is not None:
            final, ended = final.copy(), step.terminated | step.truncated
            final[ended] = step.final[ended]
        flags = {"terminated": step.terminated, "truncated": step.truncated, "done": step.terminated | step.truncated}
        outcome = {name: torch.from_numpy(flag).unsqueeze(-1) for name, flag in flags.items()}
        outcome["reward"] = torch.from_numpy(step.reward).unsqueeze(-1)
        return TensorDict({**self._seen(final, step.legal), **outcome}, self.batch_size)

    def _set_seed(self, seed: int | None) -> None: ...


class Policy(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, features: Tensor, legal: Tensor) -> Tensor:
        return self.net(features).masked_fill(~legal, -1e9)


if __name__ == "__main__":
    setup = read_setup()
    ppo, realms = setup.ppo, Realms(setup)
    torch.manual_seed(setup.seed)
    envs = Envs(realms)
    logits = TensorDictModule(Policy(network(ppo, realms.size, realms.actions)), ["features", "legal"], ["logits"])
    actor = ProbabilisticActor(
        logits, in_keys=["logits"], spec=envs.action_spec, distribution_class=torch.distributions.Categorical,
        return_log_prob=True,
    )  # fmt: skip
    critic = ValueOperator(network(ppo, realms.size, 1), in_keys=["features"])
    advantage = GAE(
        gamma=ppo.gamma_start, lmbda=ppo.lam, value_network=critic, average_gae=True,
        deactivate_vmap=ppo.features != "small",  # vmap knows no images in channels-last order
    )  # fmt: skip
    loss = ClipPPOLoss(
        actor, critic, clip_epsilon=ppo.clip, entropy_coeff=ppo.entropy_start, critic_coeff=ppo.vf_coef,
        loss_critic_type="l2",
    )  # fmt: skip
    optimizer = torch.optim.Adam(loss.parameters(), ppo.lr_start, eps=ppo.adam_eps)
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(setup.batch), sampler=SamplerWithoutReplacement(), batch_size=setup.minibatch
    )
    collector = Collector(envs, actor, frames_per_batch=setup.batch, total_frames=-1)
    for update, data in enumerate(collector, 1):
        with torch.no_grad():
            advantage(data)
        rows = data.exclude("next", "collector").reshape(-1)
        for _ in range(ppo.epochs):
            buffer.empty()
            buffer.extend(rows)
            for _ in range(setup.minibatches):
                found = loss(buffer.sample())
                optimizer.zero_grad()
                (found["loss_objective"] + found["loss_critic"] + found["loss_entropy"]).backward()
                nn.utils.clip_grad_norm_(loss.parameters(), ppo.max_grad_norm)
                optimizer.step()
        report(update * setup.batch, update, realms.scores)
