"""From a batch of chunks to what PPO trains on: values, advantages and targets.

Called by `ppo.py`; the mathematics is in `realm/returns.py`, what is chosen among in `Settings`.
Axes: B chunks, T steps, R valid rows.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from realm import returns
from realm.algorithms.batch import Batch, Rows, normalised, tensor
from realm.algorithms.distributions import Distribution
from realm.algorithms.group import Group
from realm.algorithms.losses import Network, of_action
from realm.algorithms.networks import Obs
from realm.algorithms.normalise import returns_of, seen_by
from realm.algorithms.settings import Schedule, Settings
from realm.algorithms.side_by_side import SideBySide
from realm.contract import Array, Chunk


@torch.no_grad()
def estimate(
    chunk: Chunk,
    network: Network,
    distribution: Distribution,
    settings: Settings,
    now: Schedule,
    cut: type[Rows],
    side: SideBySide,
    device: torch.device,
    stale: bool,
    group: Group,
    proximal: Tensor | None = None,
) -> Batch:
    """Put B chunks on the device and estimate their steps. stale: other weights chose some of the actions;
    proximal: log-probabilities of the policy before the update, f32 [B, T], where they are known."""

    def here(array: Array) -> Tensor:
        return tensor(array, device)

    obs, valid = seen_by(network, settings, cut.inputs(chunk, device)), here(chunk.valid)
    of_learner = settings.value_source == "learner"
    of_critic = obs if of_learner else {name: x[:, -1:] for name, x in obs.items()}
    raw_action, log_prob = here(chunk.extra.get("drawn", chunk.action)), here(chunk.extra["log_prob"])
    of_actions = settings.advantage == "q"
    reweighs = proximal is None and stale and (settings.decoupled or settings.advantage == "vtrace")
    proximal = log_prob if proximal is None else proximal
    if (reweighs or of_actions) and settings.shared_trunk and of_learner:
        policy, value = _of_both(cut, obs, network)
    elif reweighs or of_actions:
        policy, value = side.both(
            lambda: cut.forward(obs, network.actor), lambda: cut.forward(of_critic, network.critic)
        )
    else:
        value = _in_halves(cut, side, of_critic, network.critic)
    if reweighs:
        masks = {name: x[:, :-1][valid] for name, x in obs.items() if name == "legal"}
        proximal = log_prob.clone()
        proximal[valid] = distribution.log_prob_and_entropy(policy[:, :-1][valid], masks, raw_action[valid])[0]
    if not of_learner:
        value = torch.cat([here(chunk.extra["value"]), value], dim=1)
    moments = returns_of(network, settings)
    value = value if moments is None else moments.unscaled(value)
    before = value[:, :-1]
    if of_actions:
        before = of_action(before, raw_action)
        value = (returns.masked_log_softmax(policy, obs.get("legal")).exp() * value).sum(-1)
    advantage, target = _advantages(chunk, settings, now, here, value, proximal - log_prob)
    if of_actions:
        advantage = torch.where(valid, before - value[:, :-1], 0.0)
    if "credit" in chunk.step:  # what each number of an action is paid for itself, at once
        advantage = advantage.unsqueeze(-1) + here(chunk.step["credit"])
    if settings.normalise_over == "batch":
        advantage[valid] = normalised(advantage[valid], settings, group)
    return Batch(obs, valid, raw_action, log_prob, proximal, before, advantage, target)


def _advantages(
    chunk: Chunk, settings: Settings, now: Schedule, here: Callable[[Array], Tensor], value: Tensor, log_ratio: Tensor
) -> tuple[Tensor, Tensor]:
    """Advantages and the critic's targets, f32 [B, T] each. value: f32 [B, T + 1]; log_ratio: f32 [B, T]"""
    reward, valid = here(chunk.reward), here(chunk.valid)
    ends = here(chunk.terminated), here(chunk.truncated), valid
    own = chunk.step.get("discount")  # where the workflow says that steps differ in duration
    discount = None if own is None else here(own)
    if settings.advantage == "vtrace":
        log_ratio = log_ratio.where(valid, torch.zeros_like(reward))  # rows that are not valid have no action
        return returns.vtrace(reward, value, log_ratio, *ends, now.gamma, settings.lam, discount=discount)
    lam = {"delta": 0.0, "q": 0.0, "returns": 1.0}.get(settings.advantage, settings.lam)
    return returns.gae(reward, value, *ends, now.gamma, lam, discount=discount)


def _of_both(cut: type[Rows], obs: Obs, network: Network) -> tuple[Tensor, Tensor]:
    """`cut.forward` of policy and critic, with one pass through the trunk that they share."""
    policy: list[Tensor] = []

    def critic(seen: Obs) -> Tensor:
        output, value, *_ = network(seen)
        policy.append(output)
        return value

    value = cut.forward(obs, critic)
    return torch.cat(policy).view(*value.shape[:2], -1), value


def _in_halves(cut: type[Rows], side: SideBySide, obs: Obs, net: Callable[[Obs], Tensor]) -> Tensor:
    """`cut.forward`, half of the chunks in each thread."""
    half = len(next(iter(obs.values()))) // 2
    if half == 0:
        return cut.forward(obs, net)
    head, tail = ({name: x[part] for name, x in obs.items()} for part in (slice(half), slice(half, None)))
    return torch.cat(side.both(lambda: cut.forward(head, net), lambda: cut.forward(tail, net)))
