"""The agent: a network, and PPO that acts with it and trains it. Lives where weights live (actor, learner, evaluator).

The networks are in `model.py`, the algorithm is in `realm/algorithms/ppo.py`; N are rows of a forward pass.
"""

from __future__ import annotations

import copy
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from diy.algorithm.model import ActingModel, Obs, bf16_table, make_model
from diy.config import Config
from realm.algorithms.group import Group
from realm.algorithms.networks import use_bf16
from realm.algorithms.ppo import PPO
from realm.contract import Array, Arrays, Chunk, Learned, PredictContext, SampleInfo, Spec

FEW_ROWS = 512  # small MLPs: a forward pass over so few takes less time than waking a second thread


class Agent:
    """Implements `realm.contract.Agent`: all of its state is in `model` and in what `save_model` returns."""

    def __init__(self, spec: Spec, config: Config, device: str, seed: int) -> None:
        self.config = config
        self.device = torch.device(device)
        with torch.random.fork_rng(devices=[]):  # the first weights depend on the seed alone
            torch.manual_seed(seed)
            self.model = make_model(spec, config, use_bf16(config.precision, self.device)).to(self.device)
        self.player = ActingModel(self.model)
        self.ppo = PPO(self.model, config, self.device, seed)

    def predict(self, obs: Arrays, context: PredictContext) -> tuple[Array, Arrays]:
        """Choose an action for each row: sampled from the policy where explore is 1, the most likely where it is 0.

        obs: name -> [N, ...]
        Returns action i64 [N] and extra: its log_prob f32 [N], and value f32 [N] if `value_source` is "actor".
        """
        with torch.inference_mode(), _one_thread_if(self.config.features == "small" and len(context.first) <= FEW_ROWS):
            return self.ppo.act(obs, context.explore, self.player.model())

    def greedy(self, obs: Obs) -> Obs:
        """The most likely actions as operations of torch, in float32: what `realm export` writes.

        obs: name -> [N, ...]. Returns action i64 [N] and logits f32 [N, A].
        """
        network = copy.copy(self.model)
        network.bf16 = False
        if "features" in obs:
            obs = {**obs, "features": bf16_table().to(self.device)[obs["features"].long()]}
        return self.ppo.greedy(obs, network)

    def learn(self, batch: Chunk, info: SampleInfo) -> Generator[None, None, Learned]:
        """One update on B chunks of T steps; yields after half of its gradient steps."""
        learned = yield from self.ppo.update(batch, info)
        self.player.outdate()
        return learned

    def join(self, group: Group) -> None:
        """Train as one of several learners (`learner_count`)."""
        self.ppo.join(group)

    def save_model(self) -> dict[str, Any]:
        """The state that a resume needs besides the weights: tensors and plain numbers."""
        return self.ppo.state_dict()

    def load_model(self, state: dict[str, Any]) -> None:
        """Restore what `save_model` returned; `model.load_state_dict` restores the weights."""
        self.ppo.load_state_dict(state)


@contextmanager
def _one_thread_if(yes: bool) -> Iterator[None]:
    """Run torch's operations on one thread, if `yes`."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1 if yes else threads)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
