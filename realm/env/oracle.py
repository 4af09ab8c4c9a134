"""The oracle: what the best possible play of an episode can score at most, and a play that comes close.

For `realm oracle`, `tools/study/oracle_table.py` and whoever measures agents. `make_oracle` prepares a map, a start and
an end; `bound` gives the least steps and the highest score that any policy can reach with a set of treasures, `plans`
the best orders to take them in, `solve` both and the best plan played in the real environment (`oracle_play.py`),
`play_sets` that for many sets. How the bound comes about is told at `make_oracle`.
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
import os
import time
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from realm.env import oracle_lattice as lattice
from realm.env import oracle_play as player
from realm.env import physics
from realm.env.games import Games
from realm.env.map import CELL, POINTS, SIZE, Map
from realm.env.oracle_lattice import BOOST_STEPS, END_BIT, FAR, STEP, Lattice, boost, boosted
from realm.jit import jit

FLASH_PERIOD = physics.FLASH_COOLDOWN + 1  # steps from a flash to the next one, at least
BUFF_PERIOD = physics.BUFF_RETURN + 1  # the same for the buff
TRIES, WIDTH = 4, 100  # see `solve`
PLAN_SLACK = 6  # plans that may take so many steps more than the best one are tried as well
# when time is short: so many of the best sets are tried whose bounds, made longer by each of these factors, are in time
SETS, LONGER = 3, (1.0, 1.03, 1.06, 1.12)
LATER = 4  # a second buff is tried before each of so many points at the end of an order
SAVE_EVERY_S = 10.0
# Length of a way from where the buff's disc is entered to where the buff is over at the latest: what it makes of its
# steps, one step until it counts, and a few in which one can walk along the rim of the disc before being inside.
HASTE = (BOOST_STEPS + 4) * STEP


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


class Plan(NamedTuple):
    """An order to do things in. Where to flash is not fixed before it is played."""

    order: tuple[int, ...]  # points to take, without the end; 0 is the buff
    flashes: int  # at most so many
    length: int  # of the relaxed way, in lattice lengths (STEP to a step) and less what the buff saves


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


def make_oracle(
    map_: Map,
    start: int = 2,
    end: int = 1,
    treasures: Sequence[int] | None = None,
    max_step: int = 2000,
    cache: Path | None = None,
    fine: int = lattice.FINEST,
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
    cell; lattice.FINE in place of FINEST gives a bound that is a step lower, in a quarter of the time.
    """
    ids = tuple(i for i in range(1, POINTS) if i not in (start, end)) if treasures is None else tuple(sorted(treasures))
    flashes = buffs = 1
    block, leg, last = _legs(map_, start, end, ids, flashes, fine, cache)
    while True:
        value = np.full((flashes + 1, buffs + 1, 2 ** len(ids), leg.shape[-1]), FAR, dtype=np.int32)
        _fill_all(leg, last, block, value)
        steps = _steps(value[..., -1], max_step)
        # with one more of these a long episode could be shorter
        longest = min(int(steps.max(initial=0)), max_step)  # what is out of reach so far may need them, too
        more_flashes = longest > FLASH_PERIOD * flashes + 1
        more_buffs = longest > BUFF_PERIOD * buffs + 1
        if not (more_flashes or more_buffs):
            fast = np.full(value[:, 0].shape, FAR, dtype=np.int32)
            fast[:, 0] = last[1]
            _fill(leg[1], block, fast, np.full((len(fast), block[-2] - block[-3], 2 ** len(ids)), FAR, np.int32), fast)
            return Oracle(map_, start, end, ids, max_step, block, leg, last, value, fast, steps)
        flashes, buffs = flashes + more_flashes, buffs + more_buffs
        if more_flashes:
            block, leg, last = _legs(map_, start, end, ids, flashes, fine, cache)


