"""What PPO asks of a network, and what it descends: a sum of losses.

A loss is a pure function of a minibatch and of what the network gives for it. `ppo_losses` are PPO's own three. A
further one is a `Loss` in `PPO(..., losses=[...])`; what else it needs of the network, a network with a shared trunk
returns as a third result.
Axes: n rows of a minibatch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from realm import returns
from realm.algorithms.adam import Adam
from realm.algorithms.batch import Batch
from realm.algorithms.distributions import Distribution, at_action
from realm.algorithms.group import Group
from realm.algorithms.networks import Obs
from realm.algorithms.settings import Schedule, Settings
from realm.errors import ConfigError, UserCodeError

Metrics = dict[str, Tensor]  # of a gradient step: f32 [] each, or f32 [n], which `means` reduces

_NOTHING = torch.empty(0)


class Network(Protocol):
    """The network that PPO trains, a torch module. The names of the critic's parameters begin with `critic`."""

    def actor(self, obs: Obs) -> Tensor:
        """What the distribution takes: logits float [n, A], in which illegal actions need not be masked, or means and
        logs of standard deviations, float [n, 2 A]."""

    def critic(self, obs: Obs) -> Tensor:
        """Values f32 [n]; with `advantage = "q"` those of each action, f32 [n, A]."""

    def __call__(self, obs: Obs) -> tuple[Tensor, Tensor] | tuple[Tensor, Tensor, Obs]:
        """Both at once: for a shared trunk, and for actors that keep values. The third, name -> [n, ...], is for
        further losses."""

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]: ...

    def get_submodule(self, target: str) -> nn.Module: ...

    def train(self, mode: bool = True) -> Any: ...


@dataclass(frozen=True)
class Outputs:
    """Of n rows, with gradients. Where policy and critic share no weights, a loss gets the outputs of one of them."""

    policy: Tensor = _NOTHING  # float [n, ...], of `Network.actor`
    entropy: Tensor = _NOTHING  # f32 [n], of the policy
    log_ratio: Tensor = _NOTHING  # f32 [n] or [n, A], log-probability of the action, less that of the policy that acted
    proximal_log_ratio: Tensor = _NOTHING  # likewise, less that of the policy that the loss clips around
    value: Tensor = _NOTHING  # f32 [n], or [n, A]
    more: Obs = field(default_factory=dict)  # name -> [n, ...], what else a network with a shared trunk returns


@dataclass(frozen=True)
class Loss:
    """A term of the sum, a mean over rows. Its curve has its name and shows it without the coefficient."""

    name: str
    function: Callable[[Batch, Outputs], Tensor]  # f32 []
    coefficient: float | Callable[[Schedule], float] = 1.0
    of_critic: bool = False  # trains the critic, where policy and critic share no weights


class Part(NamedTuple):
    """What is trained by an optimizer of its own: the policy, the critic, or both with what they share."""

    adam: Adam
    losses: list[Loss]
    policy: bool
    critic: bool
    layer: nn.Parameter | None  # where the length of the gradient of each loss is measured


def parts_of(network: Network, settings: Settings, losses: Sequence[Loss], layer: str) -> list[Part]:
    """One, or two that share no weights. losses: besides those of PPO; layer: the name of a parameter, or empty"""
    every, names = [*ppo_losses(settings), *losses], dict(network.named_parameters())
    if layer and layer not in names:
        raise ConfigError(f"the network has no parameter {layer!r}; it has {', '.join(names)}")
    parts = []
    for critic in (False,) if settings.shared_trunk else (False, True):
        own = [x for name, x in names.items() if settings.shared_trunk or name.startswith("critic") == critic]
        trained = [loss for loss in every if settings.shared_trunk or loss.of_critic == critic]
        if not own:
            raise UserCodeError(
                f"the network has the parameters {', '.join(names)}; without a shared trunk the names of the critic's, "
                "and no others, must begin with critic"
            )
        at = names[layer] if any(x is names.get(layer) for x in own) else None
        of_value = critic or settings.shared_trunk
        parts.append(Part(Adam(own, settings.adam_eps), trained, not critic, of_value, at))
    return parts


def outputs_of(part: Part, network: Network, distribution: Distribution, minibatch: Batch) -> Outputs:
    """Forward n rows through this part of the network."""
    obs, rows = minibatch.obs, minibatch.rows
    if not part.policy:
        return Outputs(value=rows(network.critic(obs)))
    output, value, *more = network(obs) if part.critic else (network.actor(obs), None)
    output, masks = rows(output), {"legal": rows(obs["legal"])} if "legal" in obs else {}
    log_prob, entropy = distribution.log_prob_and_entropy(output, masks, minibatch.raw_action)
    ratios = log_prob - minibatch.log_prob, log_prob - minibatch.proximal_log_prob
    further = {name: rows(x) for name, x in more[0].items()} if more else {}
    return Outputs(output, entropy, *ratios, _NOTHING if value is None else rows(value), further)


