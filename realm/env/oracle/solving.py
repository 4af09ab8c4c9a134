"""Plays that come close to the bound: the best plans, played by the rules.

`solve` gives the bound of an episode and the best play found, `play_sets` does that for many sets of treasures,
`replay` plays given actions. The search itself is in `beam.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from realm.env.games import Games
from realm.env.map import POINTS
from realm.env.oracle import beam, fields
from realm.env.oracle.bounding import BUFF_PERIOD, Bound, Oracle, bound, scores, set_ids, set_index
from realm.env.oracle.cache import SOURCES, keep_arrays, kept_arrays, key_of
from realm.env.oracle.lattice import STEP
from realm.env.oracle.orders import Plan, plans

TRIES, WIDTH = 4, 100  # see `solve`
PLAN_SLACK = 6  # plans that may take N steps more than the best one are tried as well
# when time is short: for each of these factors, SETS of the best sets whose bound times the factor is in time
SETS, LONGER = 3, (1.0, 1.03, 1.06, 1.12)
LATER = 4  # a second buff is tried before each of the last N points of an order
SAVE_EVERY_S = 10.0


class Run(NamedTuple):
    """An episode that was played."""

    actions: NDArray[np.int64]  # [T]
    route: NDArray[np.float64]  # [T + 1, 2] x and z before each step and at the end
    flashes: tuple[int, ...]  # the steps, counted from 0, that were flashes: from route[t] to route[t + 1]
    taken: tuple[int, ...]  # points as they were taken, 0 is the buff
    steps: int
    score: float  # 0 if the end was not reached


class Played(NamedTuple):
    """Results of many episodes, each [S]."""

    steps: NDArray[np.int32]
    treasures: NDArray[np.int32]  # taken
    buffs: NDArray[np.int32]  # taken
    score: NDArray[np.float64]
    cpu_s: NDArray[np.float64]  # what it took to find them


class Solution(NamedTuple):
    """What is possible at most, and a play that comes close."""

    bound: Bound
    plan: Plan | None  # the one that was played; None if none was found, and no step made
    run: Run


def solve(
    oracle: Oracle,
    treasures: Sequence[int],
    max_step: int = 2000,
    tries: int = TRIES,
    width: int = WIDTH,
    ready: fields.Player | None = None,
) -> Solution:
    """The bound of an episode with these treasures, and the best play found: up to `tries` plans with and as many
    without the buff, searched by beams of `width` states. Takes some tenths of a second, less with a player (of
    `make_player`) made once for many; with four times the tries and three times the width some seconds, for a step less
    in one of ten.

    If max_step is too short for all of `treasures`, SETS * len(LONGER) parts of them at most are tried, and the one of
    the least steps: some seconds, and perhaps not the best.
    """
    limit, whole, worth = bound(oracle, treasures, max_step), set_index(oracle, treasures), scores(oracle, max_step)
    ready = ready or make_player(oracle)
    best = Solution(limit, None, replay(oracle, treasures, max_step, np.empty(0, dtype=np.int64)))
    parts = sorted(
        (part for part in range(len(worth)) if part & ~whole == 0 and worth[part] > 0), key=lambda p: -worth[p]
    )
    tried: set[int] = set()
    for factor in LONGER:
        in_time = [part for part in parts if part not in tried and oracle.steps[part] * factor <= max_step]
        for part in in_time[:SETS]:
            if worth[part] > best.run.score:
                tried.add(part)
                best = _better(oracle, best, ready, part, treasures, max_step, tries, width)
    if parts and best.plan is None:
        part = min(parts, key=lambda p: int(oracle.steps[p]))
        best = _better(oracle, best, ready, part, treasures, max_step, tries, width)
    return best


def _better(
    oracle: Oracle,
    best: Solution,
    ready: fields.Player,
    part: int,
    treasures: Sequence[int],
    max_step: int,
    tries: int,
    width: int,
) -> Solution:
    """`best`, or a better play that takes just the set `part`."""

    def play(some: list[Plan], longest: int) -> None:
        nonlocal best
        ways = fields.make_ways(ready, [plan.order for plan in some], some[0].flashes)
        played = beam.play(ready, ways, treasures, longest, width)
        if played is not None:
            run = replay(oracle, treasures, max_step, played[1])
            if run.score > best.run.score:
                best = Solution(best.bound, some[played[0]], run)

    found = plans(oracle, set_ids(oracle, part), tries)
    play([plan for plan in found if plan.length <= found[0].length + PLAN_SLACK * STEP], max_step)
    plan = best.plan
    if plan is not None and 0 in plan.order and best.run.steps > BUFF_PERIOD:
        for m in range(max(plan.order.index(0) + 2, len(plan.order) + 1 - LATER), len(plan.order) + 1):
            again = plan._replace(order=(*plan.order[:m], 0, *plan.order[m:]))
            play([again], min(max_step, best.run.steps - 1))
    return best


def make_player(oracle: Oracle) -> fields.Player:
    """What `solve` needs apart from the oracle, to be made once for many calls."""
    return fields.make_player(oracle.map, oracle.start, oracle.end, oracle.treasures)


def play_sets(
    oracle: Oracle,
    sets: Sequence[int] | NDArray[np.int64],
    cache: Path | None = None,
    max_step: int = 2000,
    report: Callable[[int, int], None] | None = None,
    tries: int = TRIES,
    width: int = WIDTH,
) -> Played:
    """`solve` episodes with these sets of treasures (numbers as of `set_index`, S of them).

    `cache`: a folder to keep the results in (.npz, saved every few seconds), so that what was played once, also by a
    run that was stopped, is not played again. `report` is told how many are done and how many there are to play.
    """
    numbers = (oracle.start, oracle.end, max_step, tries, width, *oracle.treasures)
    file = None if cache is None else cache / f"played-{key_of(oracle.map, numbers, SOURCES)}.npz"
    every = np.asarray(sets, dtype=np.int64)
    known = _load_played(file, len(oracle.steps))
    todo = [int(part) for part in np.unique(every) if known["steps"][part] < 0]
    ready, saved = make_player(oracle), time.monotonic()
    for n, part in enumerate(todo):
        begin = time.process_time()
        run = solve(oracle, set_ids(oracle, part), max_step, tries, width, ready).run
        buffs = run.taken.count(0)
        values = (run.steps, len(run.taken) - buffs, buffs, run.score, time.process_time() - begin)
        for field, value in zip(Played._fields, values, strict=True):
            known[field][part] = value
        if file is not None and (n + 1 == len(todo) or time.monotonic() > saved + SAVE_EVERY_S):
            others = _load_played(file, len(oracle.steps))  # somebody else may have played meanwhile
            new = known["steps"] < 0
            for field, array in known.items():
                array[new] = others[field][new]
            keep_arrays(file, **known)
            saved = time.monotonic()
        if report is not None:
            report(n + 1, len(todo))
    return Played(**{field: array[every] for field, array in known.items()})


def _load_played(file: Path | None, sets: int) -> dict[str, NDArray[Any]]:
    """The arrays of `Played` for all sets, -1 steps where the file has none."""
    known = None if file is None else kept_arrays(file)
    if known is not None:
        return known
    counts = {field: np.full(sets, -1, dtype=np.int32) for field in ("steps", "treasures", "buffs")}
    return {**counts, "score": np.zeros(sets), "cpu_s": np.zeros(sets)}


def replay(oracle: Oracle, treasures: Sequence[int], max_step: int, actions: NDArray[np.int64]) -> Run:
    """Play actions (i64 [T]) in the real environment."""
    games = Games(1, {"start": oracle.start, "end": oracle.end, "max_step": max_step}, [list(treasures)], oracle.map)
    state = games.state
    games.reset()
    route, flashes, taken = [(state.x[0], state.z[0])], [], []
    for t, action in enumerate(actions):
        there = state.there[0].copy()
        games.step(np.array([action]))
        route.append((state.x[0], state.z[0]))
        if state.used_flash[0]:
            flashes.append(t)
        taken += [0] * bool(state.took_buff[0])
        taken += [i for i in range(1, POINTS) if there[i] > state.there[0, i]]
        if state.terminated[0] or state.truncated[0]:
            break
    score = float(state.score[0]) if state.terminated[0] else 0.0
    return Run(actions, np.array(route), tuple(flashes), tuple(taken), int(state.steps[0]), score)
