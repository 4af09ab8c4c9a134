"""Seconds for 100,000 env steps of TD3, beside Stable-Baselines3 and CleanRL, in turns.

    python tools/bench/offpolicy_peers.py --env-steps 20000 --rounds 3 --cleanrl PATH/td3_continuous_action.py

Each trains HalfCheetah-v5 (requirements.local.txt: gymnasium[mujoco], stable-baselines3) in a process of its own, with
the same settings: networks of 256 x 256, minibatches of 256, a gradient step for each env step after 1,000 random ones.
Each runs with each number of `--threads`, and the ratio is between the best of each.
CleanRL's script is taken as it is; a stand-in gives it the gym of its days. The environment itself is the clock, so
imports do not count: the seconds from `--from-step` to `--env-steps` are scaled to 100,000.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import statistics
import subprocess
import sys
import tempfile
import time
import types
from pathlib import Path
from typing import Any

import gymnasium

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

ENV, WARM_UP, WHOLE = "HalfCheetah-v5", 1000, 100_000
MARKS = "REALM_BENCH_MARKS"  # two env steps and the file for the times at which they were made


class Clock(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Notes when the environment makes its steps, and ends the process after the last one that counts."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self._steps, self._begin = 0, 0.0
        first, last, self._file = os.environ[MARKS].split(":")
        self._first, self._last = int(first), int(last)

    def step(self, action: Any) -> Any:
        self._steps += 1
        if self._steps == self._first:
            self._begin = time.perf_counter()
        elif self._steps == self._last:
            Path(self._file).write_text(str(time.perf_counter() - self._begin))
            os._exit(0)
        return self.env.step(action)


def clocked() -> Any:
    return Clock(gymnasium.make(ENV))


gymnasium.register("Clocked-v0", entry_point=clocked)


# ---- the three ----


def realm(seed: int) -> None:
    from realm.commands.main import main

    settings = {
        "env.id": f"{__spec__.name if __spec__ else 'tools.bench.offpolicy_peers'}:Clocked-v0",
        "warm_up_steps": WARM_UP, "td3.random_steps": WARM_UP, "eval_every_steps": 0, "save_replay": "false",
        "torch_num_threads": os.environ["OMP_NUM_THREADS"],
        "seed": seed, "log_dir": tempfile.mkdtemp(), "level": "WARNING",
    }  # fmt: skip
    words = [f"{key}={value}" for key, value in settings.items()]
    main(["start", "--config", str(ROOT / "conf" / "mujoco_td3.toml"), "--set", *words])


def sb3(seed: int) -> None:
    import numpy as np
    from stable_baselines3 import TD3
    from stable_baselines3.common.noise import NormalActionNoise

    env = clocked()
    noise = NormalActionNoise(np.zeros(6), np.full(6, 0.1))
    policy = {"net_arch": [256, 256]}
    model = TD3(
        "MlpPolicy", env, 3e-4, 1_000_000, WARM_UP, 256, train_freq=1, gradient_steps=1, action_noise=noise,
        policy_kwargs=policy, seed=seed, device="cpu",
    )  # fmt: skip
    model.learn(WHOLE)


class OldVector:
    """One environment as gym's SyncVectorEnv of 2021 was: a reset within the step, four results, a list of infos."""

    def __init__(self, makes: Any) -> None:
        self._env = makes[0]()
        self.num_envs = 1
        self.single_observation_space, self.single_action_space = self._env.observation_space, self._env.action_space
        self.action_space = gymnasium.vector.utils.batch_space(self.single_action_space, 1)

    def reset(self) -> Any:
        return self._env.reset()[0][None].astype("float32")

    def step(self, actions: Any) -> Any:
        import numpy as np

        obs, reward, terminated, truncated, info = self._env.step(actions[0])
        if terminated or truncated:
            info |= {"terminal_observation": obs.astype("float32"), "TimeLimit.truncated": truncated}
            obs = self._env.reset()[0]
        return obs[None].astype("float32"), np.array([reward]), np.array([terminated or truncated]), [info]

    def close(self) -> None: ...


def cleanrl(seed: int, script: str) -> None:
    gym: Any = types.ModuleType("gym")
    gym.spaces, gym.make = gymnasium.spaces, lambda name: clocked()
    gym.wrappers = types.SimpleNamespace(RecordEpisodeStatistics=OldStatistics)
    gym.vector = types.SimpleNamespace(SyncVectorEnv=OldVector)
    sys.modules["gym"] = gym
    sys.argv = [script, "--seed", str(seed), "--learning-starts", str(WARM_UP), "--cuda", "false"]
    os.chdir(tempfile.mkdtemp())  # it writes its curves here
    runpy.run_path(script, run_name="__main__")


class OldStatistics(gymnasium.wrappers.RecordEpisodeStatistics):
    def seed(self, seed: int) -> None:
        self.env.reset(seed=seed)


# ---- the table ----


def seconds(name: str, threads: int, args: argparse.Namespace, seed: int) -> float:
    """Of one run in a process of its own, for all of WHOLE."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "seconds"
        environment = {
            **os.environ,
            **{one: str(threads) for one in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")},
            MARKS: f"{args.from_step}:{args.env_steps}:{file}",
            "PYTHONPATH": str(ROOT),
        }
        environment.setdefault("NUMBA_CACHE_DIR", str(ROOT / ".cache" / "numba"))
        command = [sys.executable, "-m", "tools.bench.offpolicy_peers", "--only", name, "--seed", str(seed)]
        command += ["--cleanrl", str(args.cleanrl)] if args.cleanrl else []
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        if not file.exists():
            sys.exit(f"error: {name} ended before {args.env_steps} env steps:\n{done.stderr[-2000:]}")
        return float(file.read_text()) * WHOLE / (args.env_steps - args.from_step)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env-steps", type=int, default=20_000, help="of each run, at most 100,000")
    parser.add_argument("--from-step", type=int, default=2000, help="where the clock begins")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, nargs="+", default=[1], help="of torch, such as 1 2: each in turn")
    parser.add_argument("--cleanrl", type=Path, help="CleanRL's script; without it there are two")
    parser.add_argument("--only", choices=["realm", "sb3", "cleanrl"], help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=1, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.only:
        import torch

        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
        cleanrl(args.seed, str(args.cleanrl)) if args.only == "cleanrl" else globals()[args.only](args.seed)
        return
    names = ["realm", "sb3", *(["cleanrl"] if args.cleanrl else [])]
    took: dict[str, list[dict[int, float]]] = {name: [] for name in names}  # of each round: threads -> seconds
    for number in range(args.rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            took[name].append({threads: seconds(name, threads, args, number + 1) for threads in args.threads})
            print(json.dumps({"round": number + 1, "who": name, "seconds": took[name][-1]}), flush=True)
    part = f"scaled from steps {args.from_step:,} to {args.env_steps:,}"
    print(f"\nseconds for {WHOLE:,} env steps of TD3 on {ENV}, {part}; medians of {args.rounds} rounds:")
    for name in names:
        each = {threads: statistics.median(one[threads] for one in took[name]) for threads in args.threads}
        by_threads = ", ".join(f"{threads} threads {value:4.0f} s" for threads, value in each.items())
        ratio = statistics.median(
            min(own.values()) / min(other.values()) for own, other in zip(took["realm"], took[name], strict=True)
        )
        print(f"{name:8} {by_threads}; realm takes {ratio:.2f} of the best")


if __name__ == "__main__":
    main()
