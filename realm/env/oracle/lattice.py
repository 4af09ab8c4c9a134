"""The lattice that the oracle measures ways on, finer than the cells of the map.

Used by all of this package. A `Lattice` has a node at every crossing of lines 83 units apart (42 where no flash
matters) and edges to the eight neighbours. It is generous: for every walk of the hero, some way on the lattice is not
longer (see `make_lattice`). Lengths are whole numbers, 120 to a world unit, rounded down.
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
    free, half = _free_area(map_, frame, fine)
    domain = free | half.any(0)
    line = np.arange(side + 1) * spacing
    at = map_.points[:, :, None]
    low, high = line[:-1] - at, at - line[1:]
    near = np.maximum(0.0, np.maximum(low, high)) ** 2
    # a square that the disc touches in a point only does not count, or rounding would decide
    touches = near[:, 1, :, None] + near[:, 0, None, :] < physics.TRIGGER_RADIUS**2 * (1 - 1e-12)
    discs = (touches * (1 << np.arange(POINTS, dtype=np.int32))[:, None, None]).sum(0).astype(np.int32)
    discs |= touches[end].astype(np.int32) << END_BIT
    road = np.kron(map_.road, np.ones((fine, fine), dtype=np.uint8)).astype(np.bool_)
    stand = road.astype(np.uint8)
    if closed:
        far = np.maximum(-low[end], -high[end]) ** 2
        core = far[1, :, None] + far[0, None, :] <= CORE**2
        stand[core & road] = 2
        free &= ~core
        half &= ~core
    discs[~domain] = 0

    first = np.floor(physics.FLASH_MOVE / spacing + 1e-9).astype(np.int32)
    last = np.ceil(physics.FLASH_MOVE / spacing - 1e-9).astype(np.int32)
    hits = [np.flatnonzero((discs.ravel() >> i & 1) & (stand.ravel() != 0)) for i in range(END_BIT + 1)]
    return Lattice(
        side,
        make_edges(free, half),
        stand.ravel(),
        discs.ravel(),
        domain.ravel(),
        _runs(stand > 0),
        _jumps(stand, first),
        np.column_stack([first, last]),
        np.concatenate([np.column_stack([squares, np.full(len(squares), i)]) for i, squares in enumerate(hits)]).astype(
            np.int32
        ),
    )


def _free_area(map_: Map, frame: float, fine: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """The squares that can be walked over, bool [S, S], and the halves of squares: bool [2, S, S], cut by the falling,
    the rising diagonal. Road, and triangles at convex corners of obstacles (see `make_lattice`)."""
    side = SIZE * fine
    k = int(np.ceil(frame * physics.DIRECTION[1, 0] / (CELL / fine)))
    padded = np.pad(map_.road, 1).astype(np.bool_)
    free = np.kron(map_.road, np.ones((fine, fine), dtype=np.uint8)).astype(np.bool_)
    half = np.zeros((2, side, side), dtype=np.bool_)
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
    return free, half


def _jumps(stand: NDArray[np.uint8], move: NDArray[np.int32]) -> NDArray[np.int32]:
    """Lattice.jumps. stand: u8 [S, S], as in `Lattice`. move: i32 [8, 2], x and z of a flash in squares."""
    side = len(stand)
    jumps = []
    for d in range(0, 8, 2):
        # from node to node: next to both there is a square, on the same side
        dx, dz = move[d]
        there = np.zeros((side + 2, side + 2), dtype=np.bool_)
        fx, fz, tx, tz = max(0, -dx), max(0, -dz), side - max(0, dx), side - max(0, dz)
        there[1 + fz : 1 + tz, 1 + fx : 1 + tx] = (stand[fz:tz, fx:tx] == 1) & (
            stand[fz + dz : tz + dz, fx + dx : tx + dx] == 1
        )
        runs = _runs(_around(there))
        jumps.append(np.column_stack([runs, np.full(len(runs), d, dtype=np.int32)]))
    return np.concatenate(jumps)


def _runs(table: NDArray[np.bool_]) -> NDArray[np.int32]:
    """First index (in the ravelled table) and length of the runs of true entries along its rows; i32 [R, 2]."""
    change = np.diff(np.pad(table, ((0, 0), (1, 1))).astype(np.int8), axis=1)
    begin, end = np.argwhere(change == 1), np.argwhere(change == -1)
    runs: NDArray[np.int32] = np.column_stack(
        [begin[:, 0] * table.shape[1] + begin[:, 1], end[:, 1] - begin[:, 1]]
    ).astype(np.int32)
    return runs


def make_edges(free: NDArray[np.bool_], half: NDArray[np.bool_]) -> NDArray[np.uint16]:
    """Lattice.edges of a lattice of S x S squares, u16 [(S + 1) * (S + 1)]: those inside or next to free squares (bool
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
