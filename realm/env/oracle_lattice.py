"""Shortest ways for the oracle: octile distances on a lattice finer than the cells of the map.

Used by `oracle.py` (bounds) and `oracle_play.py` (fields that guide the executor). A `Lattice` has a node at every
crossing of lines 83 units apart (42 where no flash matters) and edges to the eight neighbours. It is generous: whatever
the hero can walk, some way on the lattice is not longer (see `make_lattice`). Lengths are whole numbers, 120 to a world
unit, rounded down.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from realm.env import physics
from realm.env.map import CELL, POINTS, SIZE, Map
from realm.jit import jit

FINE = 6  # lattice squares along the side of a cell, where there are flashes
FINEST = 12  # the same where there are none; a multiple of FINE
SPACING = CELL / FINE  # world units between lines
SQUARES = SIZE * FINE  # along one side of the map
NODES = SQUARES + 1
STRAIGHT, DIAGONAL = 10_000, 14_142  # lengths of the edges with FINE, the second one rounded down
PER_UNIT = FINE * STRAIGHT / CELL  # length of a world unit: 120
FAR = 2**29  # where no way leads; two of them still fit an int32
STEP = int(physics.FRAMES_PER_STEP * physics.WALK_FRAME * PER_UNIT)  # length of a step in the open
BOOST_STEPS = round(physics.BUFF_STEPS * physics.BUFF_FACTOR)  # open steps that the steps after a buff are worth: 70
# a frame that starts and ends outside a disc of 1000 units comes this near to its centre at least
CORE = float(np.floor(np.sqrt(physics.TRIGGER_RADIUS**2 - (physics.BUFF_FRAME / 2) ** 2)))
MARGIN = SPACING * 2**0.5  # squares that touch a disc reach that far beyond it at most
SLACK = DIAGONAL  # see `distances_from`
OPEN = 1 << 8  # bit of `Lattice.edges`: all four squares around the node are free
END_BIT = POINTS  # bit of `Lattice.discs` for the end, which has one as a point already


class Lattice(NamedTuple):
    """Where one can walk, stand and flash. There are S x S squares, numbered z * S + x, and N x N nodes with N = S + 1,
    numbered z * N + x; S is SQUARES or a multiple of it."""

    side: int  # S
    edges: NDArray[np.uint16]  # [N * N], bit d: the edge in direction d (as of actions) exists; bit OPEN
    stand: NDArray[np.uint8]  # [S * S], 1 road, 2 road where the episode ends at once, 0 obstacle
    discs: NDArray[np.int32]  # [S * S], bit i: touches the trigger disc of point i; bit END_BIT: of the end
    domain: NDArray[np.bool_]  # [S * S], part of it can be walked over
    rows: NDArray[np.int32]  # [R, 2] first and number of squares side by side in which one can stand
    jumps: NDArray[np.int32]  # [J, 3] the same of nodes, and the direction along an axis to flash in from them
    reach: NDArray[
        np.int32
    ]  # [8, 4] x, z of the first and of the last square that a flash from square 0, 0 may land in
    hits: NDArray[np.int32]  # [H, 2] (square, i): one can stand in the square, and disc i (as in `discs`) touches it


def end_is_clear(map_: Map, start: int, end: int, points: Sequence[int]) -> bool:
    """Whether the discs of `points` and the start are apart from the end's disc, which can be closed then."""
    gap = np.sqrt(((map_.points - map_.points[end]) ** 2).sum(-1))
    reach = physics.TRIGGER_RADIUS + MARGIN
    return bool(gap[start] > reach and (gap[list(points)] > 2 * reach).all())


