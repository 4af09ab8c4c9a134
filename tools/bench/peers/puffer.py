"""PufferLib's PuffeRL on our environments, with our networks in float32 and the numbers of a configuration.

tools/bench/train.py and sb3.py start it in PufferLib's own Python environment (tools/bench/puffer.sh), as
`python -m tools.bench.peers.puffer`. It trains until it is killed, and prints a line of JSON after each update, as
plain_ppo.py does.

All environments are one vector environment of its own kind. It draws segments of a batch by the size of their
advantages, as many as the passes would use, and none longer than a minibatch; Adam in place of its Muon, one process.
It clamps each reward to -1..1 and takes a truncated episode for one that goes on (its pufferl.py, `evaluate`): it
learns from other rewards than the others, which its score tells and its speed does not.
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pufferlib
import torch
from gymnasium import spaces
from pufferlib.pufferl import PuffeRL
from torch import Tensor, nn

from diy.algorithm.model import make_model
from diy.feature.definition import as_float32
from realm.algorithms.actor_critic import ActorCritic
from realm.config.load import load_config
from realm.contract import Array, Arrays
from realm.learn.results import main_statistic
from realm.user import hyper_of, load_definition
from tools.bench.plain_ppo import report


class Envs(pufferlib.PufferEnv):
    """E environments in one call; those that have ended begin again in the same step. An observation is a stack of
    frames, or diy's observation with the legal actions behind the rest."""

    def __init__(self, envs: Any, frames: int) -> None:
        self.envs, self.num_agents, self.frames, self.scores = envs, envs.num_envs, frames, list[float]()
        row = self._row(envs.reset()[0])
        self.single_observation_space = spaces.Box(0, 255, row.shape[1:], row.dtype)
        self.single_action_space = spaces.Discrete(int(envs.single_action_space.n))
        super().__init__()

    def _row(self, obs: Arrays) -> Array:
        if "state" in obs:
            return np.repeat(obs["state"][:, None], self.frames, 1)
        if "features" in obs:
            return np.concatenate([as_float32(obs["features"]), obs["legal"]], 1)
        parts = (obs[name].reshape(self.num_agents, -1).view(np.uint8) for name in ("image", "vector", "legal"))
        return np.concatenate([*parts], 1)

    def reset(self, seed: Any = None) -> tuple[Array, list[Any]]:
        self.observations[:] = self._row(self.envs.reset()[0])
        return self.observations, []

    def step(self, actions: Array) -> tuple[Any, ...]:
        obs, self.rewards[:], self.terminals[:], self.truncations[:], info = self.envs.step(actions.astype(np.int64))
        ended = self.terminals | self.truncations
        if ended.any():
            episode = info["episode"]
            self.scores += episode[main_statistic(episode)][info["_episode"]].tolist()
            if "state" not in obs:
                obs = self.envs.reset(options={"reset_mask": ended})[0]
        row = self._row(obs)
        if "state" in obs:
            row[~ended, :-1] = self.observations[~ended, 1:]
        self.observations[:] = row
        return self.observations, self.rewards, self.terminals, self.truncations, []

    def close(self) -> None: ...


class Policy(nn.Module):
    """Logits [n, A], those of illegal actions far below all others, and values [n], of what `Envs` shows."""

    def __init__(self, config: Any, own: Any, spec: Any) -> None:
        super().__init__()
        self.fields = dict(spec.obs)
        if config.app.algo == "diy":
            self.net: nn.Module = make_model(spec, own, bf16=False)
        else:  # frames, divided by 255
            plain = dataclasses.replace(own, normalise_images=False, normalise_returns=False, precision="fp32")
            self.net = ActorCritic(spec.obs, spec.action, plain)

    def forward(self, seen: Tensor, state: Any = None) -> tuple[Tensor, Tensor]:
        if "state" in self.fields:
            return self.net({"state": seen})  # type: ignore[no-any-return]
        row, legal = seen.tensor_split([-self.fields["legal"].shape[0]], 1)
        obs = {"features": row}
        if "image" in self.fields:
            image, vector = row.tensor_split([self.fields["image"].size], 1)
            image = image.unflatten(1, self.fields["image"].shape)
            obs = {"image": image, "vector": vector.contiguous().view(torch.float32)}
        logits, value = self.net(obs)
        return logits.masked_fill(legal == 0, -1e9), value

    forward_eval = forward


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--num-envs", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=0, help="of torch in the process that learns; 0: as it comes")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    config = load_config(args.config)
    own: Any = hyper_of(config)
    if config.app.algo == "diy":
        # so that -1..1 are 100 points: with diy's small features only what treasures left behind cost goes beyond
        own = dataclasses.replace(own, reward_scale=min(own.reward_scale, 0.01))
    definition = load_definition(config.app.algo)
    envs = definition.make_envs(args.num_envs, args.seed, own, config.env)
    batch = args.num_envs * own.chunk_length
    minibatch = batch // max(1, round(batch / own.minibatch_size))
    settings = {
        "seed": args.seed, "torch_deterministic": True, "cpu_offload": False, "device": "cpu", "optimizer": "adam",
        "anneal_lr": False, "precision": "float32", "total_timesteps": 10**12, "learning_rate": own.lr_start,
        "gamma": own.gamma_start, "gae_lambda": own.lam, "update_epochs": own.epochs, "clip_coef": own.clip,
        "vf_coef": own.vf_coef, "vf_clip_coef": 1e6, "max_grad_norm": own.max_grad_norm,
        "ent_coef": own.entropy_start, "adam_beta1": 0.9, "adam_beta2": 0.999, "adam_eps": own.adam_eps,
        "data_dir": tempfile.mkdtemp(), "checkpoint_interval": 10**9, "batch_size": batch, "use_rnn": False,
        "minibatch_size": minibatch, "max_minibatch_size": minibatch,
        "bptt_horizon": min(own.chunk_length, minibatch),
        "compile": False, "vtrace_rho_clip": 1.0, "vtrace_c_clip": 1.0, "prio_alpha": 0.8, "prio_beta0": 0.2,
        "env": "realm",
    }  # fmt: skip
    theirs = Envs(envs, getattr(own, "frames", 1))
    trainer = PuffeRL(settings, theirs, Policy(config, own, definition.spec(envs, own)))
    while True:
        trainer.evaluate()
        trainer.train()
        report(trainer.global_step, trainer.epoch, theirs.scores)


if __name__ == "__main__":
    main()
