"""How fast the realm is: rules, features and pictures against copying memory, in one run on one core.

    python tools/bench/env.py --out train/env.json
    python tools/bench/env.py --rounds 2

A line is the median over rounds in which all variants alternate, with random legal actions. Observations go into a
rollout buffer of 512 MB that is cycled through, so nothing written is still in a cache. The reference is a simple
slicing kernel for the full observation. The clock is the thread's processor time, so neighbours do not count.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import realm  # noqa: F401  (registers Realm-v0)
from realm.env import observe
from realm.env.physics import State, World
from realm.env.realm_env import RealmVectorEnv, make_observation_space, observation_names, step_obs
from realm.errors import ConfigError
from realm.jit import jit
from tools import common

BUFFER_BYTES = 512 * 2**20
COPY, REFERENCE = "np.copyto of the full rows", "reference: slicing kernel"
GOALS = (("full observation", COPY, 0.5), ("rules + rewards", REFERENCE, 20.0), ("vector features", REFERENCE, 12.0))

Call = Callable[[RealmVectorEnv, NDArray[np.int64], int], object]
"""What is timed: environments, actions and the number of the step."""


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


class Player:
    """One variant: environments in mid-episode, random legal actions and a clock around the call only."""

    def __init__(self, num_envs: int, call: Call, observation: str = "full") -> None:
        usr_conf = {"treasure_num": 9}
        self.envs = RealmVectorEnv(num_envs, usr_conf=usr_conf, observation=observation, copy=False)
        self.envs.reset(seed=0)
        self.call = call
        self.tape = np.random.default_rng(0).integers(16, size=(997, num_envs))
        self.t = 0
        for _ in range(300):  # memory maps with visits, flashes used up, compiled code
            self.one()

    def one(self) -> float:
        """Step all environments; returns the seconds it took."""
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


def make_calls(n: int) -> dict[str, Call]:
    """All variants of n environments; rows of observations cycle through one buffer."""
    spaces = make_observation_space(observation_names("full")).spaces
    row_bytes = sum(int(np.prod(box.shape)) * np.dtype(box.dtype).itemsize for box in spaces.values())
    length = -(-BUFFER_BYTES // (row_bytes * n))
    buffer = {name: np.ones((length, n, *box.shape), box.dtype) for name, box in spaces.items()}

    def row(t: int) -> dict[str, NDArray[Any]]:
        return {name: array[t % length] for name, array in buffer.items()}

    def copy_rows(envs: RealmVectorEnv, actions: NDArray[np.int64], t: int) -> None:
        for name, source in envs._buffer.items():
            np.copyto(row(t)[name], source)

    def reference(envs: RealmVectorEnv, actions: NDArray[np.int64], t: int) -> None:
        slice_full(envs.state, envs.world, envs._buffer["image"], envs._buffer["vector"])

    def vector(envs: RealmVectorEnv, actions: NDArray[np.int64], t: int) -> None:
        envs.games.step(actions)
        observe.write_vector(envs.state, envs.world, row(t)["vector"])

    return {
        COPY: copy_rows,
        "full observation": lambda envs, actions, t: step_obs(envs.games, actions, row(t)),
        REFERENCE: reference,
        "rules + rewards": lambda envs, actions, t: envs.games.step(actions),
        "vector features": vector,
        "envs.step, full observation, out=": lambda envs, actions, t: envs.step(actions, out=row(t)),
    }


def measure(n: int, rounds: int, seconds: float) -> dict[str, list[float]]:
    """Steps a second of each variant in each round."""
    players = {name: Player(n, call) for name, call in make_calls(n).items()}
    players["envs.step, observation='vector'"] = Player(n, lambda envs, actions, t: envs.step(actions), "vector")
    singles = {
        "gym.make, env.step": gymnasium.make("Realm-v0"),
        "gym.make, observation='vector'": gymnasium.make("Realm-v0", observation="vector"),
    }
    rates: dict[str, list[float]] = {name: [] for name in [*players, *singles]}
    progress = common.Progress()
    for number in range(rounds):
        progress.show(f"round {number + 1} of {rounds}")
        for name, player in players.items():
            rates[name].append(player.rate(seconds))
        for name, env in singles.items():
            rates[name].append(single_rate(env, seconds / 2))
    progress.clear()
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=0.1, help="of each variant in each round")
    parser.add_argument("--envs", type=int, default=256)
    parser.add_argument("--out", type=Path, default=None, help="where to write the figures, as JSON")
    args = parser.parse_args()
    if min(args.rounds, args.envs) < 1 or args.seconds <= 0:
        raise ConfigError("--rounds and --envs must be at least 1, --seconds above 0")
    if args.out:
        common.check_out(args.out)
    rates = measure(args.envs, args.rounds, args.seconds)
    median = {name: statistics.median(one) for name, one in rates.items()}
    print(f"{args.envs} environments, {args.rounds} rounds\n")
    print(f"{'':36}{'steps/s':>12}{'of copyto':>12}{'of reference':>14}{'spread':>9}")
    for name, rate in median.items():
        spread = (max(rates[name]) - min(rates[name])) / rate
        print(f"{name:36}{rate:12,.0f}{rate / median[COPY]:12.3f}{rate / median[REFERENCE]:14.2f}{spread:9.0%}")
    print()
    for name, base, goal in GOALS:
        ratio = median[name] / median[base]
        print(f"{name + ' / ' + base:52}{ratio:8.2f}   wanted {goal:5.1f}   {'yes' if ratio >= goal else 'NO'}")
    if args.out:
        common.write_json(
            args.out, {"about": common.about(), "envs": args.envs, "steps_per_s": median, "rounds": rates}
        )


if __name__ == "__main__":
    common.command_line(main)