def make_lattice(map_: Map, end: int, closed: bool, frame: float, fine: int = FINE) -> Lattice:
    """The lattice of a map for heroes who walk `frame` units a frame. If `closed`, the end's disc is entered last.
    `fine`: squares along the side of a cell, a multiple of FINE.

    Any walk is a chain of straight frames. An axis-aligned one stays on road; a diagonal one may pass over the corner
    of an obstacle cell, so triangles at convex corners count as free, with legs as long as the frame along an axis,
    rounded up (167 units; 250 with the buff). The free area is then bounded by lines of the lattice and diagonals of
    its squares, and between its nodes the shortest ways of the lattice are as short as those of the plane in the
    octile metric, in which every frame has the same length.
    """
    spacing, side = CELL / fine, SIZE * fine
    k = int(np.ceil(frame * physics.DIRECTION[1, 0] / spacing))
    road = np.kron(map_.road, np.ones((fine, fine), dtype=np.uint8)).astype(np.bool_)
    padded = np.pad(map_.road, 1).astype(np.bool_)
    free = road.copy()
    half = np.zeros((2, side, side), dtype=np.bool_)  # the falling, the rising diagonal halves a square
    for sx in (-1, 1):
        for sz in (-1, 1):
            # obstacle cells whose corner at (sx, sz) lies between two road cells that share an edge with them
            side_x = padded[1:-1, 1 + sx : SIZE + 1 + sx]
            side_z = padded[1 + sz : SIZE + 1 + sz, 1:-1]
            cell_z, cell_x = np.nonzero(~map_.road.astype(np.bool_) & side_x & side_z)
            for i in range(k):
                for j in range(k - i):
                    x = cell_x * fine + (fine - 1 - i if sx > 0 else i)
                    z = cell_z * fine + (fine - 1 - j if sz > 0 else j)
                    if i + j < k - 1:
                        free[z, x] = True
                    else:
                        half[int(sx != sz), z, x] = True
    domain = free | half.any(0)

    line = np.arange(side + 1) * spacing
    at = map_.points[:, :, None]
    low, high = line[:-1] - at, at - line[1:]
    near = np.maximum(0.0, np.maximum(low, high)) ** 2
    # a square that the disc touches in a point only does not count, or rounding would decide
    touches = near[:, 1, :, None] + near[:, 0, None, :] < physics.TRIGGER_RADIUS**2 * (1 - 1e-12)
    discs = (touches * (1 << np.arange(POINTS, dtype=np.int32))[:, None, None]).sum(0).astype(np.int32)
    discs |= touches[end].astype(np.int32) << END_BIT
    stand = road.astype(np.uint8)
    if closed:
        far = np.maximum(-low[end], -high[end]) ** 2
        core = far[1, :, None] + far[0, None, :] <= CORE**2
        stand[core & road] = 2
        free &= ~core
        half &= ~core
    discs[~domain] = 0

    edges = make_edges(free, half)
    low = np.floor(physics.FLASH_MOVE / spacing + 1e-9).astype(np.int32)
    high = np.ceil(physics.FLASH_MOVE / spacing - 1e-9).astype(np.int32)
    jumps = []
    for d in range(0, 8, 2):
        # from node to node: a square stands beside each, on the same side
        dx, dz = low[d]
        there = np.zeros((side + 2, side + 2), dtype=np.bool_)
        fx, fz, tx, tz = max(0, -dx), max(0, -dz), side - max(0, dx), side - max(0, dz)
        there[1 + fz : 1 + tz, 1 + fx : 1 + tx] = (stand[fz:tz, fx:tx] == 1) & (
            stand[fz + dz : tz + dz, fx + dx : tx + dx] == 1
        )
        runs = _runs(_around(there))
        jumps.append(np.column_stack([runs, np.full(len(runs), d, dtype=np.int32)]))
    hits = [np.flatnonzero((discs.ravel() >> i & 1) & (stand.ravel() != 0)) for i in range(END_BIT + 1)]
    return Lattice(
        side,
        edges,
        stand.ravel(),
        discs.ravel(),
        domain.ravel(),
        _runs(stand > 0),
        np.concatenate(jumps),
        np.column_stack([low, high]),
        np.concatenate([np.column_stack([squares, np.full(len(squares), i)]) for i, squares in enumerate(hits)]).astype(
            np.int32
        ),
    )


