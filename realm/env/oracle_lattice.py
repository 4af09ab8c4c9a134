"""Shortest ways for the oracle: octile distances on a lattice finer than the cells of the map.

Used by `oracle.py` (bounds) and `oracle_play.py` (fields that guide the executor). A `Lattice` has a node at every
crossing of lines 83 units apart and edges to the eight neighbours. It is generous: whatever the hero can walk, some way
on the lattice is not longer (see `make_lattice`). Lengths are whole numbers, 12 to a world unit, rounded down.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from realm.env import physics
from realm.env.jit import jit
from realm.env.map import CELL, POINTS, SIZE, Map

FINE = 6  # lattice squares along the side of a cell
SPACING = CELL / FINE  # world units between lines
SQUARES = SIZE * FINE  # along one side of the map
NODES = SQUARES + 1
STRAIGHT, DIAGONAL = 1000, 1414  # lengths of the edges, the second one rounded down
PER_UNIT = FINE * STRAIGHT / CELL  # length of a world unit: 12
FAR = 2**29  # where no way leads; two of them still fit an int32
STEP = int(physics.FRAMES_PER_STEP * physics.WALK_FRAME * PER_UNIT)  # length of a step in the open
BOOST_STEPS = round(physics.BUFF_STEPS * physics.BUFF_FACTOR)  # open steps that the steps after a buff are worth: 70
# a frame that starts and ends outside a disc of 1000 units comes this near to its centre at least
CORE = float(np.floor(np.sqrt(physics.TRIGGER_RADIUS**2 - (physics.BUFF_FRAME / 2) ** 2)))
MARGIN = SPACING * 2**0.5  # squares that touch a disc reach that far beyond it at most
END_BIT = POINTS  # bit of `Lattice.discs` for the end, which has one as a point already

# a flash from anywhere in a square lands in one of these: first and last offset by axis [direction, (x, z)], in squares
FLASH_LOW = np.floor(physics.FLASH_MOVE / SPACING).astype(np.int64)
FLASH_HIGH = np.ceil(physics.FLASH_MOVE / SPACING).astype(np.int64)


class Lattice(NamedTuple):
    """Where one can walk, stand and flash. Nodes and squares are numbered z * NODES + x and z * SQUARES + x."""

    edges: NDArray[np.uint8]  # [NODES * NODES], bit d: the edge in direction d (as of actions) exists
    jumps: NDArray[np.uint8]  # [NODES * NODES], bit d: a flash in direction d may be made, see `_jumps`
    stand: NDArray[np.uint8]  # [SQUARES * SQUARES], 1 road, 2 road where the episode ends at once, 0 obstacle
    discs: NDArray[np.int32]  # [SQUARES * SQUARES], bit i: touches the trigger disc of point i; bit END_BIT: of the end
    domain: NDArray[np.bool_]  # [SQUARES * SQUARES], part of it can be walked over
    hits: NDArray[np.int32]  # [H, 2] (square, i): a flash from the square may land in disc i, numbered as in `discs`


def end_is_clear(map_: Map, start: int, end: int, points: Sequence[int]) -> bool:
    """Whether the discs of `points` and the start are apart from the end's disc, which can be closed then."""
    gap = np.sqrt(((map_.points - map_.points[end]) ** 2).sum(-1))
    reach = physics.TRIGGER_RADIUS + MARGIN
    return bool(gap[start] > reach and (gap[list(points)] > 2 * reach).all())