def ppo_losses(settings: Settings) -> list[Loss]:
    """The clipped surrogate, the entropy bonus and the critic's error."""

    def policy(minibatch: Batch, outputs: Outputs) -> Tensor:
        # [n], or [A, n] where each number of an action has its own: summed, as log-probabilities are
        log_ratio, advantage = (x.movedim(-1, 0) for x in (outputs.proximal_log_ratio, minibatch.advantage))
        if not settings.decoupled:
            return returns.clipped_policy_loss(log_ratio, advantage, settings.clip).mean(-1).sum()
        log_weight = minibatch.proximal_log_prob - minibatch.log_prob
        return returns.decoupled_policy_loss(
            log_ratio, log_weight, advantage, settings.clip, settings.behaviour_weight_clip
        ).mean()

    def value(minibatch: Batch, outputs: Outputs) -> Tensor:
        new = of_action(outputs.value, minibatch.raw_action) if settings.advantage == "q" else outputs.value
        return returns.value_loss(new, minibatch.target, minibatch.value, settings.value_clip).mean()

    return [
        Loss("policy_loss", policy),
        Loss("entropy", lambda minibatch, outputs: outputs.entropy.mean(), lambda now: -now.entropy_coef),
        Loss("value_loss", value, settings.vf_coef, of_critic=True),
    ]


def of_action(values: Tensor, action: Tensor) -> Tensor:
    """Of values f32 [..., A] of each action those of the action i64 [...]. Raises UserCodeError."""
    if values.dim() != action.dim() + 1 or action.is_floating_point():
        raise UserCodeError("advantage is 'q', which needs actions of one of n, and a critic with a value of each")
    return at_action(values, action)


def by_graph(network: Network, part: Part, minibatch: Batch, distribution: Distribution, now: Schedule) -> Metrics:
    """The gradient of the sum of losses, into the parameters' `grad`, by torch. Returns "loss", the sum, and
    "grad_norm", f32 [], each loss, and the log-ratios f32 [n] if it is the policy's part."""
    outputs = outputs_of(part, network, distribution, minibatch)
    ratios = {"log_ratio": outputs.log_ratio, "proximal_log_ratio": outputs.proximal_log_ratio}
    metrics: Metrics = {name: x.detach() for name, x in ratios.items() if len(x)}
    terms: list[Tensor] = []
    for loss in part.losses:
        value = loss.function(minibatch, outputs)
        if not isinstance(value, Tensor) or value.dim() or (not value.requires_grad and value.isnan()):
            raise UserCodeError(
                f"the loss {loss.name!r} must give one number, f32 [], that depends on what it trains: without a "
                "shared trunk one with of_critic=True trains the critic, by `value`, and others the policy"
            )
        weight = loss.coefficient(now) if callable(loss.coefficient) else loss.coefficient
        terms.append(value if weight == 1.0 else weight * value)
        metrics[loss.name] = value.detach()
        if part.layer is not None:
            (grad,) = torch.autograd.grad(terms[-1], part.layer, retain_graph=True, materialize_grads=True)
            metrics[f"{loss.name}_grad_norm"] = torch.linalg.vector_norm(grad)
    part.adam.zero_grad()
    total = reduce(torch.add, terms)
    total.backward()  # type: ignore[no-untyped-call]
    return {"loss": total.detach(), **metrics, "grad_norm": part.adam.grad_norm()}


def joined(parts: list[Metrics | None]) -> Metrics | None:
    """The metrics of a gradient step from those of its parts: the sum of their losses, the norm of all gradients. None
    if one of them made no step."""
    every = [part for part in parts if part is not None]
    if len(every) < len(parts):
        return None
    whole = {name: value for part in every for name, value in part.items()}
    for part in every[1:]:
        whole |= {"loss": every[0]["loss"] + part["loss"], "grad_norm": every[0]["grad_norm"].hypot(part["grad_norm"])}
    return whole


def nothing_of(part: Part, minibatch: Batch) -> Metrics:
    """What `by_graph` would return for no rows: all of the minibatch's are other ranks' (`group.py`)."""
    names, none = ("loss", "grad_norm", *(loss.name for loss in part.losses)), minibatch.log_prob
    ratios = ("log_ratio", "proximal_log_ratio") if part.policy else ()
    return dict.fromkeys(names, none.new_zeros(())) | dict.fromkeys(ratios, none)


def kl_of(pending: Sequence[Sequence[Future[Metrics | None]]], group: Group) -> float | None:
    """How far the policy was from the one that acted in these gradient steps, in nats; None if none of them was made.
    pending: the parts of each, the policy's first"""
    log_ratios = [step["log_ratio"] for parts in pending if (step := parts[0].result())]
    return float(returns.approx_kl(group.rows(torch.cat(log_ratios)))) if log_ratios else None


def means(steps: Sequence[Metrics | None], clip: float, group: Group) -> dict[str, float]:
    """The mean of each number over the gradient steps, how many were `skipped`, and how far the policy moved: computed
    once from the ratios of all rows, instead of a dozen small operations in each step."""
    made = [step for step in steps if step is not None]
    result = {"skipped": float(len(steps) - len(made))}
    if not made:
        return result
    log_ratio, proximal = (
        group.rows(torch.cat([step[name] for step in made])) for name in ("log_ratio", "proximal_log_ratio")
    )
    found = {name: torch.stack([step[name] for step in made]).mean() for name, x in made[0].items() if x.ndim == 0}
    found |= {
        "approx_kl": returns.approx_kl(log_ratio),
        "clip_fraction": returns.clip_fraction(proximal, clip),
        "ess": returns.effective_sample_size(log_ratio),
    }
    return result | {name: float(value) for name, value in found.items()}
