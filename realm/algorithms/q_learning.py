"""Q-learning with a network (DQN, Mnih et al. 2015), for discrete actions: double, dueling, noisy, n-step, prioritised.

An agent makes one `QLearning` of its network and calls `act` in `predict` and `update` in `learn`. Its batch is
`Transitions`; n steps come with it (`Draw.n_step`), and so does prioritised drawing (`reverb_sampler = "Prioritized"`).
An observation named `legal`, bool [A], is a mask of the legal actions; without it all are legal.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from realm.algorithms.adam import Adam
from realm.algorithms.networks import Obs, frozen_copy
from realm.algorithms.rows import Drawn, priorities_of, row_weights, to_rows
from realm.algorithms.settings import QSettings, between
from realm.contract import Array, Arrays, Learned, SampleInfo, Transitions

PASS_STEPS = 8  # gradient steps whose rows the target network sees in one pass


class QNetwork(Protocol):
    """What Q-learning trains: a torch module."""

    def values(self, obs: Obs) -> Tensor:
        """The value of each action, f32 [n, A]."""


class Dueling(nn.Module):
    """A head that adds up a state's value and each action's advantage (Wang et al. 2016, arXiv:1511.06581, eq. 9)."""

    def __init__(self, inputs: int, actions: int, linear: type[nn.Module] = nn.Linear) -> None:
        super().__init__()
        self.value, self.advantage = linear(inputs, 1), linear(inputs, actions)

    def forward(self, x: Tensor) -> Tensor:
        """x: f32 [n, inputs]. Returns f32 [n, actions]."""
        advantage = self.advantage(x)
        out: Tensor = self.value(x) + advantage - advantage.mean(-1, keepdim=True)
        return out


class NoisyLinear(nn.Module):
    """A linear layer with learned, factorised Gaussian noise (Fortunato et al. 2018, arXiv:1706.10295, section 3).

    `draw_noise` draws new noise; without it, or after `quiet`, the layer uses its means.
    """

    def __init__(self, inputs: int, outputs: int, sigma: float = 0.5) -> None:
        super().__init__()
        bound = 1 / math.sqrt(inputs)
        self.weight = nn.Parameter(torch.empty(outputs, inputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(outputs).uniform_(-bound, bound))
        self.weight_sigma = nn.Parameter(torch.full((outputs, inputs), sigma * bound))
        self.bias_sigma = nn.Parameter(torch.full((outputs,), sigma * bound))
        self._noise: tuple[Tensor, Tensor] | None = None

    def draw_noise(self, generator: torch.Generator) -> None:
        def scaled(size: int) -> Tensor:
            x = torch.randn(size, generator=generator).to(self.weight.device)
            return x.sign() * x.abs().sqrt()

        self._noise = scaled(self.weight.shape[1]), scaled(self.weight.shape[0])

    def quiet(self) -> None:
        self._noise = None

    def forward(self, x: Tensor) -> Tensor:
        """x: f32 [n, inputs]. Returns f32 [n, outputs]."""
        if self._noise is None:
            return functional.linear(x, self.weight, self.bias)
        into, out = self._noise
        weight = torch.addcmul(self.weight, self.weight_sigma, torch.outer(out, into))
        return functional.linear(x, weight, torch.addcmul(self.bias, self.bias_sigma, out))


def targets(
    reward: Tensor, discount: Tensor, target_values: Tensor, own_values: Tensor | None, legal: Tensor | None
) -> Tensor:
    """r + discount * the target network's value of the best legal next action, f32 [n].

    target_values f32 [n, A] of the next state; own_values: the trained network's, which chooses the action (double
    Q-learning, van Hasselt et al. 2016, eq. 4), None: the target chooses, too. `discount` is 0 where the episode
    terminated, and not where a time limit ended it.
    """
    choosing = target_values if own_values is None else own_values
    if legal is not None:
        choosing = choosing.masked_fill(~legal, -torch.inf)
    best = target_values.gather(1, choosing.argmax(1, keepdim=True)).squeeze(1)
    return torch.addcmul(reward, discount, best)


def loss_gradient(error: Tensor, weight: Tensor, huber: float) -> Tensor:
    """The gradient of the mean of weight * loss by error, f32 [n]: the error, cut at `huber` on both sides.

    error: f32 [n], value - target; weight: f32 [n]. huber: where the loss 0.5 error^2 becomes linear (the clipped error
    of Mnih et al. 2015); 0: nowhere, and the loss is error^2.
    """
    return weight * (error.clamp(-huber, huber) if huber else 2 * error) / len(error)


def loss_value(error: Tensor, weight: Tensor, huber: float) -> Tensor:
    """The loss whose gradient `loss_gradient` is, f32 []."""
    zero = torch.zeros_like(error)
    losses = functional.huber_loss(error, zero, reduction="none", delta=huber) if huber else error.square()
    return (weight * losses).mean()


class QLearning:
    """Trains `network`: all of its state besides the weights is in `state_dict`."""

    def __init__(self, network: QNetwork, settings: QSettings, device: torch.device, seed: int) -> None:
        self.network, self.settings, self.device = network, settings, device
        self.module: nn.Module = network  # type: ignore[assignment]
        self.target = frozen_copy(network)
        self.target_module: nn.Module = self.target  # type: ignore[assignment]
        self.noisy, self.target_noisy = (
            [one for one in module.modules() if isinstance(one, NoisyLinear)]
            for module in (self.module, self.target_module)
        )
        self.adam = Adam(self.module.parameters(), 1e-8)
        self.generator = torch.Generator().manual_seed(seed)  # explores, draws the noise of layers
        self.steps, self.lr = 0, settings.lr  # gradient steps

    @torch.inference_mode()
    def act(self, obs: Arrays, explore: Array, env_steps: int) -> Array:
        """Actions i64 [N]: the best one, or a random legal one with the probability epsilon * explore f32 [N].

        A network with noisy layers explores by its noise, and then epsilon is 0.
        """
        own, legal = self.settings, obs.get("legal")
        seen = {name: torch.as_tensor(array, device=self.device) for name, array in obs.items()}
        values = self._values(seen, explore > 0)
        score = values if legal is None else np.where(legal, values, -np.inf)
        action = score.argmax(1)
        epsilon = 0.0 if self.noisy else between(own.epsilon_start, own.epsilon_end, own.epsilon_steps, env_steps)
        random = torch.rand(values.shape, generator=self.generator).numpy()
        random = random if legal is None else np.where(legal, random, -1.0)
        roll = torch.rand(len(action), generator=self.generator).numpy() < epsilon * explore
        return np.where(roll, random.argmax(1), action).astype(np.int64)

    def _values(self, obs: Obs, loud: Array) -> Array:
        """The value of each action, f32 [N, A], with the noise of layers in the rows where loud, bool [N]."""
        some = bool(self.noisy) and bool(loud.any())
        for layer in self.noisy:
            layer.draw_noise(self.generator) if some else layer.quiet()
        values: Array = self.network.values(obs).cpu().numpy()
        if not some or loud.all():
            return values
        return np.where(loud[:, None], values, self._values(obs, np.zeros_like(loud)))

    def greedy(self, obs: Obs) -> Obs:
        """The best legal action i64 [N], and the values f32 [N, A] of all, -inf where illegal, by torch alone
        (`contract.Agent`)."""
        for layer in self.noisy:
            layer.quiet()
        values = self.network.values(obs)
        if "legal" in obs:
            values = values.masked_fill(~obs["legal"], -torch.inf)
        return {"action": values.argmax(-1), "values": values}

    def update(self, batch: Transitions, info: SampleInfo) -> Learned:
        """Gradient steps over parts of the batch, in the order drawn; returns each row's |TD error| as its priority."""
        own, errors, values, norms = self.settings, [], [], []
        self.lr = own.lr_at(info.env_steps)
        if self.steps == 0:  # the network may have got other weights since (preload_model)
            self.target_module.load_state_dict(self.module.state_dict())
        rows = to_rows(batch, batch.action, row_weights(info, own), self.device)
        end = 0
        while end < len(rows.weight):
            # the target stays as it is until it becomes the network: one pass over some of the rows until then
            begin, end = end, end + own.minibatch_size * self._ahead()
            ahead = rows.at(slice(begin, end))
            after = self._values_after(ahead)
            for part in ahead.parts(own.minibatch_size):
                error, value, norm = self.step(ahead.at(part), after[part])
                errors.append(error)
                values.append(value)
                norms.append(norm)
        error = torch.cat(errors)
        metrics = {
            "loss": loss_value(error, rows.weight, own.huber),
            "value": torch.cat(values).mean(),
            "grad_norm": torch.stack(norms).mean(),
        }
        return {name: float(value) for name, value in metrics.items()} | {"lr": self.lr}, priorities_of([error])

    def _ahead(self) -> int:
        """Gradient steps until the target changes, at most PASS_STEPS; noise is drawn for each step."""
        every = self.settings.target_every
        return 1 if self.noisy else min(PASS_STEPS, every - self.steps % every)

    @torch.no_grad()
    def _values_after(self, rows: Drawn) -> Tensor:
        """The target's values of the next states, f32 [n, A]."""
        for layer in self.target_noisy:
            layer.draw_noise(self.generator)
        return self.target.values(rows.next_obs)

    def step(self, rows: Drawn, after: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """One gradient step; after: f32 [n, A], the target's values of next_obs.

        Returns the TD errors and the values, f32 [n], and the norm of the gradient f32 [].
        """
        own, action = self.settings, rows.action.unsqueeze(1)
        for layer in self.noisy:
            layer.draw_noise(self.generator)
        values = self.network.values(rows.obs)
        with torch.no_grad():
            own_values = self.network.values(rows.next_obs) if own.double else None
            goal = targets(rows.reward, rows.discount, after, own_values, rows.next_obs.get("legal"))
            value = values.gather(1, action).squeeze(1)
            error = value - goal
            gradient = loss_gradient(error, rows.weight, own.huber).unsqueeze(1)
            of_values = torch.zeros_like(values).scatter_(1, action, gradient)
        self.adam.zero_grad()
        values.backward(of_values)  # type: ignore[no-untyped-call]
        norm = self.adam.grad_norm()
        self.adam.step(self.lr, (norm / own.max_grad_norm).clamp(min=1.0) if own.max_grad_norm else None)
        self.steps += 1
        if self.steps % own.target_every == 0:
            self.target_module.load_state_dict(self.module.state_dict())
        return error, value, norm

    def state_dict(self) -> dict[str, Any]:
        """The state that a resume needs besides the weights: tensors and plain numbers."""
        return {
            "target": {name: one.cpu().clone() for name, one in self.target_module.state_dict().items()},
            "adam": self.adam.state_dict(),
            "generator": self.generator.get_state(),
            "steps": self.steps,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.target_module.load_state_dict(state["target"])
        self.adam.load_state_dict(state["adam"])
        self.generator.set_state(state["generator"])
        self.steps = state["steps"]
