"""PPO: how to choose actions and how to update, for any network.

An agent (`<algo>/algorithm/agent.py`) makes one `PPO` of its network and calls `act` in `predict` and `update` in
`learn`. An update takes a batch of chunks, estimates advantages (GAE or V-trace) and makes a few passes of
clipped-surrogate gradient steps over its valid rows. The mathematics is in `realm/returns.py`, the settings in
`realm/algorithms/settings.py`, discrete and continuous actions in `realm/algorithms/distributions.py`. An observation
named `legal`, bool [A], is a mask of the legal actions; without it all are legal.
Axes: N rows of a forward pass, B chunks, T steps, R valid rows of a batch, n rows of a minibatch, A actions.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from realm import returns
from realm.algorithms.adam import Adam
from realm.algorithms.distributions import Categorical, Distribution
from realm.algorithms.networks import Obs
from realm.algorithms.settings import Settings
from realm.contract import Array, Arrays, Chunk, Learned

warnings.filterwarnings("ignore", "The given NumPy array is not writable", UserWarning)  # see PPO.tensor

FORWARD_ROWS = 4096  # rows of one forward pass without gradients: enough to be fast, few enough for the cache

Answer = TypeVar("Answer")
Metrics = dict[str, Tensor]  # of a gradient step; f32 [] each, or f32 [n], which `PPO._of_all` reduces


class Network(Protocol):
    """The network that PPO trains. The names of the critic's parameters begin with `critic`."""

    def actor(self, obs: Obs) -> Tensor:
        """What the distribution takes: logits float [n, A], in which illegal actions need not be masked, or means and
        logs of standard deviations, float [n, 2 A]."""
        ...

    def critic(self, obs: Obs) -> Tensor:
        """Values f32 [n]."""
        ...

    def __call__(self, obs: Obs) -> tuple[Tensor, Tensor]:
        """Both at once: for a shared trunk, and for actors that keep values."""
        ...

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]: ...


@dataclass(frozen=True)
class Schedule:
    """The settings that change during training, at one update."""

    lr: float
    entropy_coef: float
    gamma: float


@dataclass(frozen=True)
class Rows:
    """A batch as `update` uses it: its R valid rows, and all observations."""

    obs: Obs  # name -> [B * (T + 1), ...]
    index: Tensor  # i64 [R], where each row's observation is in `obs`
    drawn: Tensor  # i64 [R], or f32 [R, A]: actions as the distribution has drawn them
    log_prob: Tensor  # f32 [R], of the policy that acted
    log_centre: (
        Tensor  # f32 [R], of the policy that the loss clips around: the one that acted, or the one before the update
    )
    value: Tensor  # f32 [R], before the update
    advantage: Tensor  # f32 [R], normalised
    target: Tensor  # f32 [R], for the critic

    def at(self, part: Tensor) -> Rows:
        """The rows `part` (i64 [n]) with their observations alone."""
        index = self.index[part]
        of_rows = (self.drawn, self.log_prob, self.log_centre, self.value, self.advantage, self.target)
        return Rows(
            {name: x.index_select(0, index) for name, x in self.obs.items()},
            torch.arange(len(part), device=part.device),
            *(x.index_select(0, part) for x in of_rows),
        )


@dataclass(frozen=True)
class Loss:
    """The loss of one minibatch, with its metrics."""

    value: Tensor  # f32 []
    metrics: Metrics


class SameThread(Executor):
    """An executor without a thread: it does the work at once."""

    def submit(self, work: Callable[..., Answer], /, *args: Any, **kwargs: Any) -> Future[Answer]:
        done: Future[Answer] = Future()
        done.set_result(work(*args, **kwargs))
        return done


