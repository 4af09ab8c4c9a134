"""Gradient steps/s of TD3, SAC and Q-learning, next to plain loops that are written for speed.

    python tools/bench/plain_offpolicy.py --rounds 7 --algorithms td3 sac dqn

A plain loop is one file of straight code, with the same networks and the same settings: a NumPy ring buffer of random
rows, one draw of a minibatch for each gradient step, torch's fused Adam, `_foreach_lerp_`. The project's agents get the
rows of `--minibatches` gradient steps in one draw from the same ring, as the buffer hands them out. One thread of
torch. The two alternate in rounds; a ratio is the median over the rounds.
"""

from __future__ import annotations

import argparse
import copy
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from realm.algorithms import networks
from realm.contract import ActionSpec, Draw, Field, SampleInfo, Spec, Transitions
from realm.zoo.dqn.algorithm.agent import Agent as DQNAgent
from realm.zoo.dqn.config import Config as DQNConfig
from realm.zoo.sac.algorithm.agent import Agent as SACAgent
from realm.zoo.sac.config import Config as SACConfig
from realm.zoo.td3.algorithm.agent import Agent as TD3Agent
from realm.zoo.td3.config import Config as TD3Config
from tools import common

Step = Callable[[], int]  # makes some gradient steps and returns how many
MLP = Callable[[Sequence[int]], nn.Sequential]

# ---- what both have ----


class Ring:
    """A full ring buffer of random rows."""

    def __init__(self, rows: int, obs: int, actions: int, discrete: bool) -> None:
        self.random = np.random.default_rng(0)
        self.obs = self.random.standard_normal((rows, obs), np.float32)
        self.next_obs = self.random.standard_normal((rows, obs), np.float32)
        action = self.random.integers(0, actions, rows), self.random.random((rows, actions), np.float32) * 2 - 1
        self.action = action[0] if discrete else action[1]
        self.reward = self.random.standard_normal(rows, np.float32)
        self.discount = np.where(self.random.random(rows) < 0.01, 0, 0.99).astype(np.float32)

    def draw(self, count: int) -> tuple[Any, ...]:
        """obs, action, reward, discount, next_obs."""
        index = self.random.integers(0, len(self.reward), count)
        return tuple(x[index] for x in (self.obs, self.action, self.reward, self.discount, self.next_obs))


