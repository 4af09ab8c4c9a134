"""PPO in one process, without the framework: the yardstick that the cluster is measured against.

The same `diy` code in the shortest loop that can train it: step E environments, cut chunks, learn, repeat. Prints env
steps/s and the mean score of the episodes that ended; at the end it evaluates the agent.

    python tools/plain_ppo.py --seconds 120 --num-envs 128 --seed 1 --set lr_start=3e-4
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import sys
import time
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from diy.algorithm.agent import Agent
from diy.config import Config
from diy.feature.definition import make_envs, spec
from realm.chunk import ChunkBuilder
from realm.contract import Arrays, PredictContext, Prediction, SampleInfo, Version

SHOWN = ("entropy", "approx_kl", "clip_fraction", "explained_variance", "value_loss", "grad_norm", "lr", "skipped")
NINE = {"start": 2, "end": 1, "treasure_random": 1, "treasure_num": 9}


def predict(agent: Agent, obs: Arrays, first: np.ndarray, explore: float) -> Prediction:
    n = len(first)
    context = PredictContext(np.arange(n), first, np.full(n, explore, np.float32))
    return Prediction(*agent.predict(obs, context), Version(1, agent.updates))


def evaluate(agent: Agent, config: Config, options: dict, explore: float, episodes: int = 256) -> dict[str, float]:
    """Play `episodes` episodes at once, each environment its first, and average their statistics."""
    envs = make_envs(episodes, 10**6, config, options)
    obs, _ = envs.reset()
    open_, stats = np.ones(episodes, bool), {}
    first = np.ones(episodes, bool)
    while open_.any():
        obs, _, _, _, info = envs.step(predict(agent, obs, first, explore).action)
        first[:] = False
        if "_episode" in info:
            now = info["_episode"] & open_
            for name, values in info["episode"].items():
                stats.setdefault(name, np.zeros(episodes))[now] = values[now]
            open_ &= ~now
    names = ("score", "length", "missed", "reached_end", "flashes", "buffs", "walls")
    return {name: round(float(stats[name].mean()), 3) for name in names}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--env-steps", type=float, default=float("inf"), help="stop after so many, if that is earlier")
    parser.add_argument("--num-envs", type=int, default=128)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a field of diy.config.Config")
    parser.add_argument("--env", action="append", default=[], metavar="KEY=VALUE", help="an option of the environment")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    config = dataclasses.replace(Config(), **pairs(args.set))
    options = NINE | pairs(args.env)
    evaluated = {key: value for key, value in options.items() if key != "layouts"}

    envs = make_envs(args.num_envs, args.seed, config, options)
    agent = Agent(spec(envs, config), config, "cpu", args.seed)
    obs, _ = envs.reset()
    chunks = ChunkBuilder(spec(envs, config), obs)
    info_of_batch = SampleInfo(np.zeros(args.num_envs, np.uint64), np.ones(args.num_envs), np.ones(args.num_envs, int))
    scores: list[float] = []
    missed: list[float] = []
    began = shown = time.perf_counter()
    while time.perf_counter() - began < args.seconds and agent.env_steps < args.env_steps:
        while not chunks.full:
            prediction = predict(agent, obs, chunks.first, explore=1.0)
            obs, reward, terminated, truncated, info = envs.step(prediction.action)
            chunks.step(prediction, reward, terminated, truncated, obs)
            if "_episode" in info:
                scores += list(info["episode"]["score"][info["_episode"]])
                missed += list(info["episode"]["missed"][info["_episode"]])
        metrics, _ = agent.learn(chunks.take(), info_of_batch)
        now = time.perf_counter()
        if now - shown >= 5:
            shown = now
            score = f"score {np.mean(scores):.1f} missed {np.mean(missed):.2f}" if scores else "score -"
            rest = " ".join(f"{name} {metrics[name]:.3g}" for name in SHOWN if name in metrics)
            rate = agent.env_steps / (now - began)
            print(f"{now - began:5.0f} s  {agent.env_steps} steps  {rate:.0f}/s  {score}  {rest}", flush=True)
            scores, missed = [], []
    for explore in (0.0, 1.0):
        print(f"evaluation, explore {explore:g}:", evaluate(agent, config, evaluated, explore), flush=True)


def pairs(texts: list[str]) -> dict:
    """key=value texts to a dict; a value that is no Python literal is a string."""
    found = {}
    for text in texts:
        key, _, value = text.partition("=")
        try:
            found[key] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            found[key] = value
    return found


if __name__ == "__main__":
    main()
