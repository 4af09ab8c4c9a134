"""Ways between contacts: the legs that the oracle's orders are made of.

Contacts are nodes on the border of each trigger disc, and one that stands for the inside of the disc; `bounding.Oracle`
says how they are numbered. `find_legs` is called by `bounding.make_oracle` and takes most of its time, about two
minutes; with a cache it takes them once for a map, a start and an end.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from realm.env import physics
from realm.env.map import CELL, SIZE, Map
from realm.env.oracle import distances, lattice
from realm.env.oracle.cache import BOUND_SOURCES, keep_arrays, kept_arrays, key_of
from realm.env.oracle.lattice import END_BIT, FAR, Lattice
from realm.jit import jit

Report = Callable[[float], None]
"""Gets the share of the work that is done, 0..1, again and again."""
SHARES = (0.45, 0.3, 0.25)  # of the three measurements of `_new_legs`, about
BATCH = 16  # contacts between two reports


def find_legs(
    map_: Map,
    start: int,
    end: int,
    ids: tuple[int, ...],
    flashes: int,
    fine: int,
    cache: Path | None,
    report: Report | None = None,
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]:
    """Oracle.block, .leg and .last, from the cache if they are there."""
    if cache is None:
        return _new_legs(map_, start, end, ids, flashes, fine, report)
    file = cache / f"oracle-{key_of(map_, (start, end, flashes, fine, *ids), BOUND_SOURCES)}.npz"
    known = kept_arrays(file)
    if known is not None:
        return known["block"], known["leg"], known["last"]
    block, leg, last = _new_legs(map_, start, end, ids, flashes, fine, report)
    keep_arrays(file, block=block, leg=leg, last=last)
    return block, leg, last


def _new_legs(
    map_: Map, start: int, end: int, ids: tuple[int, ...], flashes: int, fine: int, report: Report | None
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
    queues = distances.make_queues(grids[0].side + 1)
    first, second, third = (_part(report, sum(SHARES[:k]), SHARES[k]) for k in range(3))
    slow = _measure(grids[0], ends[0], queues, node, point, begin, flashes + 1, 0, first)
    if fine == lattice.FINE:
        fast = _measure(grids[1], ends[1], queues, node, point, begin, flashes + 1, 0, second)
    else:
        walks = _measure(grids[1], ends[1], queues, node, point, begin, 1, 0, second)
        # few of the best ways flash after the buff, so this may be coarser
        flashed = _flashes(map_, start, end, closed, fine, queues, node, point, flashes, third)
        fast = tuple(np.concatenate([a, np.minimum(a, b)]) for a, b in zip(walks, flashed, strict=True))
    leg, last = (np.stack(pair) for pair in zip(slow, fast, strict=True))
    # overlapping discs can be taken from one place
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
    q: distances.Queues,
    node: NDArray[np.int32],
    point: NDArray[np.int32],
    flashes: int,
    report: Report,
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
    ways, ways_to_end = _measure(grid, open_, q, targets, owners, begin, flashes + 1, lattice.SLACK, report)
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


def _part(report: Report | None, begin: float, share: float) -> Report:
    """A report of a part of the work, which is `share` of it and comes after `begin` of it."""
    return lambda done: report(begin + share * done) if report else None


def _measure(
    grid: Lattice,
    end: Lattice,
    q: distances.Queues,
    node: NDArray[np.int32],
    point: NDArray[np.int32],
    begin: NDArray[np.int32],
    layers: int,
    slack: int,
    report: Report,
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Distances with up to 0, 1 .. layers - 1 flashes (for `slack` see `distances_from`): from each of C contacts and
    the start, which is at the nodes `begin`, to each contact, i32 [layers, C, C + 1], and to the end,
    i32 [layers, C + 1]. node: i32 [C], -1 for the inside of the disc of `point` (i32 [C]). end: as `grid`, with the
    end's disc open.

    A way back is as long, so each border node is measured only to those that come after it, the farthest from the buff
    first: what is left is near together, and the search may end early. Nobody walks into an inside. One of the
    treasures' is left by flash only, but another disc may begin right there; and the buff counts from where one has
    landed, so from its inside one may walk.
    """
    count = len(node)
    leg = np.full((layers, count, count + 1), FAR, dtype=np.int32)
    last = np.full((layers, count + 1), FAR, dtype=np.int32)
    cost = np.empty((layers, len(grid.edges)), dtype=np.int32)
    landed = np.empty((layers, END_BIT + 1), dtype=np.int32)
    border = np.flatnonzero(node >= 0)
    _measure_ends(grid, end, q, node, point, begin, slack, cost, landed, leg, last)
    distances.walks_from(grid, q, lattice.corners(grid, 0), np.empty(0, np.int32), cost[0])
    todo = border[np.argsort(-cost[0][node[border]])]
    for s in range(0, len(todo), BATCH):
        _measure_borders(grid, q, node, todo[s:], min(BATCH, len(todo) - s), slack, cost, landed, leg)
        # the later ones are measured to fewer others, which takes less time
        report(1 - (1 - min(1.0, (s + BATCH) / len(todo))) ** 1.5)
    return leg, last