def make_lattice(map_: Map, end: int, closed: bool, frame: float) -> Lattice:
    """The lattice of a map for heroes who walk `frame` units a frame. If `closed`, the end's disc is entered last.

    Any walk is a chain of straight frames. An axis-aligned one stays on road; a diagonal one may pass over the corner
    of an obstacle cell, so triangles at convex corners count as free, with legs as long as the frame along an axis,
    rounded up (167 units; 250 with the buff). The free area is then bounded by lines of the lattice and diagonals of
    its squares, and between its nodes the shortest ways of the lattice are as short as those of the plane in the
    octile metric, in which every frame has the same length.
    """
    k = int(np.ceil(frame * physics.DIRECTION[1, 0] / SPACING))
    road = np.kron(map_.road, np.ones((FINE, FINE), dtype=np.uint8)).astype(np.bool_)
    padded = np.pad(map_.road, 1).astype(np.bool_)
    free = road.copy()
    half = np.zeros((2, SQUARES, SQUARES), dtype=np.bool_)  # the falling, the rising diagonal halves a square
    for sx in (-1, 1):
        for sz in (-1, 1):
            # obstacle cells whose corner at (sx, sz) lies between two road cells that share an edge with them
            side_x = padded[1:-1, 1 + sx : SIZE + 1 + sx]
            side_z = padded[1 + sz : SIZE + 1 + sz, 1:-1]
            cell_z, cell_x = np.nonzero(~map_.road.astype(np.bool_) & side_x & side_z)
            for i in range(k):
                for j in range(k - i):
                    x = cell_x * FINE + (FINE - 1 - i if sx > 0 else i)
                    z = cell_z * FINE + (FINE - 1 - j if sz > 0 else j)
                    if i + j < k - 1:
                        free[z, x] = True
                    else:
                        half[int(sx != sz), z, x] = True
    domain = free | half.any(0)

    line = np.arange(SQUARES + 1) * SPACING
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
    jumps, hits = _jumps(stand.ravel(), discs.ravel())
    return Lattice(edges, jumps, stand.ravel(), discs.ravel(), domain.ravel(), hits)


