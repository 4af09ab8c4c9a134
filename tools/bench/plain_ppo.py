"""PPO in one process, without the framework and written for speed: the yardstick of tools/bench/train.py.

    python tools/bench/plain_ppo.py --seconds 120 --num-envs 128 --seed 1 --set diy.lr_start=3e-4
    python tools/bench/plain_ppo.py --config conf/reference.toml

The same `diy` code in the shortest loop that can train it: step E environments, cut chunks, learn, repeat. It does what
a cluster cannot do: it converts weights once a rollout, takes values from one pass of the critic over the whole batch,
and draws random numbers for a whole rollout. It acts with one thread, with --cuda-graph by one, and learns with as many
threads as one process of Realm. Prints a line of JSON after each update, with the mean score of episodes that ended.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from diy.algorithm.agent import Agent
from diy.config import Config
from diy.feature.definition import make_envs, spec
from realm.algorithms.choose import choose
from realm.chunk import ChunkBuilder
from realm.config.load import load_config
from realm.contract import NO_VERSION, Array, Arrays, Chunk, Prediction, SampleInfo
from realm.errors import ConfigError
from realm.launch.environment import enter_learner_environment
from realm.user import load_hyper
from tools import common

# ---- acting ----


def newest_policy(agent: Agent) -> Any:
    """The one place that uses the agent's internals: the policy network with the newest weights, converted once."""
    with torch.no_grad():
        return agent.player.model().actor


def on_device(policy: Any, obs: Arrays, device: torch.device) -> Any:
    return policy({name: torch.from_numpy(array).to(device) for name, array in obs.items()})


class Graph:
    """The same as one CUDA graph, which computes with the weights as they are when it is called."""

    def __init__(self, policy: Any, obs: Arrays, device: torch.device) -> None:
        self._seen = {name: torch.from_numpy(array).to(device) for name, array in obs.items()}
        self._graph, aside = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        with torch.cuda.stream(aside):  # what is done once only must be done before
            for _ in range(3):
                policy(self._seen)
        torch.cuda.current_stream().wait_stream(aside)
        with torch.cuda.graph(self._graph):
            self._logits = policy(self._seen)

    def __call__(self, policy: Any, obs: Arrays, device: torch.device) -> Any:
        for name, array in obs.items():
            self._seen[name].copy_(torch.from_numpy(array))
        self._graph.replay()
        return self._logits


def act(logits: Array, obs: Arrays, explore: Array, uniform: Array) -> Prediction:
    """Sample an action of each environment. logits: f32 [E, A]; obs: name -> [E, ...]; explore, uniform: f32 [E]"""
    action, log_prob = np.empty(len(logits), np.int64), np.empty(len(logits), np.float32)
    choose(logits, obs["legal"], explore, uniform, action, log_prob)
    return Prediction(action, {"log_prob": log_prob}, NO_VERSION)


def rollouts(
    config: Config, options: dict[str, Any], num_envs: int, agent: Agent, seed: int, scores: list[float], graph: bool
) -> Iterator[Chunk]:
    """Act for ever; every T steps, yield the chunks of all environments. The scores of episodes go into `scores`."""
    envs = make_envs(num_envs, seed, config, options)
    obs, _ = envs.reset()
    chunks, random = ChunkBuilder(spec(envs, config), obs), np.random.default_rng(seed)
    explore = np.ones(num_envs, np.float32)
    with torch.inference_mode():
        forward = Graph(newest_policy(agent), obs, agent.device) if graph else on_device
    while True:
        policy = newest_policy(agent)
        for uniform in random.random((config.chunk_length, num_envs), np.float32):
            with torch.inference_mode():
                logits = forward(policy, obs, agent.device).cpu().numpy()
            prediction = act(logits, obs, explore, uniform)
            obs, reward, terminated, truncated, info = envs.step(prediction.action)
            chunks.step(prediction, reward, terminated, truncated, obs)
            if "_episode" in info:
                scores += info["episode"]["score"][info["_episode"]].tolist()
        yield chunks.take()


# ---- the loop ----


def report(env_steps: int, updates: int, scores: list[float]) -> None:
    """Say how far training is; takes the scores."""
    line = {
        "time": time.time(), "env_steps": int(env_steps), "updates": int(updates), "episodes": len(scores),
        "score": float(np.mean(scores)) if scores else None,
    }  # fmt: skip
    print(json.dumps(line), flush=True)
    scores.clear()


def main() -> None:
    args = arguments()
    loaded = load_config(args.config, args.set)
    if loaded.app.algo != "diy":
        raise ConfigError(f"{args.config}: algo is {loaded.app.algo!r}; it must be diy")
    plan = common.plan_of(loaded.app)
    if args.cuda_graph and not plan.device.startswith("cuda"):
        raise ConfigError(f"--cuda-graph: device is {plan.device}; it must be cuda")
    enter_learner_environment(plan)  # threads and allocator, as a learner has them
    hyper = load_hyper("diy", loaded.hyper, loaded.places)
    config, options = dataclasses.replace(hyper, value_source="learner"), loaded.env
    num_envs = args.num_envs or plan.round_size
    agent = Agent(spec(make_envs(1, args.seed, config, options), config), config, plan.device, args.seed)
    info = SampleInfo(np.zeros(num_envs, np.uint64), np.ones(num_envs), np.ones(num_envs, int))
    scores: list[float] = []
    experience = rollouts(config, options, num_envs, agent, args.seed, scores, args.cuda_graph)
    began, env_steps, updates = time.perf_counter(), 0, 0
    while time.perf_counter() - began < args.seconds:
        torch.set_num_threads(1)  # a forward of few rows is as fast
        chunk = next(experience)
        torch.set_num_threads(plan.learner_threads)
        new = int(chunk.valid.sum())
        env_steps, updates = env_steps + new, updates + 1
        for _ in agent.learn(chunk, dataclasses.replace(info, new_env_steps=new, env_steps=env_steps)):
            pass  # it yields in the middle
        report(env_steps, updates, scores)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=common.ROOT / "conf" / "local.toml", help="features, network")
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--num-envs", type=int, default=0, help="default: all that the configuration has")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cuda-graph", action="store_true", help="act by one")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as of realm start, repeatable")
    return parser.parse_args()


if __name__ == "__main__":
    common.command_line(main)