def _runs(table: NDArray[np.bool_]) -> NDArray[np.int32]:
    """First index (in the ravelled table) and length of the runs of true entries along its rows; i32 [R, 2]."""
    change = np.diff(np.pad(table, ((0, 0), (1, 1))).astype(np.int8), axis=1)
    begin, end = np.argwhere(change == 1), np.argwhere(change == -1)
    runs: NDArray[np.int32] = np.column_stack(
        [begin[:, 0] * table.shape[1] + begin[:, 1], end[:, 1] - begin[:, 1]]
    ).astype(np.int32)
    return runs


def make_edges(free: NDArray[np.bool_], half: NDArray[np.bool_]) -> NDArray[np.uint16]:
    """Lattice.edges of a lattice of S x S squares, u16 [(S + 1) * (S + 1)]: those inside or beside free squares (bool
    [S, S]) and along the long sides of free halves (bool [2, S, S]: cut by the falling, the rising diagonal)."""
    across = np.pad(free, ((1, 1), (0, 0)))
    along = np.pad(free, ((0, 0), (1, 1)))
    by_direction = {
        (0, 4): (across[:-1] | across[1:], (0, 0), (0, 1)),
        (1, 5): (free | half[1], (0, 0), (1, 1)),
        (2, 6): (along[:, :-1] | along[:, 1:], (0, 0), (1, 0)),
        (3, 7): (free | half[0], (0, 1), (1, 0)),
    }
    edges = np.zeros((len(free) + 1, len(free) + 1), dtype=np.uint16)
    for (there, back), (open_, (fz, fx), (tz, tx)) in by_direction.items():
        nz, nx = open_.shape
        edges[fz : fz + nz, fx : fx + nx] |= (open_ << there).astype(np.uint16)
        edges[tz : tz + nz, tx : tx + nx] |= (open_ << back).astype(np.uint16)
    edges[1:-1, 1:-1] |= (free[:-1, :-1] & free[:-1, 1:] & free[1:, :-1] & free[1:, 1:]) * np.uint16(OPEN)
    return edges.ravel()


def border(lattice: Lattice, i: int) -> NDArray[np.int32]:
    """The nodes where one can walk into disc i, or out of it: those between its squares and others; i32 [C]."""
    shape = (lattice.side, lattice.side)
    domain = np.pad(lattice.domain.reshape(shape), 1)
    inside = np.pad((lattice.discs >> i & 1).astype(np.bool_).reshape(shape), 1)
    outside = domain & ~inside

    return np.flatnonzero(_around(inside) & _around(outside)).astype(np.int32)