@jit
def _measure_ends(
    grid: Lattice,
    end: Lattice,
    q: distances.Queues,
    node: NDArray[np.int32],
    point: NDArray[np.int32],
    begin: NDArray[np.int32],
    slack: int,
    cost: NDArray[np.int32],
    landed: NDArray[np.int32],
    leg: NDArray[np.int32],
    last: NDArray[np.int32],
) -> None:
    """The part of `_measure` that begins at the end, at the start and in the insides."""
    layers, count, nowhere = len(cost), len(node), node[:0]
    inside, border, buff = np.flatnonzero(node < 0), np.flatnonzero(node >= 0), lattice.corners(grid, 0)
    distances.distances_from(end, q, lattice.corners(end, END_BIT), True, slack, nowhere, cost, landed)
    for k in range(layers):
        for c in range(count):
            last[k, c] = cost[k, node[c]] if node[c] >= 0 else landed[k, point[c]]
            if node[c] < 0 and point[c] == 0:
                last[k, c] = min(last[k, c], cost[k][buff].min())
        last[k, count] = cost[k][begin].min()
    distances.distances_from(grid, q, begin, True, slack, nowhere, cost, landed)
    for k in range(layers):
        for c in range(count):
            leg[k, c, count] = cost[k, node[c]] if node[c] >= 0 else landed[k, point[c]]
    for a in inside:
        corners = lattice.corners(grid, point[a])
        distances.distances_from(grid, q, corners, False, slack, nowhere, cost, landed)
        for k in range(layers):
            leg[k, inside, a] = landed[k][point[inside]]
            for c in border:
                if k > 0:
                    leg[k, a, c] = cost[k, node[c]]
                leg[k, c, a] = min(cost[k, node[c]], cost[0, node[c]])
        if point[a] == 0:
            distances.distances_from(grid, q, buff, True, slack, nowhere, cost, landed)
            for k in range(layers):
                for c in range(count):
                    leg[k, c, a] = cost[k, node[c]] if node[c] >= 0 else landed[k, point[c]]


@jit
def _measure_borders(
    grid: Lattice,
    q: distances.Queues,
    node: NDArray[np.int32],
    todo: NDArray[np.int64],
    number: int,
    slack: int,
    cost: NDArray[np.int32],
    landed: NDArray[np.int32],
    leg: NDArray[np.int32],
) -> None:
    """The part of `_measure` that begins at each of the first `number` of `todo`, to the later ones."""
    for s in range(number):
        a, others = todo[s], todo[s:]
        distances.distances_from(grid, q, node[a : a + 1], True, slack, node[others], cost, landed)
        for k in range(len(cost)):
            for c in others:
                leg[k, c, a] = leg[k, a, c] = cost[k, node[c]]


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
                            lower(leg[after, k, c], before[other - block[j]], walk)


@jit
def lower(out: NDArray[np.int32], way: NDArray[np.int32], more: np.int32) -> None:
    """out = min(out, way + more)"""
    for a in range(len(out)):
        through = np.int32(way[a] + more)
        if through < out[a]:
            out[a] = through