def torch_mlp(sizes: Sequence[int]) -> nn.Sequential:
    """As `mlp`, with the layers that torch has."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers[:-1])


def descend(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()


# ---- the plain loops ----


def plain_td3(ring: Ring, config: TD3Config, mlp: MLP) -> Step:
    obs_size, actions, hidden = ring.obs.shape[1], ring.action.shape[1], config.hidden
    actor = nn.Sequential(mlp((obs_size, hidden, hidden, actions)), nn.Tanh())
    critics = [mlp((obs_size + actions, hidden, hidden, 1)) for _ in range(2)]
    all_nets = nn.ModuleList([actor, *critics])
    targets = copy.deepcopy(all_nets).requires_grad_(False)
    weights, target_weights = list(all_nets.parameters()), list(targets.parameters())
    of_actor = torch.optim.Adam(actor.parameters(), config.lr, fused=True)
    of_critics = torch.optim.Adam([p for net in critics for p in net.parameters()], config.lr, fused=True)
    steps = 0

    def step() -> int:
        nonlocal steps
        obs, action, reward, discount, next_obs = map(torch.from_numpy, ring.draw(config.minibatch_size))
        with torch.no_grad():
            noise = (torch.randn_like(action) * config.target_noise).clamp_(
                -config.target_noise_clip, config.target_noise_clip
            )
            x = torch.cat((next_obs, (targets[0](next_obs) + noise).clamp_(-1, 1)), 1)
            goal = reward + discount * torch.minimum(targets[1](x), targets[2](x)).squeeze(1)
        x = torch.cat((obs, action), 1)
        descend(of_critics, sum(functional.mse_loss(net(x).squeeze(1), goal) for net in critics))  # type: ignore
        steps += 1
        if steps % config.policy_delay == 0:
            descend(of_actor, -critics[0](torch.cat((obs, actor(obs)), 1)).mean())
            with torch.no_grad():
                torch._foreach_lerp_(target_weights, weights, config.tau)
        return 1

    return step


def plain_sac(ring: Ring, config: SACConfig, mlp: MLP) -> Step:
    obs_size, actions, hidden = ring.obs.shape[1], ring.action.shape[1], config.hidden
    actor = mlp((obs_size, hidden, hidden, 2 * actions))
    critics = nn.ModuleList(mlp((obs_size + actions, hidden, hidden, 1)) for _ in range(2))
    targets = copy.deepcopy(critics).requires_grad_(False)
    weights, target_weights = list(critics.parameters()), list(targets.parameters())
    log_alpha = torch.zeros((), requires_grad=True)
    of_actor = torch.optim.Adam(actor.parameters(), config.lr, fused=True)
    of_critics = torch.optim.Adam(weights, config.lr, fused=True)
    of_alpha = torch.optim.Adam([log_alpha], config.lr, fused=True)

    def sample(obs: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = actor(obs).chunk(2, 1)
        log_std = -5 + 3.5 * (log_std.tanh() + 1)
        noise = torch.randn_like(mean)
        u = mean + log_std.exp() * noise
        log_prob = -0.5 * noise.square() - log_std - 0.9189385 - 2 * (0.6931472 - u - functional.softplus(-2 * u))
        return u.tanh(), log_prob.sum(1)

    def step() -> int:
        obs, action, reward, discount, next_obs = map(torch.from_numpy, ring.draw(config.minibatch_size))
        alpha = log_alpha.detach().exp()
        with torch.no_grad():
            next_action, log_prob = sample(next_obs)
            x = torch.cat((next_obs, next_action), 1)
            value = torch.minimum(targets[0](x), targets[1](x)).squeeze(1) - alpha * log_prob
            goal = reward + discount * value
        x = torch.cat((obs, action), 1)
        descend(of_critics, sum(functional.mse_loss(net(x).squeeze(1), goal) for net in critics))  # type: ignore
        new_action, log_prob = sample(obs)
        x = torch.cat((obs, new_action), 1)
        descend(of_actor, (alpha * log_prob - torch.minimum(critics[0](x), critics[1](x)).squeeze(1)).mean())
        descend(of_alpha, -(log_alpha.exp() * (log_prob.detach() - actions)).mean())
        with torch.no_grad():
            torch._foreach_lerp_(target_weights, weights, config.tau)
        return 1

    return step


def plain_dqn(ring: Ring, config: DQNConfig, actions: int, mlp: MLP) -> Step:
    network = mlp((ring.obs.shape[1], config.hidden, config.hidden, actions))
    target = copy.deepcopy(network).requires_grad_(False)
    optimizer = torch.optim.Adam(network.parameters(), config.lr, fused=True)
    steps = 0

    def step() -> int:
        nonlocal steps
        obs, action, reward, discount, next_obs = map(torch.from_numpy, ring.draw(config.minibatch_size))
        with torch.no_grad():
            after = target(next_obs)
            if config.double:
                best = after.gather(1, network(next_obs).argmax(1, keepdim=True)).squeeze(1)
            else:
                best = after.max(1).values
            goal = reward + discount * best
        value = network(obs).gather(1, action.unsqueeze(1)).squeeze(1)
        loss = functional.smooth_l1_loss(value, goal) if config.huber else functional.mse_loss(value, goal)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        if config.max_grad_norm:
            nn.utils.clip_grad_norm_(network.parameters(), config.max_grad_norm)
        optimizer.step()
        steps += 1
        if steps % config.target_every == 0:
            target.load_state_dict(network.state_dict())
        return 1

    return step


# ---- the project's ----


def of_agent(agent: Any, ring: Ring, rows: int, steps: int) -> Step:
    ids, zeros = np.arange(rows, dtype=np.uint64), np.zeros(rows, np.int64)
    info = SampleInfo(ids, np.full(rows, 1 / len(ring.reward)), zeros, size=len(ring.reward))
    rest = {"extra": {}, "step": {}, "version": np.zeros((rows, 2), np.int64)}
    origin = dict.fromkeys(("worker", "incarnation", "env", "seq"), zeros)

    def step() -> int:
        obs, action, reward, discount, next_obs = ring.draw(rows)
        batch = Transitions({"state": obs}, action, reward, discount, {"state": next_obs}, **rest, **origin)
        agent.learn(batch, info)
        return steps

    return step


def pair(name: str, minibatches: int, mlp: MLP) -> tuple[Step, Step]:
    """The plain loop, with these layers, and the agent. TD3 and SAC: HalfCheetah's sizes; dqn: CartPole's."""
    if name.startswith("dqn"):
        config = DQNConfig(hidden=100)
        if name == "dqn_cleanrl":
            config = DQNConfig(hidden=100, double=False, huber=0.0, max_grad_norm=0.0)
        ring, action = Ring(10_000, 4, 2, True), ActionSpec(n=2)
        plain, agent = plain_dqn(ring, config, 2, mlp), DQNAgent(_spec(4, action), config, "cpu", 0)
        size = config.minibatch_size
    else:
        ring, action = Ring(100_000, 17, 6, False), ActionSpec(low=(-1.0,) * 6, high=(1.0,) * 6)
        td3, sac = TD3Config(), SACConfig()
        plain = plain_td3(ring, td3, mlp) if name == "td3" else plain_sac(ring, sac, mlp)
        spec = _spec(17, action)
        agent = TD3Agent(spec, td3, "cpu", 0) if name == "td3" else SACAgent(spec, sac, "cpu", 0)  # type: ignore
        size = td3.minibatch_size
    return plain, of_agent(agent, ring, size * minibatches, minibatches)


def _spec(obs: int, action: ActionSpec) -> Spec:
    return Spec({"state": Field((obs,), "float32")}, action, {}, 20, draw=Draw())


def rate(step: Step, seconds: float, *_: Any) -> tuple[float, float]:
    """Gradient steps a second, and a second of processor time, which a neighbour on the machine disturbs less."""
    began, cpu, steps = time.perf_counter(), time.process_time(), 0
    while time.perf_counter() - began < seconds:
        steps += step()
    return steps / (time.perf_counter() - began), steps / (time.process_time() - cpu)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = ["td3", "sac", "dqn", "dqn_cleanrl"]
    parser.add_argument("--algorithms", nargs="+", choices=names, default=names)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each of the two in a round")
    parser.add_argument("--minibatches", type=int, default=20, help="gradient steps of one call of learn")
    parser.add_argument("--torch-layers", action="store_true", help="the plain loops have nn.Linear")
    args = parser.parse_args()
    torch.set_num_threads(1)
    for name in args.algorithms:
        both = pair(name, args.minibatches, torch_mlp if args.torch_layers else networks.MLP)
        for step in both:
            rate(step, 0.5)
        rows = {who: partial(rate, step, args.seconds) for who, step in zip(("plain", "realm"), both, strict=True)}
        rates = common.in_rounds(rows, args.rounds)
        for number, what in enumerate(("a second", "a CPU second")):
            plain, ours = ({round_: rate[number] for round_, rate in rates[who].items()} for who in rows)
            medians = [common.spread(one.values()).median for one in (plain, ours)]
            ratio = common.beside(ours, plain)
            assert ratio
            print(
                f"{name:12} gradient steps {what}: plain {medians[0]:6.0f}, realm {medians[1]:6.0f}, "
                f"ratio {ratio.median:.2f} ({ratio.least:.2f} to {ratio.greatest:.2f})",
                flush=True,
            )


if __name__ == "__main__":
    common.command_line(main)
