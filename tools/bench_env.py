"""How fast the realm is: rules, features and pictures against copying memory, in one run on one core.

`python tools/bench_env.py [--rounds 15] [--json FILE]` prints a table and writes the figures. Every line is
the median over rounds in which all variants take turns, with random legal actions; observation rows go into a
rollout buffer of 512 MB that is cycled through, so nothing written is still in a cache. The reference is a
straightforward slicing kernel for the full observation, kept here as it is. Everything runs in one thread,
and the clock is that thread's processor time, so that a neighbour on the machine does not count.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import realm.env  # noqa: F401  (registers Realm-v0)
from realm.env import observe
from realm.env.physics import State, World
from realm.env.realm_env import RealmVectorEnv, make_observation_space, observation_names, step_obs
from realm.jit import jit

BUFFER_BYTES = 512 * 2**20


@jit
def slice_full(s: State, w: World, image: NDArray[np.uint8], vector: NDArray[np.float32]) -> None:
    """The reference: the full observation as one would write it first."""
    obstacle, memory, cells, there, end = w.obstacle, s.memory, w.cells, s.there, s.end
    cell_x, cell_z = s.cell_x, s.cell_z
    for e in range(len(image)):
        x, z = cell_x[e], cell_z[e]
        image[e, 0] = obstacle[z : z + 51, x : x + 51]
        image[e, 1] = memory[e, z : z + 51, x : x + 51]
        image[e, 2] = 0
        image[e, 3] = 0
        for i in range(1, 16):
            dx, dz = cells[i, 0] - x + 25, cells[i, 1] - z + 25
            if 0 <= dx < 51 and 0 <= dz < 51:
                if there[e, i]:
                    image[e, 2, dz, dx] = 255
                if i == end[e]:
                    image[e, 3, dz, dx] = 255
    observe.write_vector(s, w, vector)


class Empty(gymnasium.Env[dict[str, NDArray[Any]], np.int64]):
    """Does nothing, with the realm's spaces."""

    def __init__(self) -> None:
        self.observation_space = make_observation_space(observation_names("full"))
        self.action_space = gymnasium.spaces.Discrete(16)
        self.obs = self.observation_space.sample()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return self.obs, {}

    def step(self, action: np.int64) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.obs, 0.0, False, False, {}


class Player:
    """One variant: an environment in mid-episode, random legal actions and a clock around the call only."""

    def __init__(self, num_envs: int, call: Callable[[RealmVectorEnv, NDArray[np.int64], int], object]) -> None:
        self.envs = RealmVectorEnv(num_envs, usr_conf={"treasure_num": 9}, copy=False)
        self.envs.reset(seed=0)
        self.call = call
        self.tape = np.random.default_rng(0).integers(16, size=(997, num_envs))
        self.t = 0
        for _ in range(300):  # memory maps with visits, flashes used up, compiled code
            self.one()

    def one(self) -> float:
        """Play one step of all environments; returns the seconds it took."""
        actions = self.tape[self.t % len(self.tape)]
        actions = np.where(self.envs.state.flash_wait == 0, actions, actions % 8)
        began = time.thread_time()
        self.call(self.envs, actions, self.t)
        took = time.thread_time() - began
        self.t += 1
        return took

    def rate(self, seconds: float) -> float:
        """Environment steps a second."""
        spent, steps = 0.0, 0
        while spent < seconds:
            spent += self.one()
            steps += self.envs.num_envs
        return steps / spent


