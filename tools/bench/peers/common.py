"""What the peers' scripts share: the options, the environments, the published network, and lines of progress.

tools/bench/train.py starts a script in the peer's own Python environment, as `python -m tools.bench.peers.<name>`. It
trains PPO with the numbers of our configuration until it is killed, and prints a line of JSON after each update, as
tools/bench/plain_ppo.py does.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn

from diy.config import Config
from diy.feature.definition import REFERENCE, as_float32, make_envs
from realm.config.load import load_config
from realm.user import load_hyper

IMAGE = REFERENCE["image"].shape
IMAGE_BYTES = math.prod(IMAGE)
VECTOR = REFERENCE["vector"].shape[0]


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
    """From the command line; sets the number of torch's threads in this process, if one is given."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--num-envs", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=0, help="of torch in the process that learns; 0: as it comes")
    args = parser.parse_args()
    config = load_config(args.config)
    ppo = load_hyper("diy", config.hyper)
    if args.threads:
        torch.set_num_threads(args.threads)
    return Setup(ppo, config.env, args.num_envs, args.seed)


# ---- environments ----


def pack(obs: dict[str, np.ndarray]) -> np.ndarray:
    """One row an environment: the small features f32 [E, F], or image and vector as their bytes, u8 [E, F]."""
    if "features" in obs:
        return as_float32(obs["features"])
    image, vector = obs["image"], obs["vector"]
    return np.concatenate([image.reshape(len(image), -1), np.ascontiguousarray(vector).view(np.uint8)], 1)


def row_space(size: int, dtype: Any) -> gymnasium.spaces.Box:
    """Of rows with `size` numbers, as `pack` makes them, with or without a mask behind."""
    low, high = (0, 255) if dtype == np.uint8 else (-1.0, 1.0)
    return gymnasium.spaces.Box(low, high, (size,), dtype)


class Step(NamedTuple):
    features: np.ndarray
    legal: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray


class Realms:
    """E realms with diy's features; those that have ended begin again in the same step."""

    def __init__(self, setup: Setup) -> None:
        self.num_envs = setup.num_envs
        self._envs = make_envs(self.num_envs, setup.seed, setup.ppo, setup.env)
        spaces = self._envs.single_observation_space.spaces
        small = "features" in spaces
        self.size = spaces["features"].shape[0] if small else IMAGE_BYTES + 4 * VECTOR  # numbers of a row
        self.dtype, self.actions = np.dtype(np.float32 if small else np.uint8), spaces["legal"].shape[0]
        self.scores: list[float] = []  # of the episodes that have ended

    def reset(self) -> tuple[np.ndarray, np.ndarray]:
        """Features [E, F] of `pack`, and legal actions bool [E, A]."""
        obs, _ = self._envs.reset()
        return pack(obs), obs["legal"]

    def step(self, actions: np.ndarray) -> Step:
        """actions: i64 [E]"""
        obs, reward, terminated, truncated, info = self._envs.step(np.asarray(actions, np.int64))
        ended = terminated | truncated
        if ended.any():
            self.scores += info["episode"]["score"][info["_episode"]].tolist()
            obs, _ = self._envs.reset(options={"reset_mask": ended})
        return Step(pack(obs), obs["legal"], reward, terminated, truncated)


# ---- the two networks ----


def network(ppo: Config, inputs: int, outputs: int) -> nn.Module:
    """Policy or critic, as diy/algorithm/model.py makes them: rows of `pack` [..., inputs] -> f32 [..., outputs]."""
    if ppo.features != "small":
        return nn.Sequential(Trunk(), head(Trunk.size, outputs))
    body = [linear(inputs, ppo.hidden), nn.ReLU(), linear(ppo.hidden, ppo.hidden), nn.ReLU()]
    return nn.Sequential(*body, head(ppo.hidden, outputs))


class Trunk(nn.Module):
    """The published one: bytes of image and vector, u8 [..., F] of `pack` -> f32 [..., 512]."""

    size = 512

    def __init__(self) -> None:
        super().__init__()
        convs = [nn.Conv2d(4, 32, 7, 2), nn.Conv2d(32, 64, 5, 2), nn.Conv2d(64, 64, 3, 1)]
        layers = [layer for conv in convs for layer in (orthogonal(conv, math.sqrt(2)), nn.ReLU())]
        self.conv = nn.Sequential(*layers, nn.Flatten(), linear(64 * 8 * 8, 512), nn.ReLU())
        self.body = nn.Sequential(linear(512 + VECTOR, self.size), nn.ReLU())

    def forward(self, rows: Tensor) -> Tensor:
        flat = rows.reshape(-1, rows.shape[-1])
        image = flat[:, :IMAGE_BYTES].reshape(-1, *IMAGE).float() / 255.0
        image = image.contiguous(memory_format=torch.channels_last)  # as ours: three times as fast on a CPU
        vector = flat[:, IMAGE_BYTES:].contiguous().view(torch.float32)
        return self.body(torch.cat([self.conv(image), vector], 1)).reshape(*rows.shape[:-1], self.size)


def linear(inputs: int, outputs: int) -> nn.Module:
    return orthogonal(nn.Linear(inputs, outputs), math.sqrt(2))


def head(inputs: int, outputs: int) -> nn.Module:
    """One output is a value, more are a policy's logits."""
    return orthogonal(nn.Linear(inputs, outputs), 1.0 if outputs == 1 else 0.01)


def orthogonal(layer: Any, gain: float) -> Any:
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


# ---- telling ----


def report(env_steps: int, updates: int, scores: list[float]) -> None:
    """Say how far training is; takes the scores."""
    line = {
        "time": time.time(), "env_steps": int(env_steps), "updates": int(updates), "episodes": len(scores),
        "score": float(np.mean(scores)) if scores else None,
    }  # fmt: skip
    print(json.dumps(line), flush=True)
    scores.clear()
