"""What the peers' scripts share: the options, the environment as most peers want it, and lines of progress.

A script is started by tools/bench_train.py, in the peer's own Python environment, as `python -m tools.peers.<name>`. It
trains PPO with the numbers of our configuration until it is killed, and prints a line of JSON after each update, which
tools/plain_ppo.py does as well.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import gymnasium.vector
import numpy as np
from torch import nn

if not hasattr(gymnasium.vector, "AutoresetMode"):  # gymnasium before 1.1, which some peers ask for
    gymnasium.vector.AutoresetMode = type("AutoresetMode", (), {"NEXT_STEP": "NextStep"})

from diy.config import Config
from diy.feature.definition import as_float32, make_envs
from realm.config import load_config
from realm.user import load_hyper


class Setup(NamedTuple):
    """What to train: numbers of PPO and of the network, environments."""

    ppo: Config
    env: dict[str, Any]
    num_envs: int
    seed: int

    @property
    def batch(self) -> int:
        """Env steps of one update."""
        return self.num_envs * self.ppo.chunk_length

    @property
    def minibatches(self) -> int:
        """Gradient steps of one pass over a batch."""
        return max(1, round(self.batch / self.ppo.minibatch_size))

    @property
    def minibatch(self) -> int:
        return self.batch // self.minibatches


def read_setup() -> Setup:
    """From the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--num-envs", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    config = load_config(args.config)
    ppo = load_hyper("diy", config.hyper)
    if ppo.features != "small":
        sys.exit(f"error: peers are given the small features, and not diy.features = {ppo.features!r}")
    return Setup(ppo, config.env, args.num_envs, args.seed)


class Step(NamedTuple):
    """final: features f32 [E, F] before the reset of the environments that have ended; None if none has."""

    features: np.ndarray
    legal: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    final: np.ndarray | None


class Realms:
    """E realms with diy's features; those that have ended begin anew in the same step."""

    def __init__(self, setup: Setup, num_envs: int = 0, seed: int = 0) -> None:
        """num_envs: 0 makes all of them."""
        self.num_envs = num_envs or setup.num_envs
        self._envs = make_envs(self.num_envs, setup.seed + seed, setup.ppo, setup.env)
        spaces = self._envs.single_observation_space
        self.size = spaces["features"].shape[0]
        self.actions = spaces["legal"].shape[0]
        self.scores: list[float] = []  # of the episodes that have ended

    def reset(self, seed: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Features f32 [E, F] and legal actions bool [E, A]."""
        obs, _ = self._envs.reset(seed=seed)
        return as_float32(obs["features"]), obs["legal"]

    def step(self, actions: np.ndarray) -> Step:
        """actions: i64 [E]"""
        obs, reward, terminated, truncated, info = self._envs.step(np.asarray(actions, np.int64))
        final, ended = None, terminated | truncated
        if ended.any():
            self.scores += info["episode"]["score"][info["_episode"]].tolist()
            final = as_float32(obs["features"])
            obs, _ = self._envs.reset(options={"reset_mask": ended})
        return Step(as_float32(obs["features"]), obs["legal"], reward, terminated, truncated, final)


def mlp(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    """One of the two networks, as diy/algorithm/model.py makes them."""
    sizes, gains = (inputs, hidden, hidden, outputs), (math.sqrt(2), math.sqrt(2), 1.0 if outputs == 1 else 0.01)
    layers: list[nn.Module] = []
    for before, after, gain in zip(sizes, sizes[1:], gains, strict=False):
        layer = nn.Linear(before, after)
        nn.init.orthogonal_(layer.weight, gain)
        nn.init.zeros_(layer.bias)
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def report(env_steps: int, updates: int, scores: list[float]) -> None:
    """Say how far training is; takes the scores."""
    line = {
        "time": time.time(), "env_steps": int(env_steps), "updates": int(updates), "episodes": len(scores),
        "score": float(np.mean(scores)) if scores else None,
    }  # fmt: skip
    print(json.dumps(line), flush=True)
    scores.clear()
