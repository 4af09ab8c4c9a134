"""PPO: how actions are chosen and what an update is. Lives where weights live (actor, learner, evaluator).

`predict` answers observations with actions; `learn` takes a batch of chunks, estimates advantages (GAE or V-trace) and
makes a few passes of clipped-surrogate gradient steps over its valid rows. The mathematics is in `realm/returns.py`.
Axes: N rows of a forward pass, B chunks, T steps, R valid rows of a batch, n rows of a minibatch, A actions.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from diy.algorithm.adam import Adam
from diy.algorithm.choose import choose
from diy.algorithm.model import Player, make_model
from diy.config import Config
from realm import returns
from realm.contract import Array, Arrays, Chunk, Learned, PredictContext, SampleInfo, Spec

warnings.filterwarnings("ignore", "The given NumPy array is not writable", UserWarning)  # see Agent._tensor

FEW_ROWS = 512  # small MLPs: a forward pass of so few takes less time than waking a second thread for it
FORWARD_ROWS = 4096  # rows of one forward pass without gradients: enough to be fast, few enough to stay in cache

Answer = TypeVar("Answer")
Metrics = dict[str, Tensor]  # of a gradient step; f32 [] each, but for what `Agent._of_all` makes of its n rows


@dataclass(frozen=True)
class Schedule:
    """What changes while training goes on, at one update."""

    lr: float
    entropy_coef: float
    gamma: float


@dataclass(frozen=True)
class Rows:
    """A batch as `learn` uses it: what belongs to its R valid rows, and all observations."""

    obs: dict[str, Tensor]  # name -> [B * (T + 1), ...]
    index: Tensor  # i64 [R], where each row's observation is in `obs`
    action: Tensor  # i64 [R]
    log_prob: Tensor  # f32 [R], of the policy that acted
    log_centre: Tensor  # f32 [R], of the policy the loss clips around: that acted, or that was before the update
    value: Tensor  # f32 [R], before the update
    advantage: Tensor  # f32 [R], normalised
    target: Tensor  # f32 [R], for the critic

    def at(self, part: Tensor) -> Rows:
        """The rows `part` (i64 [n]) with their observations alone."""
        index = self.index[part]
        of_rows = (self.action, self.log_prob, self.log_centre, self.value, self.advantage, self.target)
        return Rows(
            {name: x.index_select(0, index) for name, x in self.obs.items()},
            torch.arange(len(part), device=part.device),
            *(x.index_select(0, part) for x in of_rows),
        )


@dataclass(frozen=True)
class Loss:
    """Of one minibatch, and what else is known of it."""

    value: Tensor  # f32 []
    metrics: Metrics


class Here(Executor):
    """An executor without a thread: what is submitted is done at once."""

    def submit(self, work: Callable[..., Answer], /, *args: Any, **kwargs: Any) -> Future[Answer]:
        done: Future[Answer] = Future()
        done.set_result(work(*args, **kwargs))
        return done


class Agent:
    """Implements `realm.contract.Agent`: all it knows is in `model` and in what `save_model` gives."""

    def __init__(self, spec: Spec, config: Config, device: str, seed: int) -> None:
        self.config = config
        self.device = torch.device(device)
        with torch.random.fork_rng(devices=[]):  # the first weights depend on the seed alone
            torch.manual_seed(seed)
            self.model: nn.Module = make_model(spec, config, _use_bf16(config.precision, self.device)).to(self.device)
        self.player = Player(self.model)
        self.generator = torch.Generator().manual_seed(seed)  # draws actions, shuffles rows
        parts: dict[bool, list[nn.Parameter]] = {False: [], True: []}  # the policy's, and what it shares; the critic's
        for name, parameter in self.model.named_parameters():
            parts[name.startswith("critic") and not config.shared_trunk].append(parameter)
        self.optimizers = [Adam(part, config.adam_eps) for part in parts.values() if part]
        self.beside: Executor = Here()  # does what can be done at the same time; see `_two_threads`
        self.env_steps = 0  # valid rows learned from, each counted once however many epochs
        self.updates = 0  # the version of the weights, within an epoch
        self.moved_on = False  # the weights are no longer those that went out as this version

    # ---- acting ----

    @torch.inference_mode()
    def predict(self, obs: Arrays, context: PredictContext) -> tuple[Array, Arrays]:
        """Choose an action for each row: drawn from the policy where explore is 1, the most likely where it is 0.

        obs: name -> [N, ...]
        Returns action i64 [N] and extra: log_prob f32 [N] of that action, and value f32 [N] if it is asked for.
        """
        with _one_thread_if(self.config.features == "small" and len(context.first) <= FEW_ROWS):
            return self._predict(obs, context)

    def _predict(self, obs: Arrays, context: PredictContext) -> tuple[Array, Arrays]:
        seen = {name: self._tensor(array) for name, array in obs.items()}
        model: Any = self.player.model()
        if self.config.value_source == "actor":
            logits, value = model(seen)
            extra = {"value": value.cpu().numpy()}
        else:
            logits, extra = model.actor(seen), {}
        rows = len(logits)
        action, log_prob = np.empty(rows, np.int64), np.empty(rows, np.float32)
        uniform = torch.rand(rows, generator=self.generator).numpy()
        legal = seen["legal"].cpu().numpy()
        choose(logits.cpu().numpy(), legal, context.explore.astype(np.float32), uniform, action, log_prob)
        return action, {"log_prob": log_prob, **extra}

    # ---- learning ----

    def learn(self, batch: Chunk, info: SampleInfo) -> Generator[None, bool, Learned]:
        """One update on B chunks of T steps. Returns its metrics (means over the gradient steps) and no priorities.

        Yields after half of the gradient steps. A network whose loss or gradient is not finite leaves that gradient
        step out, which is counted as `skipped`.
        """
        now = self._now()
        with self._two_threads():
            rows = self._rows(batch, now, older=self.moved_on or bool((batch.version[..., 1] != self.updates).any()))
            count = len(rows.index)
            minibatches = self._minibatches(rows)
            steps = self._gradient_steps(islice(minibatches, self.config.epochs * self._of_a_pass(count) // 2), now)
            self.env_steps += count
            self.updates += 1
            self.moved_on = False
            self.moved_on = yield
            steps += self._gradient_steps(minibatches, now)
        self.player.outdate()
        made = [step for step in steps if step is not None]
        result = dataclasses.asdict(now) | {"skipped": float(len(steps) - len(made)), "rows": float(count)}
        if made:
            result |= {name: float(value) for name, value in self._of_all(made).items()}
        if count:
            result["explained_variance"] = float(returns.explained_variance(rows.value, rows.target))
            result["value_mean"] = float(rows.value.mean())
            result["reward_mean"] = float(np.mean(batch.reward, where=batch.valid))
        return result, None

    def _now(self) -> Schedule:
        """What the fields `*_start` and `*_end` of the config say for the steps learned from so far."""
        config = self.config
        progress = min(1.0, self.env_steps / config.total_env_steps)

        def between(start: float, end: float) -> float:
            return start + progress * (end - start)

        return Schedule(
            lr=between(config.lr_start, config.lr_end),
            entropy_coef=between(config.entropy_start, config.entropy_end),
            gamma=1.0 - (1.0 - config.gamma_start) ** (1.0 - progress) * (1.0 - config.gamma_end) ** progress,
        )

    def _of_a_pass(self, count: int) -> int:
        """How many minibatches `count` rows are."""
        return max(1, round(count / self.config.minibatch_size))

    def _minibatches(self, rows: Rows) -> Iterator[Rows]:
        """Each row once an epoch, in random order; each minibatch is gathered beside the step on the one before."""
        count = len(rows.index)
        if not count:
            return
        orders = [torch.randperm(count, generator=self.generator).to(self.device) for _ in range(self.config.epochs)]
        parts = [part for order in orders for part in order.tensor_split(self._of_a_pass(count))]
        ahead = self.beside.submit(rows.at, parts[0])
        for part in parts[1:]:
            minibatch, ahead = ahead.result(), self.beside.submit(rows.at, part)
            yield minibatch
        yield ahead.result()

    def _gradient_steps(self, minibatches: Iterable[Rows], now: Schedule) -> list[Metrics | None]:
        """A step of policy and critic on each minibatch. Returns the metrics of each; None where one was left out.

        They share no weights unless the trunk is shared, so the critic's steps are made beside the policy's, which wait
        for none of them.
        """
        if self.config.shared_trunk:
            return [self._joint_step(rows, now) for rows in minibatches]
        made: list[tuple[Metrics | None, Future[Metrics | None]]] = []
        for rows in minibatches:
            critic = self.beside.submit(self._critic_step, rows, now)
            made.append((self._policy_step(rows, now), critic))
        return [_of_both(policy, critic.result()) for policy, critic in made]

    def _of_all(self, steps: list[Metrics]) -> Metrics:
        """The mean of each number over the gradient steps; and from the ratios of all rows, once for all steps instead
        of a dozen small operations in each, how far the policy went. f32 [] each."""
        log_ratio, log_clipped = (torch.cat([one[name] for one in steps]) for name in ("log_ratio", "log_clipped"))
        means = {name: torch.stack([one[name] for one in steps]).mean() for name, x in steps[0].items() if x.ndim == 0}
        return means | {
            "approx_kl": returns.approx_kl(log_ratio),
            "clip_fraction": returns.clip_fraction(log_clipped, self.config.clip),
            "ess": returns.effective_sample_size(log_ratio),
        }

    def _policy_step(self, rows: Rows, now: Schedule) -> Metrics | None:
        model: Any = self.model
        loss = self._policy_loss(rows, model.actor(rows.obs), now.entropy_coef)
        return self._descend(self.optimizers[0], loss, now.lr)

    def _critic_step(self, rows: Rows, now: Schedule) -> Metrics | None:
        if not torch.isfinite(rows.advantage).all():
            return None  # as the policy's: what spoiled these advantages spoiled targets of the batch, too
        model: Any = self.model
        return self._descend(self.optimizers[1], self._value_loss(rows, model.critic(rows.obs)), now.lr)

    def _joint_step(self, rows: Rows, now: Schedule) -> Metrics | None:
        logits, value = self.model(rows.obs)
        policy, critic = self._policy_loss(rows, logits, now.entropy_coef), self._value_loss(rows, value)
        loss = Loss(policy.value + critic.value, {**policy.metrics, **critic.metrics})
        return self._descend(self.optimizers[0], loss, now.lr)

    def _descend(self, optimizer: Adam, loss: Loss, lr: float) -> Metrics | None:
        """One step of Adam. Returns the metrics, or None where loss or gradient is not finite: then it is left out."""
        optimizer.zero_grad()
        loss.value.backward()  # type: ignore[no-untyped-call]
        grad_norm, value = optimizer.grad_norm(), loss.value.detach()
        if not torch.isfinite(value + grad_norm):
            return None
        optimizer.step(lr, (grad_norm / self.config.max_grad_norm).clamp(min=1.0))
        return {"loss": value, **loss.metrics, "grad_norm": grad_norm}

    def _policy_loss(self, rows: Rows, logits: Tensor, entropy_coef: float) -> Loss:
        """PPO's surrogate with the entropy bonus, of n rows."""
        config = self.config
        log_probs = returns.masked_log_softmax(logits, rows.obs["legal"])
        log_prob = log_probs.gather(-1, rows.action.unsqueeze(-1)).squeeze(-1)
        log_ratio = log_prob - rows.log_prob  # to the policy that acted
        clipped = log_prob - rows.log_centre  # the same, or to the policy before the update
        if config.decoupled:
            log_weight = rows.log_centre - rows.log_prob
            loss = returns.decoupled_policy_loss(
                clipped, log_weight, rows.advantage, config.clip, config.behaviour_weight_clip
            ).mean()
        else:
            loss = returns.clipped_policy_loss(clipped, rows.advantage, config.clip).mean()
        entropy = returns.entropy(log_probs).mean()
        known = {"policy_loss": loss, "entropy": entropy, "log_ratio": log_ratio, "log_clipped": clipped}
        return Loss(loss - entropy_coef * entropy, {name: x.detach() for name, x in known.items()})

    def _value_loss(self, rows: Rows, value: Tensor) -> Loss:
        """The critic's loss of n rows."""
        loss = returns.value_loss(value, rows.target, rows.value, self.config.value_clip).mean()
        return Loss(self.config.vf_coef * loss, {"value_loss": loss.detach()})

    def _side_by_side(self, of_policy: Callable[[], Answer], of_critic: Callable[[], Answer]) -> tuple[Answer, Answer]:
        """What both return; at the same time, where the critic has a thread (`_two_threads`)."""
        critic = self.beside.submit(of_critic)
        return of_policy(), critic.result()

    @contextmanager
    def _two_threads(self) -> Iterator[None]:
        """Within it the critic has a thread of its own, and each of both half of torch's threads, if there are two.

        Policy and critic share no weights, so neither needs to wait for the other, while OpenMP's threads, which share
        out each operation, meet a hundred times in a gradient step.
        """
        threads = torch.get_num_threads()
        if threads == 1 or self.config.shared_trunk or self.device.type != "cpu":
            yield
            return
        torch.set_num_threads(threads - threads // 2)
        try:
            with ThreadPoolExecutor(1, "critic", torch.set_num_threads, (threads // 2,)) as self.beside:
                yield
        finally:
            self.beside = Here()
            torch.set_num_threads(threads)

    @torch.no_grad()
    def _rows(self, batch: Chunk, now: Schedule, older: bool) -> Rows:
        """Put a batch on the device and estimate its advantages. older: an older policy has acted, at least in part."""
        config = self.config
        obs = {name: self._tensor(array) for name, array in batch.obs.items()}
        reward, valid = self._tensor(batch.reward), self._tensor(batch.valid)
        steps = reward.shape[1]
        of_learner = config.value_source == "learner"
        of_critic = obs if of_learner else {name: x[:, -1:] for name, x in obs.items()}
        older = older and (config.decoupled or config.advantage == "vtrace")
        if older:
            logits, value = self._side_by_side(
                lambda: self._forward(obs, self.model.actor), lambda: self._forward(of_critic, self.model.critic)
            )
        else:
            logits, value = torch.empty(0), self._forward_halves(of_critic, self.model.critic)
        if not of_learner:
            value = torch.cat([self._tensor(batch.extra["value"]), value], dim=1)
        chunk, step = valid.nonzero(as_tuple=True)
        index = chunk * (steps + 1) + step
        flat = {name: x.flatten(0, 1) for name, x in obs.items()}
        action, log_prob = self._tensor(batch.action)[valid], self._tensor(batch.extra["log_prob"])[valid]
        log_centre = log_prob
        if older:
            log_probs = returns.masked_log_softmax(logits.flatten(0, 1)[index], flat["legal"][index])
            log_centre = log_probs.gather(-1, action.unsqueeze(-1)).squeeze(-1)
        ends = self._tensor(batch.terminated), self._tensor(batch.truncated), valid
        if config.advantage == "vtrace":
            log_ratio = torch.zeros_like(reward)  # rows that are not valid have no action to speak of
            log_ratio[valid] = log_centre - log_prob
            advantage, target = returns.vtrace(reward, value, log_ratio, *ends, now.gamma, config.lam)
        else:
            advantage, target = returns.gae(reward, value, *ends, now.gamma, config.lam)
        return Rows(
            obs=flat,
            index=index,
            action=action,
            log_prob=log_prob,
            log_centre=log_centre,
            value=value[:, :-1][valid],
            advantage=_normalise(advantage[valid], config.normalise_advantage),
            target=target[valid],
        )

    @torch.no_grad()  # again: it holds for one thread alone
    def _forward(self, obs: dict[str, Tensor], net: Any) -> Tensor:
        """Apply `net` to obs name -> [B, K, ...] in parts of FORWARD_ROWS; returns [B, K, ...]."""
        parts = zip(*(torch.split(x.flatten(0, 1), FORWARD_ROWS) for x in obs.values()), strict=True)
        result = torch.cat([net(dict(zip(obs, part, strict=True))) for part in parts])
        return result.view(*next(iter(obs.values())).shape[:2], *result.shape[1:])

    def _forward_halves(self, obs: dict[str, Tensor], net: Any) -> Tensor:
        """`_forward`, half of the chunks in each thread."""
        half = len(next(iter(obs.values()))) // 2
        head, tail = ({name: x[part] for name, x in obs.items()} for part in (slice(half), slice(half, None)))
        return torch.cat(self._side_by_side(lambda: self._forward(head, net), lambda: self._forward(tail, net)))

    def _tensor(self, array: Array) -> Tensor:
        """The array on the device. On a CPU it is not copied, not even if it is read-only: nobody writes into it."""
        return torch.from_numpy(np.require(array, requirements="A")).to(self.device)

    # ---- resuming ----

    def save_model(self) -> dict[str, Any]:
        """What resuming needs beside the weights: tensors and plain numbers."""
        return {
            "optimizers": [one.state_dict() for one in self.optimizers],
            "generator": self.generator.get_state(),
            "env_steps": self.env_steps,
            "updates": self.updates + self.moved_on,  # then they are saved as the next version
        }

    def load_model(self, state: dict[str, Any]) -> None:
        """Take back what `save_model` gave; the weights come back through `model.load_state_dict`."""
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.generator.set_state(state["generator"])
        self.env_steps, self.updates = state["env_steps"], state["updates"]


@contextmanager
def _one_thread_if(yes: bool) -> Iterator[None]:
    """Torch's operations within it do not share out their work, if `yes`."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1 if yes else threads)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _of_both(policy: Metrics | None, critic: Metrics | None) -> Metrics | None:
    """The metrics of a gradient step of two networks: the sum of their losses, the length of both gradients as one."""
    if policy is None or critic is None:
        return None
    of_both = {"loss": policy["loss"] + critic["loss"], "grad_norm": policy["grad_norm"].hypot(critic["grad_norm"])}
    return {**policy, **critic, **of_both}


def _normalise(advantage: Tensor, how: str) -> Tensor:
    """advantage: f32 [R]; see `Config.normalise_advantage`."""
    if how == "none" or len(advantage) < 2:
        return advantage
    centred = advantage - advantage.mean() if how == "mean_std" else advantage
    return centred / (advantage.std() + 1e-8)


def _use_bf16(precision: str, device: torch.device) -> bool:
    """Whether hidden layers compute in bfloat16; "auto" asks the machine (three times as fast where it can)."""
    if precision != "auto":
        return precision == "bf16"
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported())
    return bool(torch.cpu._is_avx512_bf16_supported())