def _around(squares: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The nodes inside an array of squares that touch one of these; bool [Z, X] -> [Z - 1, X - 1]."""
    touched: NDArray[np.bool_] = squares[:-1, :-1] | squares[:-1, 1:] | squares[1:, :-1] | squares[1:, 1:]
    return touched


@jit
def corners(lattice: Lattice, i: int) -> NDArray[np.int32]:
    """The nodes of the squares of disc i (END_BIT: of the end) where one can stand, for the end also of the squares
    that one can only walk over; i32 [n]."""
    nodes = lattice.side + 1
    of_disc = np.zeros(nodes * nodes, dtype=np.bool_)
    for square in range(len(lattice.stand)):
        if (lattice.stand[square] == 1 or i == END_BIT) and lattice.discs[square] >> i & 1:
            node = square // lattice.side * nodes + square % lattice.side
            of_disc[node] = of_disc[node + 1] = of_disc[node + nodes] = of_disc[node + nodes + 1] = True
    return np.flatnonzero(of_disc).astype(np.int32)


def nodes_at(x: float, z: float, *, fine: int = FINE) -> NDArray[np.int32]:
    """The nodes around a position: one if it lies on a node, else two or four; i32 [1 .. 4]."""
    spacing, nodes = CELL / fine, SIZE * fine + 1
    xs = {int(np.floor(x / spacing)), int(np.ceil(x / spacing))}
    zs = {int(np.floor(z / spacing)), int(np.ceil(z / spacing))}
    return np.array([nz * nodes + nx for nz in sorted(zs) for nx in sorted(xs)], dtype=np.int32)


class Queues(NamedTuple):
    """Room for `spread`, made once by `make_queues` for a lattice of N x N nodes."""

    seed: NDArray[np.int64]  # [N * N] cost << 32 | node
    entry: NDArray[np.int32]  # [4, 4 * N * N] node << 4 | direction of the edge to it
    done: NDArray[np.uint8]  # [N * N] bit d: left in direction d
    near: NDArray[np.int32]  # [N * N] room for `_flash`
    landed: NDArray[np.int32]  # the same


SEED = 8  # instead of a direction: reached over no edge
EVERYWHERE = np.empty(0, dtype=np.int32)  # as `targets` of `spread`: all nodes


def make_queues(nodes: int = NODES) -> Queues:
    """For a lattice of `nodes` x `nodes`."""
    room = nodes * nodes
    i32 = np.empty((2, room), np.int32)
    return Queues(np.empty(room, np.int64), np.empty((4, 4 * room), np.int32), np.empty(room, np.uint8), i32[0], i32[1])


@jit
def spread(
    edges: NDArray[np.uint16],
    nodes: int,
    straight: int,
    cost: NDArray[np.int32],
    q: Queues,
    seeds: int,
    targets: NDArray[np.int32],
) -> None:
    """Dijkstra from several nodes of a lattice of `nodes` x `nodes`, whose axis-aligned edges are `straight` long.
    q.seed holds `seeds` nodes with rising costs, already in `cost` (i32 [nodes * nodes], FAR elsewhere), which is
    lowered to the distances: of all nodes if there are no `targets` (i32 [n], nodes), else of those that are not
    farther than any of these. What is beyond keeps too high a cost.

    The nodes between n and n + 1 times `straight` away wait in one of four queues and are taken in any order: edges are
    no shorter than that, so none of them leads to another. (They lead at most two queues ahead.) And of all shortest
    ways only the one that turns from diagonals to the axes as early as it can is followed: a node amid four free
    squares is left straight on, or by 45 degrees from a diagonal to an axis, since for any other turn there is a way
    past the node that is shorter, or has its diagonal earlier.
    """
    offset = np.array([1, nodes + 1, nodes, nodes - 1, -1, -nodes - 1, -nodes, -nodes + 1], dtype=np.int32)
    natural = np.empty(9, dtype=np.int32)
    for d in range(8):
        natural[d] = 1 << d | ((1 << (d - 1) | 1 << ((d + 1) & 7)) if d & 1 else 0)
    natural[SEED] = 255
    lowest = np.zeros(256, dtype=np.int32)  # bit that is set
    for several in range(1, 256):
        for d in range(7, -1, -1):
            if several >> d & 1:
                lowest[several] = d
    diagonal = straight * DIAGONAL // STRAIGHT
    done = q.done
    done[:] = 0
    size = np.zeros(4, dtype=np.int64)
    at = 0  # seeds taken
    now = 0
    reached = 0  # targets
    while True:
        if size[0] + size[1] + size[2] + size[3] == 0:
            if at == seeds:
                return
            now = int(q.seed[at] >> 32) // straight
        while reached < len(targets) and cost[targets[reached]] < now * straight:
            reached += 1
        if 0 < len(targets) == reached:
            return
        entry, count = q.entry[now & 3], size[now & 3]
        while at < seeds and (q.seed[at] >> 32) // straight == now:
            entry[count] = (q.seed[at] & 0xFFFFFFFF) << 4 | SEED
            count += 1
            at += 1
        second = (now + 2) * straight
        first_entry, second_entry = q.entry[(now + 1) & 3], q.entry[(now + 2) & 3]
        first_size, second_size = size[(now + 1) & 3], size[(now + 2) & 3]
        for n in range(count):
            node = entry[n] >> 4
            bits = np.int32(edges[node])
            ways = (natural[entry[n] & 15] if bits & OPEN else bits & 255) & ~np.int32(done[node])
            if ways == 0:
                continue
            done[node] |= ways
            base = cost[node]
            while ways:
                d = lowest[ways]
                ways &= ways - 1
                to = node + offset[d]
                through = base + (diagonal if d & 1 else straight)
                if through <= cost[to]:
                    if through < cost[to]:
                        cost[to] = through
                        done[to] = 0
                    if through < second:
                        first_entry[first_size] = to << 4 | d
                        first_size += 1
                    else:
                        second_entry[second_size] = to << 4 | d
                        second_size += 1
        size[now & 3], size[(now + 1) & 3], size[(now + 2) & 3] = 0, first_size, second_size
        now += 1


@jit
def put(q: Queues, n: int, node: int, cost: int) -> None:
    """Write seed number n for `spread`."""
    q.seed[n] = np.int64(cost) << 32 | np.int64(node)


@jit
def corners_min(cost: NDArray[np.int32], square: int, side: int = SQUARES) -> int:
    """The least cost of a square's corners in a lattice of side x side; cost: i32 [(side + 1) ** 2]."""
    node = square // side * (side + 1) + square % side
    return int(min(min(cost[node], cost[node + 1]), min(cost[node + side + 1], cost[node + side + 2])))


@jit
def _flash(
    lattice: Lattice, before: NDArray[np.int32], after: NDArray[np.int32], landed: NDArray[np.int32], q: Queues
) -> None:
    """Flash once: lower `after` (i32 [N * N]) where that takes less than `after` says, coming from `before` (the same),
    and `landed` (i32 [17]: to each disc).

    A flash along an axis goes from node to node. A diagonal one does not: from anywhere in a square, which costs as
    much as the nearest of its corners, it may land anywhere in those squares which it can reach.
    """
    side, stand, near, there = lattice.side, lattice.stand, q.near, q.landed
    nodes = side + 1
    for r in range(len(lattice.rows)):
        first, length = lattice.rows[r]
        node = first // side * nodes + first % side
        low, high = before[node : node + length + 1], before[node + nodes : node + nodes + length + 1]
        out = near[first : first + length]
        for x in range(length):
            least = min(min(low[x], low[x + 1]), min(high[x], high[x + 1]))
            out[x] = least + STEP if stand[first + x] == 1 else FAR
    for r in range(len(lattice.rows)):
        first, length = lattice.rows[r]
        out = there[first : first + length]
        out[:] = FAR
        z, x = first // side, first % side
        for d in range(1, 8, 2):
            for dz in range(lattice.reach[d, 1], lattice.reach[d, 3] + 1):
                for dx in range(lattice.reach[d, 0], lattice.reach[d, 2] + 1):
                    skip, stop = max(0, dx - x), min(length, side + dx - x)
                    if 0 <= z - dz < side and skip < stop:
                        begin = (z - dz) * side + x - dx
                        _least(out[skip:stop], near[begin + skip : begin + stop], 0)
    for h in range(len(lattice.hits)):
        square, i = lattice.hits[h]
        least, z, x = there[square], square // side, square % side
        for d in range(0, 8, 2):
            fz, fx = z - lattice.reach[d, 1], x - lattice.reach[d, 0]
            if 0 <= fx < side and 0 <= fz < side:
                least = min(least, near[fz * side + fx])
        landed[i] = min(landed[i], least)
    for r in range(len(lattice.jumps)):
        first, length, d = lattice.jumps[r]
        to = first + lattice.reach[d, 1] * nodes + lattice.reach[d, 0]
        _least(after[to : to + length], before[first : first + length], STEP)
    for r in range(len(lattice.rows)):
        first, length = lattice.rows[r]
        node = first // side * nodes + first % side
        for x in range(length):
            least = there[first + x]
            if stand[first + x] == 1:
                after[node + x] = min(after[node + x], least)
                after[node + x + 1] = min(after[node + x + 1], least)
                after[node + nodes + x] = min(after[node + nodes + x], least)
                after[node + nodes + x + 1] = min(after[node + nodes + x + 1], least)


@jit
def _least(out: NDArray[np.int32], values: NDArray[np.int32], more: int) -> None:
    """out = min(out, values + more)"""
    for i in range(len(out)):
        out[i] = min(out[i], np.int32(values[i] + np.int32(more)))


@jit
def _seeds(
    lattice: Lattice, straight: int, cost: NDArray[np.int32], before: NDArray[np.int32], slack: int, q: Queues
) -> int:
    """Write seeds for `spread`: the nodes where `cost` is less than `before` + slack, but not those to which a
    neighbour leads as fast. Returns their number."""
    nodes = lattice.side + 1
    offset = np.array([1, nodes + 1, nodes, nodes - 1, -1, -nodes - 1, -nodes, -nodes + 1])
    diagonal = straight * DIAGONAL // STRAIGHT
    seeds = 0
    for node in range(len(cost)):
        if cost[node] < min(FAR, before[node] + slack):
            bits = lattice.edges[node]
            for d in range(8):
                if bits >> d & 1 and cost[node + offset[d]] + (diagonal if d & 1 else straight) <= cost[node]:
                    break
            else:
                put(q, seeds, node, cost[node])
                seeds += 1
    q.seed[:seeds].sort()
    return seeds


@jit
def walks_from(
    lattice: Lattice, q: Queues, nodes: NDArray[np.int32], targets: NDArray[np.int32], cost: NDArray[np.int32]
) -> None:
    """Distances from any of `nodes` (i32 [n]) without a flash; cost: i32 [N * N], overwritten. `targets`: see
    `spread`."""
    cost[:] = FAR
    for n in range(len(nodes)):
        cost[nodes[n]] = 0
        put(q, n, nodes[n], 0)
    spread(lattice.edges, lattice.side + 1, STRAIGHT * SQUARES // lattice.side, cost, q, len(nodes), targets)


@jit
def distances_from(
    lattice: Lattice,
    q: Queues,
    nodes: NDArray[np.int32],
    walk: bool,
    slack: int,
    targets: NDArray[np.int32],
    cost: NDArray[np.int32],
    landed: NDArray[np.int32],
) -> None:
    """Distances with 0, up to 1, .. K - 1 flashes on the way, a flash counting as long as a step.

    From any of `nodes` (i32 [n]); without `walk`, they can only be left by flash, and cost[1:] is of ways that do.
    cost: i32 [K, N * N]. landed: i32 [K, 17], the same to the disc of each point (16: the end), if the last thing
    before was the flash. Both are overwritten. In cost[1:], ways without a flash are taken to be longer by `slack`
    (less than a step): if a finer lattice knows them better, they shall not hide ways with a flash that are almost as
    short. With `targets` (see `spread`) the distances to these are right, but `landed` is not.
    """
    q.near[:] = FAR
    landed[:] = FAR
    if walk:
        walks_from(lattice, q, nodes, targets, cost[0])
    else:
        cost[0] = FAR
        cost[0, nodes] = 0
    straight = STRAIGHT * SQUARES // lattice.side
    for k in range(1, len(cost)):
        more = 0 if k > 1 else slack if walk else FAR
        for node in range(len(cost[k])):
            cost[k, node] = min(FAR, cost[k - 1, node] + more)
        _flash(lattice, cost[k - 1], cost[k], landed[k], q)
        # only what a flash makes better has to be spread
        seeds = _seeds(lattice, straight, cost[k], cost[k - 1], more, q)
        spread(lattice.edges, lattice.side + 1, straight, cost[k], q, seeds, targets)


@jit
def boost(length: int) -> int:
    """What is left of a way's length once the buff is taken at its beginning."""
    if length >= BOOST_STEPS * STEP:
        return length - (BOOST_STEPS - physics.BUFF_STEPS) * STEP
    return length * physics.BUFF_STEPS // BOOST_STEPS


def boosted(length: NDArray[np.int32], step: float = STEP) -> NDArray[np.int32]:
    """`boost` of each length, where a step has that one."""
    long = int(BOOST_STEPS * step)
    saved = int(long - physics.BUFF_STEPS * step)
    return np.where(length >= long, length - saved, length * physics.BUFF_STEPS // BOOST_STEPS)