def _steps(length: NDArray[np.int32], max_step: int) -> NDArray[np.int32]:
    """Least steps of episodes whose ways have these lengths with f flashes and b buffs, i32 [K, B, ...]; i32 [...]."""
    best = np.full(length.shape[2:], FAR, dtype=np.int32)
    for f in range(len(length)):
        for b in range(len(length[0])):
            # the n-th flash, or buff, cannot come earlier than n - 1 periods after the first step
            earliest = max(FLASH_PERIOD * (f - 1), BUFF_PERIOD * (b - 1), 0) + 1
            best = np.minimum(best, np.maximum(-(-length[f, b] // STEP), earliest))
    return np.where(best <= max_step, best, FAR).astype(np.int32)


def _legs(
    map_: Map, start: int, end: int, ids: tuple[int, ...], flashes: int, fine: int, cache: Path | None
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]:
    """Oracle.block, .leg and .last, from the cache if they are there."""
    if cache is None:
        return _new_legs(map_, start, end, ids, flashes, fine)
    file = cache / f"oracle-{_digest(map_, start, end, flashes, fine, *ids)}.npz"
    known = _read(file)
    if known is not None:
        return known["block"], known["leg"], known["last"]
    block, leg, last = _new_legs(map_, start, end, ids, flashes, fine)
    _save(file, block=block, leg=leg, last=last)
    return block, leg, last


def _digest(map_: Map, *numbers: int) -> str:
    """A name for what follows from a map, these numbers and the code."""
    digest = hashlib.sha256()
    for part in (map_.road, map_.points, np.array(numbers)):
        digest.update(part.tobytes())
    for module in (__file__, lattice.__file__, player.__file__, physics.__file__):
        digest.update(Path(module).read_bytes())
    return digest.hexdigest()[:24]


def _read(file: Path) -> dict[str, NDArray[Any]] | None:
    """The arrays that `_save` wrote; None if there is no such file, or a damaged one, which will be written anew."""
    try:
        with np.load(file, allow_pickle=False) as data:
            return dict(data)
    except (OSError, ValueError, EOFError, BadZipFile, zlib.error):
        return None


def _save(file: Path, **arrays: NDArray[Any]) -> None:
    """Write arrays in one go, so that nobody reads half a file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(f"{file.stem}-{os.getpid()}.npz")
    np.savez(draft, **arrays)
    draft.replace(file)


def _new_legs(
    map_: Map, start: int, end: int, ids: tuple[int, ...], flashes: int, fine: int
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]:
    """Oracle.block, .leg and .last."""
    discs = (*ids, 0)
    gap = np.sqrt(((map_.points[:, None] - map_.points[None]) ** 2).sum(-1))
    alone, apart = physics.TRIGGER_RADIUS + lattice.MARGIN, 2 * (physics.TRIGGER_RADIUS + lattice.MARGIN)
    closed = lattice.end_is_clear(map_, start, end, discs)
    frames = (physics.WALK_FRAME, physics.BUFF_FRAME)  # with the buff a frame may cut more of a corner
    grids = [lattice.make_lattice(map_, end, closed, frame, fine) for frame in frames]
    ends = [lattice.make_lattice(map_, end, False, frame, fine) for frame in frames]
    borders = [lattice.border(grids[1], i) for i in discs]
    node = np.concatenate([np.append(border, -1) for border in borders]).astype(np.int32)  # -1: inside
    owner = np.repeat(np.arange(len(discs)), [len(border) + 1 for border in borders])
    point = np.array(discs, dtype=np.int32)[owner]
    begin = lattice.nodes_at(*map_.points[start], fine=fine)
    queues = lattice.make_queues(grids[0].side + 1)
    slow = _measure(grids[0], ends[0], queues, node, point, begin, flashes + 1, 0)
    if fine == lattice.FINE:
        fast = _measure(grids[1], ends[1], queues, node, point, begin, flashes + 1, 0)
    else:
        walks = _measure(grids[1], ends[1], queues, node, point, begin, 1, 0)
        # few of the best ways flash after the buff, so this may be coarser
        flashed = _flashes(map_, start, end, closed, fine, queues, node, point, flashes)
        fast = tuple(np.concatenate([a, np.minimum(a, b)]) for a, b in zip(walks, flashed, strict=True))
    leg, last = (np.stack(pair) for pair in zip(slow, fast, strict=True))
    # what overlapping discs make possible
    inside = np.flatnonzero(node < 0)
    for a in inside:
        for c in inside:
            # (one may wait in the buff's disc for the next one)
            if (a != c or point[a] == 0) and gap[point[a], point[c]] <= apart:
                leg[:, :, c, a] = 0
        if gap[point[a], end] <= apart:
            last[:, :, a] = 0
        if gap[start, point[a]] <= alone:
            leg[:, :, a, -1] = 0
        if point[a] != 0:
            leg[:, :, owner == owner[a], a] = FAR
    layers = 2 * (flashes + 1)
    keep = np.flatnonzero(
        _useful(leg.reshape(layers, *leg.shape[2:]), last.reshape(layers, -1), owner, len(ids)),
    )
    block = np.append(np.searchsorted(owner[keep], np.arange(len(discs) + 1)), len(keep) + 1).astype(np.int32)
    ways = np.append(keep, len(node))
    leg, last = np.ascontiguousarray(leg[:, :, keep][..., ways]), np.ascontiguousarray(last[..., ways])
    _close(leg, block)
    return block, leg, last


def _flashes(
    map_: Map,
    start: int,
    end: int,
    closed: bool,
    fine: int,
    q: lattice.Queues,
    node: NDArray[np.int32],
    point: NDArray[np.int32],
    flashes: int,
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Distances after a buff between contacts with up to 1 .. `flashes` flashes: i32 [flashes, C, C + 1], and to the
    end: i32 [flashes, C + 1]. `node` is of the lattice with `fine`, but they are measured on a coarser one: of a
    contact between its nodes the ways from and to all nodes around it, and the shortest one counts. As a way's length
    is linear between those, this is not longer than the true one, and between a contact and the next one it changes no
    faster than linearly, so the best place is still a contact.
    """
    grid, open_ = (lattice.make_lattice(map_, end, shut, physics.BUFF_FRAME) for shut in (closed, False))
    inside = np.flatnonzero(node < 0)
    places = [np.array(divmod(int(n), SIZE * fine + 1)) * CELL / fine for n in node]
    around = [lattice.nodes_at(x, z) for z, x in places]
    spots = np.unique(np.concatenate([around[c] for c in np.flatnonzero(node >= 0)]))
    targets = np.concatenate([spots, np.full(len(inside), -1)]).astype(np.int32)
    owners = np.concatenate([np.zeros(len(spots)), point[inside]]).astype(np.int32)
    begin = lattice.nodes_at(*map_.points[start])
    ways, ways_to_end = _measure(grid, open_, q, targets, owners, begin, flashes + 1, lattice.SLACK)
    leg, last = ways[1:], ways_to_end[1:]
    # up to four nodes of each contact
    at = np.stack([np.resize(np.searchsorted(spots, nodes), 4) for nodes in around])
    at[inside] = len(spots) + np.arange(len(inside))[:, None]
    sources = np.concatenate([at, np.full((1, 4), len(targets))])
    near = np.min([leg[..., sources[:, i]] for i in range(4)], axis=0)
    return (
        np.min([near[:, at[:, i]] for i in range(4)], axis=0),
        np.min([last[:, sources[:, i]] for i in range(4)], axis=0),
    )


@jit
def _measure(
    grid: Lattice,
    end: Lattice,
    q: lattice.Queues,
    node: NDArray[np.int32],
    point: NDArray[np.int32],
    begin: NDArray[np.int32],
    layers: int,
    slack: int,
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Distances with up to 0, 1 .. layers - 1 flashes, of which `slack` is told at `lattice.distances_from`: from each
    of C contacts and the start, which is at the nodes `begin`, to each contact, i32 [layers, C, C + 1], and to the end,
    i32 [layers, C + 1]. node: i32 [C], -1 for the inside of the disc of `point` (i32 [C]). end: as `grid`, with the
    end's disc open.

    A way back is as long, so each border node is measured only to those that come after it, the farthest from the buff
    first: what is left is near together, and the search may end early. Nobody walks into an inside. One of the
    treasures' is left by flash only, but another disc may begin right there; and the buff counts from where one has
    landed, so from its inside one may walk.
    """
    count, nowhere = len(node), node[:0]
    leg = np.full((layers, count, count + 1), FAR, dtype=np.int32)
    last = np.full((layers, count + 1), FAR, dtype=np.int32)
    cost = np.empty((layers, len(grid.edges)), dtype=np.int32)
    landed = np.empty((layers, END_BIT + 1), dtype=np.int32)
    inside, border = np.flatnonzero(node < 0), np.flatnonzero(node >= 0)
    buff = lattice.corners(grid, 0)

    lattice.distances_from(end, q, lattice.corners(end, END_BIT), True, slack, nowhere, cost, landed)
    for k in range(layers):
        for c in range(count):
            last[k, c] = cost[k, node[c]] if node[c] >= 0 else landed[k, point[c]]
            if node[c] < 0 and point[c] == 0:
                last[k, c] = min(last[k, c], cost[k][buff].min())
        last[k, count] = cost[k][begin].min()
    lattice.distances_from(grid, q, begin, True, slack, nowhere, cost, landed)
    for k in range(layers):
        for c in range(count):
            leg[k, c, count] = cost[k, node[c]] if node[c] >= 0 else landed[k, point[c]]
    for a in inside:
        corners = lattice.corners(grid, point[a])
        lattice.distances_from(grid, q, corners, False, slack, nowhere, cost, landed)
        for k in range(layers):
            leg[k, inside, a] = landed[k][point[inside]]
            for c in border:
                if k > 0:
                    leg[k, a, c] = cost[k, node[c]]
                leg[k, c, a] = min(cost[k, node[c]], cost[0, node[c]])
        if point[a] == 0:
            lattice.distances_from(grid, q, buff, True, slack, nowhere, cost, landed)
            for k in range(layers):
                for c in range(count):
                    leg[k, c, a] = cost[k, node[c]] if node[c] >= 0 else landed[k, point[c]]
    lattice.walks_from(grid, q, buff, nowhere, cost[0])
    todo = border[np.argsort(-cost[0][node[border]])]
    for s in range(len(todo)):
        a, others = todo[s], todo[s:]
        lattice.distances_from(grid, q, node[a : a + 1], True, slack, node[others], cost, landed)
        for k in range(layers):
            for c in others:
                leg[k, c, a] = leg[k, a, c] = cost[k, node[c]]
    return leg, last


@jit
def _useful(
    leg: NDArray[np.int32], last: NDArray[np.int32], owner: NDArray[np.int64], treasures: int
) -> NDArray[np.bool_]:
    """Which contacts are needed: those of a treasure are not if another one of it is no farther from all that is not
    this treasure, as a way can then use that one. bool [C]."""
    layers, count, _ = leg.shape
    keep = np.ones(count, dtype=np.bool_)
    for c in range(count):
        for other in range(count):
            if other == c or owner[other] != owner[c] or owner[c] >= treasures or not keep[other]:
                continue
            better = True
            for k in range(layers):
                better = better and last[k, other] <= last[k, c] and leg[k, other, count] <= leg[k, c, count]
                for a in range(count):
                    if owner[a] != owner[c] and (leg[k, other, a] > leg[k, c, a] or leg[k, a, other] > leg[k, a, c]):
                        better = False
                        break
                if not better:
                    break
            if better:
                keep[c] = False
                break
    return keep


@jit
def _lower(out: NDArray[np.int32], way: NDArray[np.int32], more: np.int32) -> None:
    """out = min(out, way + more)"""
    for a in range(len(out)):
        through = np.int32(way[a] + more)
        if through < out[a]:
            out[a] = through


@jit
def _close(leg: NDArray[np.int32], block: NDArray[np.int32]) -> None:
    """Lower Oracle.leg with flashes where it is shorter to go to another contact of the same disc first and walk on
    from there, as `_needed` takes for granted."""
    for after in range(2):
        for k in range(1, leg.shape[1]):
            for j in range(len(block) - 2):
                before = leg[after, k, block[j] : block[j + 1]].copy()
                for c in range(block[j], block[j + 1]):
                    for other in range(block[j], block[j + 1]):
                        walk = leg[after, 0, c, other]
                        if c != other and walk < FAR:
                            _lower(leg[after, k, c], before[other - block[j]], walk)


@jit
def _needed(rest: NDArray[np.int32], way: NDArray[np.int32], needed: NDArray[np.int64]) -> int:
    """Write those contacts of a disc to `needed` which are not on ways that go on over another contact of it, and
    return their number. rest: i32 [N] from them to the end; way: i32 [N, N] from [., a] to [c, .]."""
    n = 0
    for c in np.argsort(rest):
        if rest[c] >= FAR:
            break
        for m in range(n):
            if rest[needed[m]] + way[needed[m], c] <= rest[c]:
                break
        else:
            needed[n] = c
            n += 1
    return n


@jit
def _fill_all(
    leg: NDArray[np.int32], last: NDArray[np.int32], block: NDArray[np.int32], value: NDArray[np.int32]
) -> None:
    """Oracle.value, FAR so far."""
    layers, buffs, sets, count = value.shape
    n = len(block) - 3
    with_buff = np.full((layers, block[n + 1] - block[n], sets), FAR, dtype=np.int32)  # what `_with_buff` gives
    for b in range(buffs):
        if b == 0:
            value[:, 0, 0] = last[0]
        else:
            # as with one buff less to come, but the way to the next contact is one with the buff
            onward = np.full((layers, sets, count), FAR, dtype=np.int32)
            if b == 1:
                onward[:, 0] = last[1]
            _fill(leg[1], block, value[:, b - 1], with_buff, onward)
            with_buff = _with_buff(leg, block, onward)
        _fill(leg[0], block, value[:, b], with_buff, value[:, b])


@jit
def _fill(
    leg: NDArray[np.int32],
    block: NDArray[np.int32],
    value: NDArray[np.int32],
    with_buff: NDArray[np.int32],
    out: NDArray[np.int32],
) -> None:
    """Lower lengths over all of a set to the end, `out` (i32 [K, 2**n, A]), where one of its treasures comes next, from
    where it is as `value` says (the same, perhaps `out` itself: sets only ever look at smaller ones), or the buff, from
    where it is as `with_buff` says (i32 [K, D, 2**n]). leg: i32 [K, C, A]."""
    n = len(block) - 3
    for left in range(out.shape[1]):
        for j in range(n):
            if left >> j & 1:
                rest = value[:, left ^ (1 << j), block[j] : block[j + 1]].copy()
                _lower_all(leg, block, rest, left, j, out)
        _lower_all(leg, block, with_buff[:, :, left].copy(), left, n, out)


@jit
def _lower_all(
    leg: NDArray[np.int32],
    block: NDArray[np.int32],
    rest: NDArray[np.int32],
    left: int,
    j: int,
    out: NDArray[np.int32],
) -> None:
    """Lower `out` of the set `left` (as in `_fill`) by ways that go to the disc of block j first; rest: i32 [K, N],
    what is left from its contacts."""
    layers, begin, end = len(rest), block[j], block[j + 1]
    n = len(block) - 3
    needed = np.empty(end - begin, dtype=np.int64)
    for f in range(layers):
        for m in range(_needed(rest[f], leg[0, begin:end, begin:end], needed)):
            c = needed[m]
            for k in range(layers - f):
                # contacts of the set itself are never asked for
                for i in range(n + 2):
                    if i >= n or not left >> i & 1:
                        _lower(
                            out[f + k, left, block[i] : block[i + 1]],
                            leg[k, begin + c, block[i] : block[i + 1]],
                            rest[f, c],
                        )


@jit
def _with_buff(leg: NDArray[np.int32], block: NDArray[np.int32], onward: NDArray[np.int32]) -> NDArray[np.int32]:
    """Length from each of the D contacts of the buff, just taken, over all of a set to the end; i32 [K, D, 2**n].
    onward: i32 [K, 2**n, A], the same from all contacts if the way to the next one is the last with the buff.

    Ways between contacts that begin within HASTE of the buff are those of a hero who has it, and the others are not.
    So this goes forward, over the sets that can be taken in that time: of two ways to the same contact over the same
    set the longer one is never better, as what follows it can only be slower.
    """
    layers, sets, count = onward.shape
    n = len(block) - 3
    first, discs = block[n], block[n + 1] - block[n]
    ways = leg[1].transpose((0, 2, 1)).copy()  # [K, A, C], from, to
    and_on = onward.transpose((0, 2, 1)).copy()  # [K, A, 2**n]
    rest = np.full((layers, discs, sets), FAR, dtype=np.int32)
    length = np.full((sets, layers, count), FAR, dtype=np.int32)  # to a contact of one of the set, from the buff
    reached = np.zeros(sets, dtype=np.bool_)
    needed = np.empty(count, dtype=np.int64)
    for s in range(discs):
        length[0, 0, first + s] = 0
        reached[0] = True
        for taken in range(sets):
            if not reached[taken]:
                continue
            others = sets - 1 - taken
            for j in range(n + 1):
                if (j == n) != (taken == 0) or (j < n and not taken >> j & 1):
                    continue
                begin, end = block[j], block[j + 1]
                for k in range(layers):
                    so_far = length[taken, k, begin:end].copy()
                    for m in range(_needed(so_far, leg[0, 0, begin:end, begin:end], needed)):
                        a, way = begin + needed[m], so_far[needed[m]]
                        if way >= HASTE:
                            break  # the contacts come by rising length
                        for f in range(layers - k):
                            for i in range(n):
                                if others >> i & 1:
                                    reached[taken | 1 << i] = True
                                    _lower(
                                        length[taken | 1 << i, k + f, block[i] : block[i + 1]],
                                        ways[f, a, block[i] : block[i + 1]],
                                        way,
                                    )
                            # this way is the last one with the buff, or rather: not longer than if it were
                            out, then, left = rest[k + f, s], and_on[f, a], others
                            while True:  # over all parts of `others`
                                out[taken | left] = min(out[taken | left], np.int32(way + then[left]))
                                if left == 0:
                                    break
                                left = (left - 1) & others
            length[taken] = FAR
            reached[taken] = False
    for k in range(layers):
        for s in range(discs):
            for part in range(sets):
                rest[k, s, part] = boost(int(rest[k, s, part])) if rest[k, s, part] < FAR else FAR
    return rest


# ---- bounds ----


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


# ---- plans ----


def plans(oracle: Oracle, treasures: Sequence[int], number: int = 1) -> list[Plan]:
    """Orders to take all of `treasures` in: the `number` with the shortest relaxed ways with the buff, and as many
    without it, shortest first. (With two buffs, which the relaxation lets follow each other at once, see `solve`.)"""
    everything = set_index(oracle, treasures)
    if oracle.steps[everything] >= FAR:
        return []
    length = oracle.value[:, :, everything : everything + 1, -1]
    # no more flashes than the bound needs
    flashes = min(range(len(length)), key=lambda f: (int(_steps(length[: f + 1], oracle.max_step)[0]), f))
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


# ---- the play ----


def solve(
    oracle: Oracle,
    treasures: Sequence[int],
    max_step: int = 2000,
    tries: int = TRIES,
    width: int = WIDTH,
    ready: player.Player | None = None,
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
    ready: player.Player,
    part: int,
    treasures: Sequence[int],
    max_step: int,
    tries: int,
    width: int,
) -> Solution:
    """`best`, or a better play that takes just the set `part`."""

    def play(beam: list[Plan], longest: int) -> None:
        nonlocal best
        ways = player.make_ways(ready, [plan.order for plan in beam], beam[0].flashes)
        played = player.play(ready, ways, treasures, longest, width)
        if played is not None:
            run = replay(oracle, treasures, max_step, played[1])
            if run.score > best.run.score:
                best = Solution(best.bound, beam[played[0]], run)

    found = plans(oracle, set_ids(oracle, part), tries)
    play([plan for plan in found if plan.length <= found[0].length + PLAN_SLACK * STEP], max_step)
    plan = best.plan
    if plan is not None and 0 in plan.order and best.run.steps > BUFF_PERIOD:
        for m in range(max(plan.order.index(0) + 2, len(plan.order) + 1 - LATER), len(plan.order) + 1):
            again = plan._replace(order=(*plan.order[:m], 0, *plan.order[m:]))
            play([again], min(max_step, best.run.steps - 1))
    return best


def make_player(oracle: Oracle) -> player.Player:
    """What `solve` needs beside the oracle, to be made once for many calls."""
    return player.make_player(oracle.map, oracle.start, oracle.end, oracle.treasures)


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
    name = _digest(oracle.map, oracle.start, oracle.end, max_step, tries, width, *oracle.treasures)
    file = None if cache is None else cache / f"played-{name}.npz"
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
            _save(file, **known)
            saved = time.monotonic()
        if report is not None:
            report(n + 1, len(todo))
    return Played(**{field: array[every] for field, array in known.items()})


def _load_played(file: Path | None, sets: int) -> dict[str, NDArray[Any]]:
    """The arrays of `Played` for all sets, -1 steps where the file has none."""
    known = None if file is None else _read(file)
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
