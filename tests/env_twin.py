"""A slow, literal twin of the realm in plain Python, written from the rules and not from `physics.py`.

`env/test_twin.py` plays the same action streams here and in the kernels and compares everything to the bit;
run `python tests/env_twin.py 1000000` for a long comparison. One `Twin` is one environment;
`play_and_compare` plays E of them beside a `RealmVectorEnv`.
"""

from __future__ import annotations

import math
import sys
import time
from collections import deque
from typing import Any

import numpy as np

from realm.env.map import CELL, Map, MapError
from realm.env.realm_env import RealmVectorEnv

ROOT_HALF = math.sqrt(0.5)
COMPASS = [
    (1.0, 0.0),
    (ROOT_HALF, ROOT_HALF),
    (0.0, 1.0),
    (-ROOT_HALF, ROOT_HALF),
    (-1.0, 0.0),
    (-ROOT_HALF, -ROOT_HALF),
    (0.0, -1.0),
    (ROOT_HALF, -ROOT_HALF),
]


class Splitmix:
    """splitmix64, in Python's integers."""

    def __init__(self, seed: int) -> None:
        self.state = int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0])

    def below(self, n: int) -> int:
        mask = 2**64 - 1
        self.state = (self.state + 0x9E3779B97F4A7C15) & mask
        v = self.state
        v = ((v ^ (v >> 30)) * 0xBF58476D1CE4E5B9) & mask
        v = ((v ^ (v >> 27)) * 0x94D049BB133111EB) & mask
        v ^= v >> 31
        return ((v >> 32) * n) >> 32


class Twin:
    """One realm. `road[z][x]`, `points[i] = (x, z)`, `walk[i][(x, z)]` = steps from a cell to point i."""

    def __init__(self, map_: Map, seed: int) -> None:
        self.road = [[bool(v) for v in row] for row in map_.road]
        self.points = [(float(x), float(z)) for x, z in map_.points]
        self.walk = [self._flood(i) for i in range(16)]
        self.random = Splitmix(seed)

    def cell(self, x: float, z: float) -> tuple[int, int]:
        return math.floor(x / CELL), math.floor(z / CELL)

    def on_road(self, x: float, z: float) -> bool:
        cx, cz = self.cell(x, z)
        return 0 <= cx < 128 and 0 <= cz < 128 and self.road[cz][cx]

    def _flood(self, i: int) -> dict[tuple[int, int], int]:
        first = self.cell(*self.points[i])
        steps = {first: 0}
        queue = deque([first])
        while queue:
            x, z = queue.popleft()
            for near in ((x + 1, z), (x - 1, z), (x, z + 1), (x, z - 1)):
                inside = 0 <= near[0] < 128 and 0 <= near[1] < 128
                if inside and self.road[near[1]][near[0]] and near not in steps:
                    steps[near] = steps[(x, z)] + 1
                    queue.append(near)
        return steps

    def reset(self, conf: dict[str, Any]) -> None:
        """conf: start, end, max_step and either treasure_id or treasure_num."""
        self.start, self.end, self.max_step = conf["start"], conf["end"], conf["max_step"]
        if "treasure_id" in conf:
            self.planned = set(conf["treasure_id"])
        else:
            bag = [i for i in range(1, 16) if i not in (self.start, self.end)]
            for k in range(conf["treasure_num"]):
                j = k + self.random.below(len(bag) - k)
                bag[k], bag[j] = bag[j], bag[k]
            self.planned = set(bag[: conf["treasure_num"]])
        self.left = set(self.planned)
        self.x, self.z = self.points[self.start]
        self.came_from = (self.x, self.z)
        self.steps = self.walls = self.flashes = self.buffs = 0
        self.buff_left = self.buff_away = self.cooldown = 0
        self.score = self.reward = 0.0
        self.terminated = self.truncated = False
        self.fresh = True
        self.took, self.took_buff, self.flashed, self.hit = 0, False, False, False
        self.visits = {self.cell(self.x, self.z): 1}

    def step(self, action: int) -> None:
        was_fast, buff_was_there = self.buff_left > 0, self.buff_away == 0
        flash = action >= 8 and self.cooldown == 0
        east, north = COMPASS[action % 8]
        before, before_score = (self.x, self.z), self.score
        self.fresh, self.took, self.took_buff, self.flashed = False, 0, False, flash
        self.came_from = before
        if flash:
            to = (self.x + east * 8000.0, self.z + north * 8000.0)
            if self.on_road(*to):
                self.x, self.z = to
            self.flashes += 1
            at_end = self.look_around(buff_was_there)
        else:
            speed = 233.0 * 1.4 if was_fast else 233.0
            at_end = False
            for _ in range(3):
                if at_end:
                    continue
                tries = [
                    (self.x + east * speed, self.z + north * speed),
                    (self.x + east * speed, self.z),
                    (self.x, self.z + north * speed),
                    (self.x, self.z),
                ]
                self.x, self.z = next(to for to in tries if self.on_road(*to))
                at_end = self.look_around(buff_was_there)
        self.steps += 1
        far_enough = 7900.0 if flash else 900.0 if was_fast else 600.0
        moved = (self.x - before[0], self.z - before[1])
        self.hit = not at_end and moved[0] * moved[0] + moved[1] * moved[1] < far_enough * far_enough
        self.walls += self.hit
        here = self.cell(self.x, self.z)
        self.visits[here] = self.visits.get(here, 0) + 1
        self.cooldown = 606 if flash else max(0, self.cooldown - 1)
        self.buff_left = 50 if self.took_buff else max(0, self.buff_left - 1)
        self.buff_away = 454 if self.took_buff else max(0, self.buff_away - 1)
        taken = len(self.planned) - len(self.left)
        self.terminated, self.truncated = at_end, not at_end and self.steps == self.max_step
        if self.terminated:
            self.score = 150 + 0.2 * (self.max_step - self.steps) + 100 * taken
        else:
            self.score = 0.0 if self.truncated else 100.0 * taken
        self.reward = self.score - before_score

    def look_around(self, buff_was_there: bool) -> bool:
        """Take treasures and buff in reach; whether the end is."""
        for i in sorted(self.left):
            if self.reaches(i):
                self.left.remove(i)
                self.took += 1
        if buff_was_there and not self.took_buff and self.reaches(0):
            self.took_buff = True
            self.buffs += 1
        return self.reaches(self.end)

    def reaches(self, i: int) -> bool:
        dx, dz = self.x - self.points[i][0], self.z - self.points[i][1]
        return dx * dx + dz * dz <= 1000.0 * 1000.0

    # ---- what the player sees ----

    def grid_distance(self, i: int) -> float:
        return min(1.0, self.walk[i].get(self.cell(self.x, self.z), 10**6) / 256)

    def vector(self) -> list[float]:
        there = [i in self.left for i in range(3, 16)]
        buff = self.buff_away == 0
        return [
            self.x / 64000,
            self.z / 64000,
            *map(float, there),
            *(self.grid_distance(i) if i in self.left else 1.0 for i in range(3, 16)),
            float(buff),
            self.grid_distance(0) if buff else 1.0,
            self.grid_distance(self.end),
        ]

    def image(self) -> np.ndarray:
        """f64 [4, 51, 51], the game's values."""
        cx, cz = self.cell(self.x, self.z)
        things = {self.cell(*self.points[i]) for i in self.left}
        out = np.zeros((4, 51, 51))
        for row in range(51):
            for column in range(51):
                x, z = cx + column - 25, cz + row - 25
                if 0 <= x < 128 and 0 <= z < 128:
                    out[0, row, column] = self.road[z][x]
                    out[1, row, column] = min(5, self.visits.get((x, z), 0)) / 5
                    out[2, row, column] = (x, z) in things
                    out[3, row, column] = (x, z) == self.cell(*self.points[self.end])
        return out

    def mask(self) -> list[int]:
        return [1] * 8 + [int(self.cooldown == 0)] * 8


