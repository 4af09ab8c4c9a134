"""The bound: the least steps and the highest score that any policy can reach with a set of treasures.

`make_oracle` prepares a map, a start and an end for all sets of treasures at once; `bound`, `bounds` and `scores` read
the answers off its tables. How the bound comes about is told at `make_oracle`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from realm.env import physics
from realm.env.map import POINTS, Map
from realm.env.oracle import lattice
from realm.env.oracle.lattice import FAR, STEP
from realm.env.oracle.legs import Report, find_legs
from realm.env.oracle.lengths import fill, fill_all

FLASH_PERIOD = physics.FLASH_COOLDOWN + 1  # steps from a flash to the next one, at least
BUFF_PERIOD = physics.BUFF_RETURN + 1  # the same for the buff
_LEGS = 0.8  # share of the legs in the work; the tables over all sets are the rest


class Oracle(NamedTuple):
    """One map, start and end. Sets of treasures are numbers: bit k stands for treasures[k].

    Contacts are the nodes on the border of each trigger disc, and one that stands for its inside; those of treasures[k]
    are block[k] .. block[k + 1] - 1, then come the buff's, then the start. A is their number, C without the start. The
    first axis of `leg` and `last` is 1 while one has the buff, else 0.
    """

    map: Map
    start: int
    end: int
    treasures: tuple[int, ...]  # the points that sets are made of, n of them
    max_step: int  # longest episode that the bounds hold for
    block: NDArray[np.int32]  # [n + 3]
    leg: NDArray[np.int32]  # [2, K, C, A] length from contact [.., a] to contact [.., c, .] with up to k flashes
    last: NDArray[np.int32]  # [2, K, A] the same to the end
    value: NDArray[np.int32]  # [K, B, 2**n, A] from contact a over all of a set and b buffs to the end
    fast: NDArray[np.int32]  # [K, 2**n, A] as value[:, 0], but as if one had the buff all the way
    steps: NDArray[np.int32]  # [2**n] least steps of an episode that takes all of the set, FAR if there is none


class Bound(NamedTuple):
    """What no policy can beat."""

    steps: int  # least steps in which `treasures` can be taken
    score: float
    treasures: tuple[int, ...]  # the best set to take, perhaps not all; none if the end is out of reach, score 0


def make_oracle(
    map_: Map,
    start: int = 2,
    end: int = 1,
    treasures: Sequence[int] | None = None,
    max_step: int = 2000,
    cache: Path | None = None,
    fine: int = lattice.FINEST,
    report: Report | None = None,
) -> Oracle:
    """Prepare the bounds of all subsets of `treasures` (all points but start, end and buff if not given).

    Relaxations that make it a bound: the hero walks the octile metric in continuous space (`make_lattice`) instead of
    whole frames and steps; the discs are as large as the lattice squares that they touch; a diagonal flash may begin
    and land anywhere in a square; a flash takes a step, the buff turns the next 70 steps of way into 50; and that
    flashes and buffs need time between them is asked of the episode as a whole only. Dynamic programming from the end
    over the treasures left and the contacts does the rest exactly, for all sets at once. (The length of a way is linear
    in the place where it crosses an edge of a border, so the best place is a node.) Who gets into a disc by flash and
    out of it by flash never crosses its border: the contacts "inside", which only flashes reach and leave, are for him.

    `cache`: a folder to keep the distances in (.npz), which take most of the time. `fine`: squares along the side of a
    cell; lattice.FINE in place of FINEST gives a bound that is a step lower, in a quarter of the time. report: gets the
    share that is done, 0..1; it begins again where long episodes need more flashes.
    """
    ids = tuple(i for i in range(1, POINTS) if i not in (start, end)) if treasures is None else tuple(sorted(treasures))
    flashes = buffs = 1
    of_legs = report and (lambda share: report(_LEGS * share))
    block, leg, last = find_legs(map_, start, end, ids, flashes, fine, cache, of_legs)
    while True:
        value = np.full((flashes + 1, buffs + 1, 2 ** len(ids), leg.shape[-1]), FAR, dtype=np.int32)
        fill_all(leg, last, block, value)
        steps = least_steps(value[..., -1], max_step)
        # with one more of these a long episode could be shorter
        longest = min(int(steps.max(initial=0)), max_step)  # what is out of reach so far may need them, too
        more_flashes = longest > FLASH_PERIOD * flashes + 1
        more_buffs = longest > BUFF_PERIOD * buffs + 1
        if not (more_flashes or more_buffs):
            fast = np.full(value[:, 0].shape, FAR, dtype=np.int32)
            fast[:, 0] = last[1]
            fill(leg[1], block, fast, np.full((len(fast), block[-2] - block[-3], 2 ** len(ids)), FAR, np.int32), fast)
            return Oracle(map_, start, end, ids, max_step, block, leg, last, value, fast, steps)
        flashes, buffs = flashes + more_flashes, buffs + more_buffs
        if more_flashes:
            block, leg, last = find_legs(map_, start, end, ids, flashes, fine, cache, of_legs)


def least_steps(length: NDArray[np.int32], max_step: int) -> NDArray[np.int32]:
    """Least steps of episodes whose ways have these lengths with f flashes and b buffs, i32 [K, B, ...]; i32 [...]."""
    best = np.full(length.shape[2:], FAR, dtype=np.int32)
    for f in range(len(length)):
        for b in range(len(length[0])):
            # the n-th flash, or buff, cannot come earlier than n - 1 periods after the first step
            earliest = max(FLASH_PERIOD * (f - 1), BUFF_PERIOD * (b - 1), 0) + 1
            best = np.minimum(best, np.maximum(-(-length[f, b] // STEP), earliest))
    return np.where(best <= max_step, best, FAR).astype(np.int32)


def set_index(oracle: Oracle, treasures: Sequence[int]) -> int:
    """The number of a set of treasures: bit k for oracle.treasures[k]."""
    for i in treasures:
        if i not in oracle.treasures:
            raise ValueError(f"treasure {i} is none of this oracle's: {oracle.treasures}")
    return sum(1 << oracle.treasures.index(i) for i in set(treasures))


def set_ids(oracle: Oracle, index: int) -> tuple[int, ...]:
    """The treasures of a set."""
    return tuple(i for k, i in enumerate(oracle.treasures) if index >> k & 1)


def scores(oracle: Oracle, max_step: int = 2000) -> NDArray[np.float64]:
    """The highest score of an episode in which just this set is taken, 0 if there is none; f64 [2**n]."""
    if max_step > oracle.max_step:
        raise ValueError(f"max_step is {max_step}, this oracle was made for at most {oracle.max_step}")
    sets = np.arange(len(oracle.steps))
    count = sum((sets >> k & 1 for k in range(len(oracle.treasures))), np.zeros_like(sets))
    score = physics.END_SCORE + physics.STEP_SCORE * (max_step - oracle.steps) + physics.TREASURE_SCORE * count
    return np.where(oracle.steps <= max_step, score, 0.0)


def bounds(oracle: Oracle, max_step: int = 2000) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """For every set of treasures in the episode the highest score (f64 [2**n]), and what to take for it, which is the
    set or a part of it (i64 [2**n])."""
    score = scores(oracle, max_step)
    take = np.where(score > 0, np.arange(len(score)), 0)
    for k in range(len(oracle.treasures)):
        with_k = np.flatnonzero(np.arange(len(score)) >> k & 1)
        without = with_k ^ (1 << k)
        better = score[without] > score[with_k]
        score[with_k[better]], take[with_k[better]] = score[without[better]], take[without[better]]
    return score, take


def bound(oracle: Oracle, treasures: Sequence[int], max_step: int = 2000) -> Bound:
    """The bound of an episode with these treasures."""
    score, take = bounds(oracle, max_step)
    index = set_index(oracle, treasures)
    return Bound(int(oracle.steps[take[index]]), float(score[index]), set_ids(oracle, int(take[index])))
