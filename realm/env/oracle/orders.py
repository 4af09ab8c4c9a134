"""Plans: the best orders to take the points in, by the lengths of the oracle's table.

`plans` is called by `solving.solve`, which plays them.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from realm.env.oracle.bounding import Oracle, least_steps, set_index
from realm.env.oracle.lattice import FAR, boosted


class Plan(NamedTuple):
    """An order to do things in. Where to flash is not fixed before it is played."""

    order: tuple[int, ...]  # points to take, without the end; 0 is the buff
    flashes: int  # at most
    length: int  # of the relaxed way, in lattice lengths (STEP to a step) and less what the buff saves


def plans(oracle: Oracle, treasures: Sequence[int], number: int = 1) -> list[Plan]:
    """Orders to take all of `treasures` in: the `number` with the shortest relaxed ways with the buff, and as many
    without it, shortest first. (With two buffs, which the relaxation lets follow each other at once, see `solve`.)"""
    everything = set_index(oracle, treasures)
    if oracle.steps[everything] >= FAR:
        return []
    length = oracle.value[:, :, everything : everything + 1, -1]
    # no more flashes than the bound needs
    flashes = min(range(len(length)), key=lambda f: (int(least_steps(length[: f + 1], oracle.max_step)[0]), f))
    found: list[Plan] = []
    for buffs in range(min(2, length.shape[1])):
        if length[flashes, buffs, 0] < FAR:
            found += _shortest(oracle, everything, flashes, buffs, number)
    return sorted(found, key=lambda plan: plan.length)


def _shortest(oracle: Oracle, everything: int, flashes: int, buffs: int, number: int) -> list[Plan]:
    """The plans for one count of buffs. Best first search: every beginning of an order is looked at by the length of
    its best continuation, which `value` knows."""
    found: list[Plan] = []
    tie = itertools.count()  # the older entry goes first
    # (length, tie, blocks done, treasures left, buffs left, whether the end comes next)
    heap: list[tuple[int, int, tuple[int, ...], int, int, bool]] = [(0, 0, (), everything, buffs, False)]
    while heap and len(found) < number:
        length, _, done, left, buffs_left, closed = heapq.heappop(heap)
        if closed:
            found.append(Plan(tuple((*oracle.treasures, 0)[k] for k in done), flashes, length))
            continue
        children = [((*done, k), left ^ (1 << k), buffs_left) for k in range(len(oracle.treasures)) if left >> k & 1]
        if buffs_left:
            children.append(((*done, len(oracle.treasures)), left, buffs_left - 1))
        for child in children:
            heapq.heappush(heap, (_length(oracle, *child, flashes, False), next(tie), *child, False))
        if not children:
            heapq.heappush(heap, (_length(oracle, done, 0, 0, flashes, True), next(tie), done, 0, 0, True))
    return found


def _length(oracle: Oracle, done: tuple[int, ...], left: int, buffs: int, flashes: int, closed: bool) -> int:
    """The least length of a way that begins with the blocks `done` in order and goes on as is best, or ends. (For how
    long one gets around corners better after a buff is not asked here: it hardly changes which order is best.)"""
    block, leg, buff = oracle.block, oracle.leg, len(oracle.treasures)
    where = [slice(-1, None), *(slice(block[k], block[k + 1]) for k in done)]
    after = int(buff in done)
    rest = oracle.last[after] if closed else oracle.fast[:, left] if after else oracle.value[:, buffs, left]
    rest = rest[: flashes + 1, where[-1]]
    for m in range(len(done) - 1, -1, -1):
        if done[m] == buff:
            rest = boosted(rest)
        way = leg[int(buff in done[:m]), :, where[m + 1], where[m]]
        rest = np.stack(
            [np.min([(way[k] + rest[f - k, :, None]).min(0) for k in range(f + 1)], axis=0) for f in range(flashes + 1)]
        )
    return int(rest[flashes, 0])