def differences(twin: Twin, state: Any, e: int, obs: dict[str, np.ndarray], with_image: bool) -> list[str]:
    """What differs between the twin and environment e, exactly."""
    cx, cz = twin.cell(twin.x, twin.z)
    pairs: dict[str, tuple[Any, Any]] = {
        "x": (twin.x, state.x[e]),
        "z": (twin.z, state.z[e]),
        "from": (twin.came_from, (state.from_x[e], state.from_z[e])),
        "cell": ((cx, cz), (state.cell_x[e], state.cell_z[e])),
        "episode": (
            (twin.start, twin.end, twin.max_step, len(twin.planned)),
            (state.start[e], state.end[e], state.max_step[e], state.total[e]),
        ),
        "planned": (sorted(twin.planned), state.planned[e].nonzero()[0].tolist()),
        "there": (
            sorted(twin.left | ({0} if twin.buff_away == 0 else set())),
            state.there[e].nonzero()[0].tolist(),
        ),
        "counters": (
            (twin.steps, len(twin.planned) - len(twin.left), twin.buffs, twin.flashes, twin.walls),
            (state.steps[e], state.treasures[e], state.buffs[e], state.flashes[e], state.walls[e]),
        ),
        "timers": (
            (twin.buff_left, twin.buff_away, twin.cooldown),
            (state.buff_left[e], state.buff_wait[e], state.flash_wait[e]),
        ),
        "score": ((twin.score, twin.reward), (state.score[e], state.reward[e])),
        "over": ((twin.terminated, twin.truncated), (state.terminated[e], state.truncated[e])),
        "step": (
            (twin.fresh, twin.took, twin.took_buff, twin.flashed, twin.hit),
            (
                state.fresh[e],
                state.took_treasures[e],
                state.took_buff[e],
                state.used_flash[e],
                state.hit_wall[e],
            ),
        ),
        "visits": (51 * min(5, twin.visits[(cx, cz)]), state.memory[e, cz + 25, cx + 25]),
        "vector": (np.array(twin.vector(), np.float32).tobytes(), obs["vector"][e].tobytes()),
        "mask": (twin.mask(), obs["action_mask"][e].tolist()),
    }
    if with_image:
        pairs["image"] = ((twin.image() * 255).round().astype(np.uint8).tobytes(), obs["image"][e].tobytes())
    return [f"{name}: twin {a}, kernel {b}" for name, (a, b) in pairs.items() if a != b]