def single_rate(env: gymnasium.Env[Any, Any], seconds: float) -> float:
    env.reset(seed=0)
    began, steps = time.thread_time(), 0
    while time.thread_time() - began < seconds:
        for a in range(100):
            _, _, terminated, truncated, _ = env.step(a % 8)
            if terminated or truncated:
                env.reset()
        steps += 100
    return steps / (time.thread_time() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=0.1, help="of each variant in each round")
    parser.add_argument("--envs", type=int, default=256)
    parser.add_argument("--json", type=Path, default=None, help="where to write the figures")
    args = parser.parse_args()

    n = args.envs
    shapes = {name: (n, *box.shape) for name, box in make_observation_space(observation_names("full")).spaces.items()}
    row_bytes = sum(int(np.prod(shape[1:])) for shape in shapes.values()) + 3 * 31
    length = -(-BUFFER_BYTES // (row_bytes * n))
    dtypes = {"image": np.uint8, "vector": np.float32, "action_mask": np.int8}
    buffer = {name: np.ones((length, *shape), dtypes[name]) for name, shape in shapes.items()}
    rows = [{name: array[t] for name, array in buffer.items()} for t in range(length)]

    def copy_rows(envs: RealmVectorEnv, actions: NDArray[np.int64], t: int) -> None:
        row = rows[t % length]
        for name, source in envs._buffer.items():
            np.copyto(row[name], source)

    def full(envs: RealmVectorEnv, actions: NDArray[np.int64], t: int) -> None:
        step_obs(envs.games, actions, rows[t % length])

    def api_full(envs: RealmVectorEnv, actions: NDArray[np.int64], t: int) -> None:
        envs.step(actions, out=rows[t % length])

    def reference(envs: RealmVectorEnv, actions: NDArray[np.int64], t: int) -> None:
        slice_full(envs.state, envs.world, envs._buffer["image"], envs._buffer["vector"])

    def reference_rows(envs: RealmVectorEnv, actions: NDArray[np.int64], t: int) -> None:
        row = rows[t % length]
        slice_full(envs.state, envs.world, row["image"], row["vector"])

    def rules(envs: RealmVectorEnv, actions: NDArray[np.int64], t: int) -> None:
        envs.games.step(actions)

    def vector(envs: RealmVectorEnv, actions: NDArray[np.int64], t: int) -> None:
        envs.games.step(actions)
        observe.write_vector(envs.state, envs.world, rows[t % length]["vector"])

    def api_vector(envs: RealmVectorEnv, actions: NDArray[np.int64], t: int) -> None:
        envs.step(actions)

    calls = {
        "np.copyto of the full rows": copy_rows,
        "full observation": full,
        "reference: slicing kernel": reference,
        "reference into the rows": reference_rows,
        "rules + rewards": rules,
        "vector features": vector,
        "envs.step, full observation, out=": api_full,
    }
    players = {name: Player(n, call) for name, call in calls.items()}
    slim = Player(n, api_vector)
    slim.envs = RealmVectorEnv(n, usr_conf={"treasure_num": 9}, observation="vector", copy=False)
    slim.envs.reset(seed=0)
    players["envs.step, observation='vector'"] = slim
    gymnasium.register("Empty-v0", entry_point=Empty)
    singles = {
        "gym.make, env.step": gymnasium.make("Realm-v0"),
        "gym.make, observation='vector'": gymnasium.make("Realm-v0", observation="vector"),
        "gym.make, an empty environment": gymnasium.make("Empty-v0"),
    }
    measured: dict[str, list[float]] = {name: [] for name in [*players, *singles]}
    for _ in range(args.rounds):
        for name, player in players.items():
            measured[name].append(player.rate(args.seconds))
        for name, env in singles.items():
            measured[name].append(single_rate(env, args.seconds / 2))
    median = {name: statistics.median(rates) for name, rates in measured.items()}

    copying, ref = median["np.copyto of the full rows"], median["reference: slicing kernel"]
    print(f"{n} environments, rows of {row_bytes} bytes, buffer of {length} x {n} rows, {args.rounds} rounds\n")
    print(f"{'':36}{'steps/s':>12}{'of copyto':>12}{'of reference':>14}{'spread':>9}")
    for name, rate in median.items():
        spread = (max(measured[name]) - min(measured[name])) / rate
        print(f"{name:36}{rate:12,.0f}{rate / copying:12.3f}{rate / ref:14.2f}{spread:9.0%}")
    goals = [
        ("full observation / np.copyto", median["full observation"] / copying, 0.5),
        ("rules + rewards / reference", median["rules + rewards"] / ref, 20),
        ("vector features / reference", median["vector features"] / ref, 12),
    ]
    print()
    for name, ratio, goal in goals:
        print(f"{name:36}{ratio:8.2f}   wanted {goal:5.1f}   {'reached' if ratio >= goal else 'MISSED'}")
    if args.json:
        figures = {
            "machine": {
                "processor": platform.processor(),
                "cores": os.cpu_count(),
                "python": platform.python_version(),
            },
            "envs": n,
            "row_bytes": row_bytes,
            "buffer_rows": length * n,
            "steps_per_s": median,
            "rounds": measured,
            "ratios": {name: ratio for name, ratio, _ in goals},
        }
        args.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