class PPO:
    """Trains `network`: all of its state besides the weights is in `state_dict`."""

    def __init__(
        self,
        network: Network,
        settings: Settings,
        device: torch.device,
        seed: int,
        distribution: Distribution | None = None,
    ) -> None:
        """distribution: that of the action space; None: of discrete actions."""
        self.network, self.settings, self.device = network, settings, device
        self.distribution: Distribution = distribution or Categorical()
        self.generator = torch.Generator().manual_seed(seed)  # draws actions, shuffles rows
        parts: dict[bool, list[nn.Parameter]] = {False: [], True: []}  # the policy's, and what it shares; the critic's
        for name, parameter in network.named_parameters():
            parts[name.startswith("critic") and not settings.shared_trunk].append(parameter)
        self.optimizers = [Adam(part, settings.adam_eps) for part in parts.values() if part]
        self.second: Executor = SameThread()  # a second thread within `two_threads`
        self.env_steps = 0  # valid rows learned from, each counted once however many epochs
        self.updates = 0  # the version of the weights, within an epoch
        self.moved_on = False  # the weights are no longer those that went out as this version

    # ---- acting ----

    @torch.inference_mode()
    def act(self, obs: Arrays, explore: Array, network: Network | None = None) -> tuple[Array, Arrays]:
        """Choose an action for each row: sampled from the policy where explore is 1, the most likely where it is 0.

        obs: name -> [N, ...]; explore: f32 [N]; network: acts in place of the one that is trained
        Returns action i64 [N] or f32 [N, A], and extra: its log_prob f32 [N], `drawn` f32 [N, A] if it is continuous,
        and value f32 [N] if `value_source` is "actor".
        """
        seen = {name: self.tensor(array) for name, array in obs.items()}
        network = network or self.network
        if self.settings.value_source == "actor":
            outputs, value = network(seen)
            extra = {"value": value.cpu().numpy()}
        else:
            outputs, extra = network.actor(seen), {}
        action, own = self.distribution.act(outputs, seen, explore, self.generator)
        return action, {**own, **extra}

    def greedy(self, obs: Obs, network: Network | None = None) -> Obs:
        """The most likely legal action of `act`, and if it is discrete the logits f32 [N, A], -inf where an action is
        illegal, by torch alone (`contract.Agent`)."""
        return self.distribution.greedy((network or self.network).actor(obs), obs)

    # ---- learning ----

    def update(self, batch: Chunk) -> Generator[None, bool, Learned]:
        """Learn from B chunks of T steps. Returns metrics (means over the gradient steps) and no priorities.

        Yields after half of the gradient steps, as `contract.Agent.learn` may. A network whose loss or gradient is not
        finite leaves that gradient step out, which is counted as `skipped`.
        """
        settings, now = self.settings, self.schedule()
        steps: list[Metrics | None] = []
        with self.two_threads():
            rows = self.rows(batch, now, older=self.moved_on or bool((batch.version[..., 1] != self.updates).any()))
            count = len(rows.index)
            minibatches = self._minibatches(rows)
            first_half = islice(minibatches, (settings.epochs * self._of_a_pass(count) + 1) // 2)
            for half in (first_half, minibatches):
                pending: list[tuple[Metrics | None, Future[Metrics | None]]] = []
                for minibatch in half:
                    if settings.shared_trunk:
                        steps.append(self._joint_step(minibatch, now))
                        continue
                    # they share no weights: the critic makes its steps in another thread, and neither waits
                    critic = self.second.submit(self._critic_step, minibatch, now)
                    outputs = self.network.actor(minibatch.obs)
                    loss = policy_loss(minibatch, outputs, self.distribution, settings, now.entropy_coef)
                    pending.append((self._descend(self.optimizers[0], loss, now.lr), critic))
                steps += [_of_both(policy, critic.result()) for policy, critic in pending]
                if half is first_half:
                    self.env_steps, self.updates, self.moved_on = self.env_steps + count, self.updates + 1, False
                    self.moved_on = yield
        made = [step for step in steps if step is not None]
        result = dataclasses.asdict(now) | {"skipped": float(len(steps) - len(made)), "rows": float(count)}
        if made:
            result |= {name: float(value) for name, value in self._of_all(made).items()}
        if count:
            result["explained_variance"] = float(returns.explained_variance(rows.value, rows.target))
            result["value_mean"] = float(rows.value.mean())
            result["reward_mean"] = float(np.mean(batch.reward, where=batch.valid))
        return result, None

    def schedule(self) -> Schedule:
        """Interpolate the settings `*_start` and `*_end` at the steps learned from so far."""
        settings = self.settings
        progress = min(1.0, self.env_steps / settings.total_env_steps)

        def between(start: float, end: float) -> float:
            return start + progress * (end - start)

        return Schedule(
            lr=between(settings.lr_start, settings.lr_end),
            entropy_coef=between(settings.entropy_start, settings.entropy_end),
            gamma=1.0 - (1.0 - settings.gamma_start) ** (1.0 - progress) * (1.0 - settings.gamma_end) ** progress,
        )

    def _of_a_pass(self, count: int) -> int:
        """The number of minibatches in `count` rows."""
        return max(1, round(count / self.settings.minibatch_size))

    def _minibatches(self, rows: Rows) -> Iterator[Rows]:
        """Each row once an epoch, in random order; the second thread gathers a minibatch while the first trains."""
        count = len(rows.index)
        if not count:
            return
        epochs = range(self.settings.epochs)
        orders = [torch.randperm(count, generator=self.generator).to(self.device) for _ in epochs]
        parts = [part for order in orders for part in order.tensor_split(self._of_a_pass(count))]
        ahead = self.second.submit(rows.at, parts[0])
        for part in parts[1:]:
            minibatch, ahead = ahead.result(), self.second.submit(rows.at, part)
            yield minibatch
        yield ahead.result()

    def _of_all(self, steps: list[Metrics]) -> Metrics:
        """The mean of each number over the gradient steps, and how far the policy moved: computed once from the ratios
        of all rows, instead of a dozen small operations in each step. f32 [] each."""
        log_ratio, log_clipped = (torch.cat([one[name] for one in steps]) for name in ("log_ratio", "log_clipped"))
        means = {name: torch.stack([one[name] for one in steps]).mean() for name, x in steps[0].items() if x.ndim == 0}
        return means | {
            "approx_kl": returns.approx_kl(log_ratio),
            "clip_fraction": returns.clip_fraction(log_clipped, self.settings.clip),
            "ess": returns.effective_sample_size(log_ratio),
        }

    def _critic_step(self, rows: Rows, now: Schedule) -> Metrics | None:
        if not torch.isfinite(rows.advantage).all():
            return None  # the policy skips it, too: whatever spoiled these advantages spoiled targets of the batch
        return self._descend(self.optimizers[1], value_loss(rows, self.network.critic(rows.obs), self.settings), now.lr)

    def _joint_step(self, rows: Rows, now: Schedule) -> Metrics | None:
        outputs, value = self.network(rows.obs)
        policy = policy_loss(rows, outputs, self.distribution, self.settings, now.entropy_coef)
        critic = value_loss(rows, value, self.settings)
        loss = Loss(policy.value + critic.value, {**policy.metrics, **critic.metrics})
        return self._descend(self.optimizers[0], loss, now.lr)

    def _descend(self, optimizer: Adam, loss: Loss, lr: float) -> Metrics | None:
        """One step of Adam. Returns the metrics, or None without a step where loss or gradient is not finite."""
        optimizer.zero_grad()
        loss.value.backward()  # type: ignore[no-untyped-call]
        grad_norm, value = optimizer.grad_norm(), loss.value.detach()
        if not torch.isfinite(value + grad_norm):
            return None
        optimizer.step(lr, (grad_norm / self.settings.max_grad_norm).clamp(min=1.0))
        return {"loss": value, **loss.metrics, "grad_norm": grad_norm}

    def side_by_side(self, of_policy: Callable[[], Answer], of_critic: Callable[[], Answer]) -> tuple[Answer, Answer]:
        """Call both, at the same time within `two_threads`, and return both results."""
        critic = self.second.submit(of_critic)
        return of_policy(), critic.result()

    @contextmanager
    def two_threads(self) -> Iterator[None]:
        """Give the critic a thread of its own, and each of the two threads half of torch's threads, if torch has two.

        Policy and critic share no weights, so neither waits for the other. OpenMP's threads, which split each
        operation, would meet a hundred times in a gradient step.
        """
        threads = torch.get_num_threads()
        if threads == 1 or self.settings.shared_trunk or self.device.type != "cpu":
            yield
            return
        torch.set_num_threads(threads - threads // 2)
        try:
            with ThreadPoolExecutor(1, "critic", torch.set_num_threads, (threads // 2,)) as self.second:
                yield
        finally:
            self.second = SameThread()
            torch.set_num_threads(threads)

    # ---- from a batch to rows ----

    @torch.no_grad()
    def rows(self, batch: Chunk, now: Schedule, older: bool) -> Rows:
        """Put a batch on the device and estimate its advantages. older: an older policy chose some of the actions."""
        settings, network = self.settings, self.network
        obs = {name: self.tensor(array) for name, array in batch.obs.items()}
        reward, valid = self.tensor(batch.reward), self.tensor(batch.valid)
        of_learner = settings.value_source == "learner"
        of_critic = obs if of_learner else {name: x[:, -1:] for name, x in obs.items()}
        older = older and (settings.decoupled or settings.advantage == "vtrace")
        if older:
            outputs, value = self.side_by_side(
                lambda: self.forward(obs, network.actor), lambda: self.forward(of_critic, network.critic)
            )
        else:
            outputs, value = torch.empty(0), self._forward_halves(of_critic, network.critic)
        if not of_learner:
            value = torch.cat([self.tensor(batch.extra["value"]), value], dim=1)
        chunk, step = valid.nonzero(as_tuple=True)
        index = chunk * (reward.shape[1] + 1) + step
        flat = {name: x.flatten(0, 1) for name, x in obs.items()}
        drawn = self.tensor(self.distribution.drawn(batch))[valid]
        log_prob = log_centre = self.tensor(batch.extra["log_prob"])[valid]
        if older:
            legal = {"legal": flat["legal"][index]} if "legal" in flat else {}
            log_centre = self.distribution.log_prob(outputs.flatten(0, 1)[index], legal, drawn)
        ends = self.tensor(batch.terminated), self.tensor(batch.truncated), valid
        own = batch.step.get("discount")  # where the workflow says that steps differ in duration
        discount = None if own is None else self.tensor(own)
        if settings.advantage == "vtrace":
            log_ratio = torch.zeros_like(reward)  # rows that are not valid have no action
            log_ratio[valid] = log_centre - log_prob
            advantage, target = returns.vtrace(
                reward, value, log_ratio, *ends, now.gamma, settings.lam, discount=discount
            )
        else:
            advantage, target = returns.gae(reward, value, *ends, now.gamma, settings.lam, discount=discount)
        return Rows(
            obs=flat,
            index=index,
            drawn=drawn,
            log_prob=log_prob,
            log_centre=log_centre,
            value=value[:, :-1][valid],
            advantage=_normalise(advantage[valid], settings.normalise_advantage),
            target=target[valid],
        )

    @torch.no_grad()  # again: it holds for one thread only
    def forward(self, obs: Obs, net: Callable[[Obs], Tensor]) -> Tensor:
        """Apply `net` to obs name -> [B, K, ...] in parts of FORWARD_ROWS; returns [B, K, ...]."""
        parts = zip(*(torch.split(x.flatten(0, 1), FORWARD_ROWS) for x in obs.values()), strict=True)
        result = torch.cat([net(dict(zip(obs, part, strict=True))) for part in parts])
        return result.view(*next(iter(obs.values())).shape[:2], *result.shape[1:])

    def _forward_halves(self, obs: Obs, net: Callable[[Obs], Tensor]) -> Tensor:
        """`forward`, half of the chunks in each thread."""
        half = len(next(iter(obs.values()))) // 2
        if half == 0:
            return self.forward(obs, net)
        head, tail = ({name: x[part] for name, x in obs.items()} for part in (slice(half), slice(half, None)))
        return torch.cat(self.side_by_side(lambda: self.forward(head, net), lambda: self.forward(tail, net)))

    def tensor(self, array: Array) -> Tensor:
        """The array on the device. On a CPU it is not copied, even if it is read-only: nobody writes into it."""
        return torch.from_numpy(np.require(array, requirements="A")).to(self.device)

    # ---- resuming ----

    def state_dict(self) -> dict[str, Any]:
        """The state that a resume needs besides the weights: tensors and plain numbers."""
        return {
            "optimizers": [one.state_dict() for one in self.optimizers],
            "generator": self.generator.get_state(),
            "env_steps": self.env_steps,
            "updates": self.updates + self.moved_on,  # weights that have moved on are saved as the next version
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.generator.set_state(state["generator"])
        # a return to a checkpoint within a process does not take numbers back: its weights get the next one
        self.updates = max(self.updates + self.moved_on, state["updates"])
        self.env_steps, self.moved_on = state["env_steps"], False


# ---- the losses of a minibatch ----


def policy_loss(
    rows: Rows, outputs: Tensor, distribution: Distribution, settings: Settings, entropy_coef: float
) -> Loss:
    """PPO's surrogate with the entropy bonus, of n rows. outputs: of `Network.actor`, [n, ...]"""
    log_prob, entropies = distribution.log_prob_and_entropy(outputs, rows.obs, rows.drawn)
    log_ratio = log_prob - rows.log_prob  # to the policy that acted
    clipped = log_prob - rows.log_centre  # the same, or to the policy before the update
    if settings.decoupled:
        log_weight = rows.log_centre - rows.log_prob
        loss = returns.decoupled_policy_loss(
            clipped, log_weight, rows.advantage, settings.clip, settings.behaviour_weight_clip
        ).mean()
    else:
        loss = returns.clipped_policy_loss(clipped, rows.advantage, settings.clip).mean()
    entropy = entropies.mean()
    known = {"policy_loss": loss, "entropy": entropy, "log_ratio": log_ratio, "log_clipped": clipped}
    return Loss(loss - entropy_coef * entropy, {name: x.detach() for name, x in known.items()})


def value_loss(rows: Rows, value: Tensor, settings: Settings) -> Loss:
    """The critic's loss of n rows. value: f32 [n]"""
    loss = returns.value_loss(value, rows.target, rows.value, settings.value_clip).mean()
    return Loss(settings.vf_coef * loss, {"value_loss": loss.detach()})


def _of_both(policy: Metrics | None, critic: Metrics | None) -> Metrics | None:
    """Join the metrics of two networks in a gradient step: the sum of their losses, the norm of both gradients."""
    if policy is None or critic is None:
        return None
    of_both = {"loss": policy["loss"] + critic["loss"], "grad_norm": policy["grad_norm"].hypot(critic["grad_norm"])}
    return {**policy, **critic, **of_both}


def _normalise(advantage: Tensor, how: str) -> Tensor:
    """advantage: f32 [R]; see `Settings.normalise_advantage`."""
    if how == "none" or len(advantage) < 2:
        return advantage
    centred = advantage - advantage.mean() if how == "mean_std" else advantage
    return centred / (advantage.std() + 1e-8)
