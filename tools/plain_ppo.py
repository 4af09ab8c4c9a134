"""PPO in one process, without the framework and written for speed: the yardstick that everything is measured against.

The same `diy` code in the shortest loop that can train it: step E environments, cut chunks, learn, repeat. It takes
what one process can have and a cluster cannot: weights are converted once a rollout, actions come from the policy
network alone, values from one pass of the critic over the whole batch, and random numbers are drawn for a rollout at
once. The first updates try how many threads are best, for playing and for learning. Prints env steps/s and the mean
score of the episodes that ended, with `--json` a line after each update; at the end it evaluates the agent.

    python tools/plain_ppo.py --seconds 120 --num-envs 128 --seed 1 --set lr_start=3e-4
    python tools/plain_ppo.py --config conf/reference.toml --json
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from diy.algorithm.agent import Agent
from diy.algorithm.choose import choose
from diy.config import Config
from diy.feature.definition import make_envs, spec
from realm.chunk import ChunkBuilder
from realm.config.load import load_config
from realm.config.plan import make_plan, this_machine
from realm.contract import Array, Arrays, Chunk, PredictContext, Prediction, SampleInfo, Version
from realm.errors import ConfigError, UserCodeError
from realm.launch.environment import enter_learner_environment
from realm.user import load_hyper

ROOT = Path(__file__).resolve().parents[1]
SHOWN = ("entropy", "approx_kl", "clip_fraction", "explained_variance", "value_loss", "grad_norm", "lr", "skipped")
SHOW_EVERY_S = 5.0
TRIALS = 3  # updates for each number of threads that is tried; the first of them is not counted


# ---- playing ----


class Actions:
    """Draws them from the policy, with the random numbers of a whole round made at once."""

    def __init__(self, agent: Agent, num_envs: int, length: int, seed: int) -> None:
        self._player = agent.player
        self._random = np.random.default_rng(seed)
        self._uniform = np.empty((length, num_envs), np.float32)
        self._explore = np.ones(num_envs, np.float32)
        self._t = 0

    @torch.no_grad()
    def begin(self) -> None:
        """Take the newest weights, and draw the random numbers of all steps to come."""
        self._model = self._player.model()
        self._random.random(out=self._uniform, dtype=np.float32)
        self._t = 0

    @torch.inference_mode()
    def act(self, obs: Arrays, version: Version) -> Prediction:
        """obs: name -> [E, ...]"""
        seen: dict[str, Tensor] = {name: torch.from_numpy(array) for name, array in obs.items()}
        logits = self._model.actor(seen).numpy()
        action, log_prob = np.empty(len(logits), np.int64), np.empty(len(logits), np.float32)
        choose(logits, obs["legal"], self._explore, self._uniform[self._t], action, log_prob)
        self._t += 1
        return Prediction(action, {"log_prob": log_prob}, version)


def rollouts(
    config: Config, options: dict[str, Any], num_envs: int, agent: Agent, seed: int, episodes: dict[str, list[float]]
) -> Iterator[Chunk]:
    """Play for ever; every T steps, the chunks of all environments. Statistics of episodes go into `episodes`."""
    envs = make_envs(num_envs, seed, config, options)
    obs, _ = envs.reset()
    shapes = spec(envs, config)
    chunks = ChunkBuilder(shapes, obs)
    player = Actions(agent, num_envs, config.chunk_length, seed)
    while True:
        player.begin()
        while not chunks.full:
            prediction = player.act(obs, Version(1, agent.updates))
            obs, reward, terminated, truncated, info = envs.step(prediction.action)
            chunks.step(prediction, reward, terminated, truncated, obs)
            if "_episode" in info:
                for name, values in info["episode"].items():
                    episodes.setdefault(name, []).extend(values[info["_episode"]])
        yield chunks.take()


def evaluate(agent: Agent, config: Config, options: dict[str, Any], explore: float, episodes: int = 256) -> dict:
    """Play `episodes` episodes at once, each environment its first, and average their statistics."""
    envs = make_envs(episodes, 10**6, config, options)
    obs, _ = envs.reset()
    open_, first = np.ones(episodes, bool), np.ones(episodes, bool)
    stats: dict[str, Array] = {}
    while open_.any():
        context = PredictContext(np.arange(episodes), first, np.full(episodes, explore, np.float32))
        obs, _, _, _, info = envs.step(agent.predict(obs, context)[0])
        first[:] = False
        if "_episode" in info:
            now = info["_episode"] & open_
            for name, values in info["episode"].items():
                stats.setdefault(name, np.zeros(episodes))[now] = values[now]
            open_ &= ~now
    names = ("score", "length", "missed", "reached_end", "flashes", "buffs", "walls")
    return {name: round(float(stats[name].mean()), 3) for name in names}


# ---- how many threads ----


class Threads:
    """Says how many threads a phase ("play" or "learn") uses: tries each candidate, then the fastest one stays."""

    def __init__(self, candidates: list[int]) -> None:
        self._waiting = [n for n in candidates for _ in range(TRIALS)] if len(candidates) > 1 else []
        self.best = {"play": candidates[0], "learn": candidates[0]}
        self._seconds: dict[str, dict[int, list[float]]] = {"play": {}, "learn": {}}

    @property
    def chosen(self) -> bool:
        return not self._waiting

    def use(self, phase: str) -> None:
        torch.set_num_threads(self._waiting[0] if self._waiting else self.best[phase])

    def took(self, play_s: float, learn_s: float) -> None:
        """One update is done."""
        if not self._waiting:
            return
        threads = self._waiting.pop(0)
        for phase, seconds in (("play", play_s), ("learn", learn_s)):
            self._seconds[phase].setdefault(threads, []).append(seconds)
        if not self._waiting:
            for phase, found in self._seconds.items():
                self.best[phase] = min(found, key=lambda n: min(found[n][1:]))


def candidates(text: str, cores: int) -> list[int]:
    """The numbers of threads that are tried: one, or for "auto" powers of two up to the number of cores."""
    if text != "auto":
        return [int(text)]
    return sorted({cores, *(2**k for k in range(cores.bit_length()) if 2**k <= cores)})


# ---- the loop ----


def main() -> None:
    args = arguments()
    loaded = load_config(args.config)
    if loaded.app.algo != "diy":
        raise ConfigError(f"{args.config}: algo is {loaded.app.algo!r}; allowed is diy")
    plan = make_plan(loaded.app, this_machine())
    enter_learner_environment(plan)  # threads and allocator, as a learner has them
    hyper = load_hyper("diy", loaded.hyper, loaded.places)
    try:
        config = dataclasses.replace(hyper, **{**pairs(args.set), "value_source": "learner"})
    except (TypeError, ValueError) as error:
        raise ConfigError(f"--set: {error}") from error
    options = loaded.env | pairs(args.env)
    num_envs = args.num_envs or plan.round_size

    one = make_envs(1, args.seed, config, options)
    agent = Agent(spec(one, config), config, "cpu", args.seed)
    threads = Threads(candidates(args.threads, plan.cores))
    info = SampleInfo(np.zeros(num_envs, np.uint64), np.ones(num_envs), np.ones(num_envs, int))
    episodes: dict[str, list[float]] = {}
    experience = rollouts(config, options, num_envs, agent, args.seed, episodes)
    began = shown = time.perf_counter()
    steps_before = 0
    while time.perf_counter() - began < args.seconds and agent.env_steps < args.env_steps:
        started = time.perf_counter()
        threads.use("play")
        chunk = next(experience)
        played = time.perf_counter()
        threads.use("learn")
        metrics, _ = agent.learn(chunk, info)
        now = time.perf_counter()
        if not threads.chosen:
            threads.took(played - started, now - played)
            if threads.chosen:  # what was tried is no yardstick
                print(f"threads: {threads.best['play']} to play, {threads.best['learn']} to learn", flush=True)
                began, shown, steps_before = now, now, agent.env_steps
            continue
        if args.json:
            scores = episodes.get("score", [])
            line = {
                "time": time.time(), "env_steps": agent.env_steps, "updates": agent.updates, "episodes": len(scores),
                "score": float(np.mean(scores)) if scores else None,
            }  # fmt: skip
            print(json.dumps(line), flush=True)
            episodes.clear()
        elif now - shown >= SHOW_EVERY_S:
            shown = now
            score = "score -"
            if episodes:
                score = f"score {np.mean(episodes['score']):.1f} missed {np.mean(episodes['missed']):.2f}"
            rest = " ".join(f"{name} {metrics[name]:.3g}" for name in SHOWN if name in metrics)
            rate = (agent.env_steps - steps_before) / (now - began)
            print(f"{now - began:5.0f} s  {agent.env_steps} steps  {rate:.0f}/s  {score}  {rest}", flush=True)
            episodes.clear()
    evaluated = {key: value for key, value in options.items() if key != "layouts"}
    for explore in (0.0, 1.0):
        print(f"evaluation, explore {explore:g}:", evaluate(agent, config, evaluated, explore), flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=ROOT / "conf" / "local.toml", help="features, network, [env]")
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--env-steps", type=float, default=float("inf"), help="stop after so many, if that is earlier")
    parser.add_argument("--num-envs", type=int, default=0, help="default: as many as the configuration has in all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a field of diy.config.Config")
    parser.add_argument("--env", action="append", default=[], metavar="KEY=VALUE", help="an option of the environment")
    parser.add_argument("--threads", default="auto", help="auto tries; or a number, for playing and learning")
    parser.add_argument("--json", action="store_true", help="a line of JSON after each update")
    args = parser.parse_args()
    if args.threads != "auto" and not (args.threads.isdecimal() and int(args.threads) > 0):
        parser.error(f"--threads {args.threads}: allowed is auto or a number from 1 on")
    return args


def pairs(texts: list[str]) -> dict[str, Any]:
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
    try:
        main()
    except (ConfigError, UserCodeError) as problem:
        sys.exit(f"error: {problem}")
