"""PPO: how to choose actions and how to update, for any network.

An agent makes one `PPO` of its network and calls `act` in `predict` and `update` in `learn`. An update takes a batch of
chunks, estimates advantages and makes a few passes of gradient steps over its valid rows. The losses are in
`losses.py`, the rows or sequences of a minibatch in `batch.py`, the second thread in `side_by_side.py`, discrete and
continuous actions in `distributions.py`, the mathematics in `realm/returns.py`. An observation named `legal`, bool [A],
is a mask of the legal actions; without it all are legal.
Axes: N rows of a forward pass, B chunks, T steps, n rows of a minibatch, A actions.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from realm import returns
from realm.algorithms import by_hand
from realm.algorithms.batch import Batch, Rows, normalised, of_a_pass, tensor
from realm.algorithms.distributions import Categorical, Distribution
from realm.algorithms.estimate import estimate
from realm.algorithms.group import ALONE, Group
from realm.algorithms.losses import Loss, Metrics, Network, Part, by_graph, joined, kl_of, means, nothing_of, parts_of
from realm.algorithms.networks import Obs
from realm.algorithms.normalise import check_moments, learn_observations, learn_returns, normalised_returns, seen_by
from realm.algorithms.settings import Schedule, Settings
from realm.algorithms.side_by_side import SideBySide, finished
from realm.algorithms.windows import frames_of, with_frames
from realm.contract import Array, Arrays, Chunk, Learned, PredictContext, SampleInfo
from realm.errors import UserCodeError

warnings.filterwarnings("ignore", "The given NumPy array is not writable", UserWarning)  # see `batch.tensor`


class PPO:
    """Trains `network`: all of its state besides the weights is in `state_dict`."""

    def __init__(
        self, network: Network, settings: Settings, device: torch.device, seed: int,
        distribution: Distribution | None = None, losses: Sequence[Loss] = (), cut: type[Rows] = Rows, layer: str = "",
    ) -> None:  # fmt: skip
        """distribution: that of the action space; None: of discrete actions. losses: besides those of PPO. cut:
        `Sequences` for a network with a memory. layer: the name of a parameter; the length of the gradient there of
        each loss, times its coefficient, is its `<name>_grad_norm`."""
        check_moments(network, settings)
        self.network, self.settings, self.device, self.cut = network, settings, device, cut
        self.distribution: Distribution = distribution or Categorical()
        self.generator = torch.Generator().manual_seed(seed)  # draws actions, shuffles rows
        self.side = SideBySide(not settings.shared_trunk and device.type == "cpu")
        self.parts = parts_of(network, settings, losses, layer)
        self.nets = by_hand.nets_of(self.parts, network, self.distribution, settings)
        self.lr_scale = 1.0  # of the learning rate, by `Settings.kl_target`
        self.group: Group = ALONE
        network.train(False)

    def join(self, group: Group) -> None:
        """Train as one of several learners, each of which gets its part of a batch in `update`."""
        if group.size > 1 and any(part.layer is not None for part in self.parts):
            raise UserCodeError("PPO(layer=...) measures the gradients of one learner; learner_count must be 1")
        # two threads would ask the other ranks in an order of their own
        self.group, self.side = group, SideBySide(False)

    # ---- acting ----

    @torch.inference_mode()
    def act(self, obs: Arrays, explore: Array, network: Network | None = None) -> tuple[Array, Arrays]:
        """Choose an action for each row: sampled from the policy where explore is 1, the most likely where it is 0.

        obs: name -> [N, ...]; explore: f32 [N]; network: acts in place of the one that is trained
        Returns action i64 [N] or f32 [N, A], and extra: its log_prob f32 [N], `drawn` f32 [N, A] if it is continuous,
        and value f32 [N] if `value_source` is "actor".
        """
        network = network or self.network
        seen = seen_by(network, self.settings, {name: tensor(array, self.device) for name, array in obs.items()})
        if self.settings.value_source == "actor":
            policy, value = network(seen)[:2]
            extra = {"value": value.cpu().numpy()}
        else:
            policy, extra = network.actor(seen), {}
        if self.distribution.width not in (0, policy.shape[-1]):
            raise UserCodeError(
                f"{type(network).__name__} gives {policy.shape[-1]} numbers for an action, it must give "
                f"{self.distribution.width} in this action space"
            )
        action, own = self.distribution.act(policy, seen, explore, self.generator)
        return action, {**own, **extra}

    def remember(self, obs: Arrays, context: PredictContext) -> tuple[Array, Arrays, Arrays]:
        """`act` of a network that may look back or remember; returns the memory after it, too, name -> [N, ...]."""
        seen, memory = with_frames(obs, context)
        return (*self.act(seen, context.explore), memory)

    def greedy(self, obs: Obs, network: Network | None = None) -> Obs:
        """The most likely legal action of `act`, if it is discrete the logits f32 [N, A], -inf where an action is
        illegal, and the memory after it, by torch alone (`contract.Agent`)."""
        network = network or self.network
        seen, memory = frames_of(obs)
        return self.distribution.greedy(network.actor(seen_by(network, self.settings, seen)), seen) | memory

    # ---- learning ----

    def update(self, chunk: Chunk, info: SampleInfo) -> Generator[None, None, Learned]:
        """Learn from B chunks of T steps. Returns metrics (means over the gradient steps) and no priorities.

        Yields after half of the gradient steps, as `contract.Agent.learn` may. A network whose loss or gradient is not
        finite leaves that gradient step out, which is counted as `skipped`.
        """
        now = self.settings.schedule(info.env_steps - info.new_env_steps)
        now = dataclasses.replace(now, lr=now.lr * self.lr_scale)
        pending: list[list[Future[Metrics | None]]] = []  # the parts of each gradient step
        try:
            with self.side.threads():
                learn_observations(self.network, self.settings, chunk, self.group)
                batch = self.estimate(chunk, now, info.stale)
                learn_returns(self.network, self.settings, batch, self.group)
                cut = self._cut(batch)
                passes, count = self._passes(cut.count, int(chunk.valid.sum()))
                for minibatch in self._minibatches(chunk, now, cut, passes, pending):
                    pending.append(self.gradient_step(minibatch, now))
                    if len(pending) == (sum(map(len, passes)) + 1) // 2:
                        self.side.wait()  # for the critic's steps
                        yield
                steps = [joined([part.result() for part in parts]) for parts in pending]
        finally:
            self.network.train(False)
        # before its first step a policy has not moved
        of_last = pending[-len(passes[-1]) :] if len(pending) > 1 else []
        if self.settings.kl_target and (kl := kl_of(of_last, self.group)) is not None:
            self.lr_scale = self.settings.lr_scale(self.lr_scale, kl)
        result = dataclasses.asdict(now) | means(steps, self.settings.clip, self.group)
        if count:
            value, target = (self.group.rows(x[batch.valid]) for x in (batch.value, batch.target))
            result["explained_variance"] = float(returns.explained_variance(value, target))
            result["value_mean"] = float(value.mean())
            result["reward_mean"] = float(self.group.rows(torch.from_numpy(chunk.reward[chunk.valid])).mean())
        return result | {"rows": float(count)}, None

    def _cut(self, batch: Batch) -> Rows:
        return self.cut(normalised_returns(self.network, self.settings, batch))

    def estimate(self, chunk: Chunk, now: Schedule, stale: bool, proximal: Tensor | None = None) -> Batch:
        """Values, advantages and targets by the network as it is. stale, proximal: as in `estimate.py`."""
        self.network.train(False)
        of = self.network, self.distribution, self.settings
        batch = estimate(chunk, *of, now, self.cut, self.side, self.device, stale, self.group, proximal)
        self.network.train()
        return batch

    def _passes(self, count: int, rows: int) -> tuple[list[list[Tensor]], int]:
        """What the minibatches of each pass hold of this rank's, i64 [...] each, out of `count`; and how many valid
        rows all ranks have. rows: of them, this rank's. All ranks draw the same order of what all have."""
        every = self.group.rows(torch.tensor([[count, rows]]))
        begin, (total, valid) = int(every[: self.group.rank, 0].sum()), every.sum(0).tolist()
        of = total, valid, self.settings, self.generator, self.device
        passes = [[*of_a_pass(*of)] for _ in range(self.settings.epochs)]
        if self.group.size > 1:
            passes = [[x[(begin <= x) & (x < begin + count)] - begin for x in parts] for parts in passes]
        return passes, valid

    def _minibatches(
        self, chunk: Chunk, now: Schedule, cut: Rows, passes: Sequence[Sequence[Tensor]], pending: Sequence[Any]
    ) -> Iterator[Batch]:
        """Those of all passes, or until the policy has moved too far. The second thread gathers a minibatch while the
        first trains. pending: the gradient steps so far"""
        again, kl_stop = self.settings.estimate_each_pass, self.settings.kl_stop
        for number, parts in enumerate(passes if again or kl_stop else [list(chain(*passes))]):
            if number:
                self.side.wait()  # for the critic's steps
                if kl_stop and (kl_of(pending[-len(parts) :], self.group) or 0.0) > kl_stop:
                    return
            if number and again:
                cut = self._cut(self.estimate(chunk, now, stale=True, proximal=cut.batch.proximal_log_prob))
            yield from self.side.prefetched(cut.at, parts)

    def gradient_step(self, minibatch: Batch, now: Schedule) -> list[Future[Metrics | None]]:
        """One of each part of the network, at the same time where they share no weights."""
        if self.settings.normalise_over == "minibatch":
            advantage = normalised(minibatch.advantage, self.settings, self.group)
            minibatch = dataclasses.replace(minibatch, advantage=advantage)
        if not math.isfinite(self.group.total(minibatch.advantage.sum())):
            return [finished(None)]  # whatever spoiled them spoiled targets of the batch, too
        others = [self.side.submit(self._descend, part, minibatch, now) for part in self.parts[1:]]
        return [finished(self._descend(self.parts[0], minibatch, now)), *others]

    def _descend(self, part: Part, minibatch: Batch, now: Schedule) -> Metrics | None:
        """One step of Adam. Returns the metrics, or None without a step where loss or gradient is not finite."""
        net, of = self.nets.get(part.adam), (part, minibatch, self.distribution, now)
        rows = len(minibatch.advantage)
        if self.group.size > 1 and not rows:
            metrics = nothing_of(part, minibatch)
        else:
            metrics = by_hand.gradient(net, self.settings, *of) if net else by_graph(self.network, *of)
        metrics = self.group.share(part.adam, metrics, rows)
        if not math.isfinite(metrics["loss"] + metrics["grad_norm"]):
            return None
        part.adam.step(now.lr, (metrics["grad_norm"] / self.settings.max_grad_norm).clamp(min=1.0))
        return metrics

    # ---- resuming ----

    def state_dict(self) -> dict[str, Any]:
        """The state that a resume needs besides the weights: tensors and plain numbers."""
        optimizers = [part.adam.state_dict() for part in self.parts]
        return {"optimizers": optimizers, "generator": self.generator.get_state(), "lr_scale": self.lr_scale}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        for part, saved in zip(self.parts, state["optimizers"], strict=True):
            part.adam.load_state_dict(saved)
        self.generator.set_state(state["generator"])
        # older checkpoints have none; without kl_target nothing would ever bring it back to 1
        self.lr_scale = state.get("lr_scale", 1.0) if self.settings.kl_target else 1.0