def make_edges(free: NDArray[np.bool_], half: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """Lattice.edges of a lattice of S x S squares, u8 [(S + 1) * (S + 1)]: those inside or beside free squares (bool
    [S, S]) and along the long sides of free halves (bool [2, S, S]: cut by the falling, the rising diagonal)."""
    across = np.pad(free, ((1, 1), (0, 0)))
    along = np.pad(free, ((0, 0), (1, 1)))
    by_direction = {
        (0, 4): (across[:-1] | across[1:], (0, 0), (0, 1)),
        (1, 5): (free | half[1], (0, 0), (1, 1)),
        (2, 6): (along[:, :-1] | along[:, 1:], (0, 0), (1, 0)),
        (3, 7): (free | half[0], (0, 1), (1, 0)),
    }
    edges = np.zeros((len(free) + 1, len(free) + 1), dtype=np.uint8)
    for (there, back), (open_, (fz, fx), (tz, tx)) in by_direction.items():
        nz, nx = open_.shape
        edges[fz : fz + nz, fx : fx + nx] |= (open_ << there).astype(np.uint8)
        edges[tz : tz + nz, tx : tx + nx] |= (open_ << back).astype(np.uint8)
    return edges.ravel()


@jit
def _jumps(stand: NDArray[np.uint8], discs: NDArray[np.int32]) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    """Lattice.jumps and .hits, from its .stand and .discs.

    A flash along an axis goes from node to node: bit d of the node says that two squares stand, one beside each, on the
    same side. A diagonal one does not: bit d of the node at the low corner of a square says that a flash from somewhere
    in the square may land in some square that stands.
    """
    jumps = np.zeros(NODES * NODES, dtype=np.uint8)
    hits = np.empty(((POINTS + 1) * 8 * 4 * int((2 * physics.TRIGGER_RADIUS / SPACING + 2) ** 2), 2), dtype=np.int32)
    n = 0
    for square in range(SQUARES * SQUARES):
        if stand[square] != 1:
            continue
        sx, sz = square % SQUARES, square // SQUARES
        for d in range(8):
            for z in range(sz + FLASH_LOW[d, 1], sz + FLASH_HIGH[d, 1] + 1):
                for x in range(sx + FLASH_LOW[d, 0], sx + FLASH_HIGH[d, 0] + 1):
                    to = z * SQUARES + x
                    if not (0 <= x < SQUARES and 0 <= z < SQUARES) or stand[to] == 0:
                        continue
                    for i in range(END_BIT + 1):
                        if discs[to] >> i & 1:
                            hits[n, 0], hits[n, 1] = square, i
                            n += 1
                    if stand[to] == 1:
                        node = sz * NODES + sx
                        jumps[node] |= 1 << d
                        if d & 1 == 0:
                            jumps[node + 1] |= 1 << d
                            jumps[node + NODES] |= 1 << d
                            jumps[node + NODES + 1] |= 1 << d
    return jumps, hits[:n].copy()


def border(lattice: Lattice, i: int) -> NDArray[np.int32]:
    """The nodes where one can walk into disc i, or out of it: those between its squares and others; i32 [C]."""
    domain = np.pad(lattice.domain.reshape(SQUARES, SQUARES), 1)
    inside = np.pad((lattice.discs >> i & 1).astype(np.bool_).reshape(SQUARES, SQUARES), 1)
    outside = domain & ~inside

    return np.flatnonzero(_around(inside) & _around(outside)).astype(np.int32)


def _around(squares: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The nodes inside an array of squares that touch one of these; bool [Z, X] -> [Z - 1, X - 1]."""
    touched: NDArray[np.bool_] = squares[:-1, :-1] | squares[:-1, 1:] | squares[1:, :-1] | squares[1:, 1:]
    return touched


@jit
def corners(lattice: Lattice, i: int) -> NDArray[np.int32]:
    """The nodes of the squares of disc i where one can stand; i32 [n]."""
    of_disc = np.zeros(NODES * NODES, dtype=np.bool_)
    for square in range(SQUARES * SQUARES):
        if lattice.stand[square] == 1 and lattice.discs[square] >> i & 1:
            node = square // SQUARES * NODES + square % SQUARES
            of_disc[node] = of_disc[node + 1] = of_disc[node + NODES] = of_disc[node + NODES + 1] = True
    return np.flatnonzero(of_disc).astype(np.int32)


def nodes_at(x: float, z: float) -> NDArray[np.int32]:
    """The nodes around a position: one if it lies on a node, else two or four; i32 [1 .. 4]."""
    xs = {int(np.floor(x / SPACING)), int(np.ceil(x / SPACING))}
    zs = {int(np.floor(z / SPACING)), int(np.ceil(z / SPACING))}
    return np.array([nz * NODES + nx for nz in sorted(zs) for nx in sorted(xs)], dtype=np.int32)


class Queues(NamedTuple):
    """Room for `spread`, made once by `make_queues`."""

    node: NDArray[np.int32]  # [3, 4 * NODES * NODES]
    cost: NDArray[np.int32]  # the same
    order: NDArray[np.int32]  # [NODES * NODES]


def make_queues(nodes: int = NODES) -> Queues:
    """For a lattice of `nodes` x `nodes`. Each enters a queue at most four times: once from each neighbour that feeds
    it."""
    room = 4 * nodes * nodes
    return Queues(np.empty((3, room), np.int32), np.empty((3, room), np.int32), np.empty(nodes * nodes, np.int32))


@jit
def spread(edges: NDArray[np.uint8], nodes: int, cost: NDArray[np.int32], q: Queues, seeds: int) -> int:
    """Dijkstra from several nodes of a lattice of `nodes` x `nodes`. Row 0 of the queues holds `seeds` nodes with
    rising costs, already in `cost` (i32 [nodes * nodes], FAR elsewhere), which is lowered to the distances. Returns the
    number of nodes reached; they stand in q.order by rising cost.

    Edges have two lengths only. Nodes reached over one length come in rising order by themselves, so a plain
    queue for each does what a heap would.
    """
    offset = np.array([1, nodes + 1, nodes, nodes - 1, -1, -nodes - 1, -nodes, -nodes + 1])
    head = np.zeros(3, dtype=np.int64)
    tail = np.zeros(3, dtype=np.int64)
    tail[0] = seeds
    reached = 0
    while True:
        best, at = FAR, -1
        for i in range(3):
            if head[i] < tail[i] and q.cost[i, head[i]] < best:
                best, at = q.cost[i, head[i]], i
        if at < 0:
            return reached
        node = q.node[at, head[at]]
        head[at] += 1
        if cost[node] != best:
            continue  # a shorter way was found since
        q.order[reached] = node
        reached += 1
        bits = edges[node]
        for d in range(8):
            if bits >> d & 1:
                to = node + offset[d]
                through = best + (DIAGONAL if d & 1 else STRAIGHT)
                if through < cost[to]:
                    cost[to] = through
                    i = 1 + (d & 1)
                    q.node[i, tail[i]], q.cost[i, tail[i]] = to, through
                    tail[i] += 1


@jit
def corners_min(cost: NDArray[np.int32], square: int) -> int:
    """The least cost of a square's corners; cost: i32 [NODES * NODES]."""
    node = square // SQUARES * NODES + square % SQUARES
    return int(min(min(cost[node], cost[node + 1]), min(cost[node + NODES], cost[node + NODES + 1])))


@jit
def _flash(
    jumps: NDArray[np.uint8],
    stand: NDArray[np.uint8],
    order: NDArray[np.int32],
    before: NDArray[np.int32],
    after: NDArray[np.int32],
    seed: NDArray[np.int32],
    seed_cost: NDArray[np.int32],
) -> int:
    """Flash once from all nodes of `order`, whose costs `before` rise: lower the costs `after` of the nodes where that
    ends and write them as seeds for `spread`. Returns the number of seeds."""
    # nodes come in the order in which they are reached, so that the seeds come sorted, and the first flash from or to
    # a square is the best
    left = np.zeros(SQUARES * SQUARES, dtype=np.bool_)
    entered = np.zeros(SQUARES * SQUARES, dtype=np.bool_)
    seeds = 0
    for r in range(len(order)):
        node = order[r]
        base = before[node] + STEP
        bits = jumps[node]
        for d in range(0, 8, 2):
            if bits >> d & 1:
                to = node + FLASH_LOW[d, 1] * NODES + FLASH_LOW[d, 0]
                if base < after[to]:
                    after[to] = base
                    seed[seeds], seed_cost[seeds] = to, base
                    seeds += 1
        nx, nz = node % NODES, node // NODES
        for corner in range(4):
            x, z = nx - (corner & 1), nz - (corner >> 1)
            square = z * SQUARES + x
            if x < 0 or z < 0 or x >= SQUARES or z >= SQUARES or left[square]:
                continue
            left[square] = True
            bits = jumps[z * NODES + x]
            if stand[square] != 1 or bits & 0b10101010 == 0:
                continue
            for d in range(1, 8, 2):
                if not bits >> d & 1:
                    continue
                for tz in range(max(z + FLASH_LOW[d, 1], 0), min(z + FLASH_HIGH[d, 1] + 1, SQUARES)):
                    for tx in range(max(x + FLASH_LOW[d, 0], 0), min(x + FLASH_HIGH[d, 0] + 1, SQUARES)):
                        square = tz * SQUARES + tx
                        if stand[square] != 1 or entered[square]:
                            continue
                        entered[square] = True
                        low = tz * NODES + tx
                        for to in (low, low + 1, low + NODES, low + NODES + 1):
                            if base < after[to]:
                                after[to] = base
                                seed[seeds], seed_cost[seeds] = to, base
                                seeds += 1
    return seeds


@jit
def distances_from(
    lattice: Lattice,
    q: Queues,
    nodes: NDArray[np.int32],
    walk: bool,
    cost: NDArray[np.int32],
    landed: NDArray[np.int32],
) -> None:
    """Distances with up to 0, 1, .. K - 1 flashes on the way, a flash counting as long as a step.

    From any of `nodes` (i32 [n]); without `walk`, they can only be left by flash. cost: i32 [K, NODES * NODES]. landed:
    i32 [K, 17], the same to the disc of each point (16: the end), if the last thing before was the flash. Both are
    overwritten.
    """
    cost[0] = FAR
    landed[:] = FAR
    for n in range(len(nodes)):
        cost[0, nodes[n]] = 0
        q.node[0, n], q.cost[0, n] = nodes[n], 0
        q.order[n] = nodes[n]
    reached = spread(lattice.edges, NODES, cost[0], q, len(nodes)) if walk else len(nodes)
    for k in range(1, len(cost)):
        for h in range(len(lattice.hits)):
            square, i = lattice.hits[h]
            landed[k, i] = min(landed[k, i], corners_min(cost[k - 1], square) + STEP)
        cost[k] = cost[k - 1]  # only what a flash makes better has to be spread
        seeds = _flash(lattice.jumps, lattice.stand, q.order[:reached], cost[k - 1], cost[k], q.node[0], q.cost[0])
        reached = spread(lattice.edges, NODES, cost[k], q, seeds)


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