# ---- streams ----


def random_conf(rng: np.random.Generator) -> dict[str, Any]:
    start, end = (int(i) for i in rng.choice(np.arange(1, 16), 2, replace=False))
    conf: dict[str, Any] = {"start": start, "end": end}
    conf["max_step"] = int(rng.choice([1, 2, 40, 300, 900, 2000], p=[0.05, 0.05, 0.2, 0.3, 0.2, 0.2]))
    others = [i for i in range(1, 16) if i not in (start, end)]
    n = int(rng.integers(14))
    if rng.random() < 0.5:
        conf["treasure_num"] = n
    else:
        conf["treasure_id"] = [int(i) for i in rng.permutation(others)[:n]]
    return conf


def rough_map(seed: int) -> Map:
    """An ugly map: single cells of obstacle, road up to the border, points in a heap, off the cells'
    centres."""
    rng = np.random.default_rng(seed)
    while True:
        road = (rng.random((128, 128)) < 0.75).astype(np.uint8)
        middle = rng.integers(0, 128, 2)
        points = np.clip(middle + rng.normal(0, 4, (16, 2)), 0, 127.99) * CELL
        try:
            return Map(road, points)
        except MapError:
            continue


def choose(twin: Twin, mood: int, held: int, rng: np.random.Generator) -> int:
    """An action for one of five moods: random, keep going, seek things, seek the end, flash a lot."""
    roll = rng.random()
    if mood == 0:
        return int(rng.integers(16))
    if mood == 1:
        return held if roll < 0.9 else int(rng.integers(8)) if roll < 0.98 else int(rng.integers(8, 16))
    if mood == 4:
        return int(rng.integers(8, 16)) if roll < 0.5 else held % 8
    if roll < 0.15:
        return int(rng.integers(16))
    goals = [twin.end] if mood == 3 else [*sorted(twin.left), *([0] if twin.buff_away == 0 else [])]
    goals = goals or [twin.end]
    walk = twin.walk[min(goals, key=lambda i: (twin.grid_distance(i), i))]
    ahead = [twin.cell(twin.x + dx * 650, twin.z + dz * 650) for dx, dz in COMPASS]
    return min(range(8), key=lambda a: (walk.get(ahead[a], 10**6), a))


def play_and_compare(
    map_: Map, total_steps: int, seed: int, num_envs: int = 16, image_every: int = 50
) -> dict[str, int]:
    """Play `total_steps` environment steps on both and raise at the first difference; returns what was
    met."""
    rng = np.random.default_rng(seed)
    layouts = [random_conf(rng) for _ in range(257)]
    envs = RealmVectorEnv(num_envs, layouts=layouts, map=map_, copy=False)
    obs, _ = envs.reset(seed=seed)
    twins = [Twin(map_, seed + e) for e in range(num_envs)]
    handed_out = 0
    moods, held = [0] * num_envs, [0] * num_envs
    met = dict.fromkeys(("episodes", "terminated", "treasures", "both", "buffs", "walls", "landed", "failed"), 0)
    over = [True] * num_envs
    for t in range(-(-total_steps // num_envs) + 1):
        for e, twin in enumerate(twins):
            if over[e]:
                twin.reset(layouts[handed_out % len(layouts)])
                handed_out += 1
                moods[e] = int(rng.integers(5))
                met["episodes"] += 1
            else:
                twin.step(held[e])
                met["terminated"] += twin.terminated
                met["treasures"] += twin.took
                met["both"] += twin.terminated and twin.took > 0
                met["buffs"] += twin.took_buff
                met["walls"] += twin.hit
                met["landed"] += twin.flashed and not twin.hit
                met["failed"] += twin.flashed and twin.hit
            wrong = differences(twin, envs.state, e, obs, (t * num_envs + e) % image_every == 0)
            if wrong:
                raise AssertionError(f"seed {seed}, round {t}, environment {e}: " + "; ".join(wrong))
            over[e] = twin.terminated or twin.truncated
            held[e] = choose(twin, moods[e], held[e], rng)
        obs = envs.step(np.array(held))[0]
    return met


def main() -> None:
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    from realm.env import map as maps

    began = time.monotonic()
    met: dict[str, int] = {}
    for name, map_ in (
        ("default", maps.default()),
        ("generated 3", maps.generate(3)),
        ("rough 0", rough_map(0)),
        ("rough 1", rough_map(1)),
    ):
        met = play_and_compare(map_, steps // 4, seed=1000)
        print(f"{name}: {steps // 4} steps agree to the bit after {time.monotonic() - began:.0f} s, met {met}")


if __name__ == "__main__":
    main()
