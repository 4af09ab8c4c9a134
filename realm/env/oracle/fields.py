"""Distance fields that lead the oracle's search: what is left to walk from any place, over an order of points.

`make_player` prepares a map, a start and an end; `field` gives the field of an order, `make_ways` those of several
orders, for `beam.play`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from realm.env import physics
from realm.env.map import CELL, SIZE, Map
from realm.env.oracle import distances, lattice
from realm.env.oracle.lattice import FAR, boosted
from realm.env.physics import DIRECTIONS, FRAMES_PER_STEP, World
from realm.jit import jit

FINE = 2  # squares of the fields' lattice along the side of a cell
SQUARES = SIZE * FINE
NODES = SQUARES + 1
SPACING = CELL / FINE
STEP = FRAMES_PER_STEP * physics.WALK_FRAME / SPACING * lattice.STRAIGHT  # length of a step in the open
FIELDS_KEPT = 400  # in the memory, 0.5 MB each with one flash


class Player(NamedTuple):
    """A map, start and end made ready for `play`."""

    map: Map
    world: World
    start: int
    end: int
    edges: NDArray[np.uint16]  # [NODES * NODES] of the fields' lattice, as in `Lattice`
    stand: NDArray[np.uint8]  # [SQUARES * SQUARES] the same
    queues: distances.Queues
    fields: dict[tuple[int, tuple[int, ...]], NDArray[np.int32]]  # (flashes, order) -> what `field` gives for them


def make_player(map_: Map, start: int, end: int, treasures: Sequence[int]) -> Player:
    """Make a map ready for `play` with any of `treasures`."""
    free = np.kron(map_.road, np.ones((FINE, FINE), dtype=np.uint8))
    if lattice.end_is_clear(map_, start, end, (0, *treasures)):
        middle = (np.arange(SQUARES) + 0.5) * SPACING
        x, z = map_.points[end]
        free[((middle[:, None] - z) ** 2 + (middle - x) ** 2 <= lattice.CORE**2) & (free == 1)] = 2
    edges = lattice.make_edges(free == 1, np.zeros((2, SQUARES, SQUARES), dtype=np.bool_))
    return Player(map_, physics.make_world(map_), start, end, edges, free.ravel(), distances.make_queues(NODES), {})


def field(player: Player, order: tuple[int, ...], flashes: int) -> NDArray[np.int32]:
    """What is still to walk over all of `order` to the end; i32 [flashes + 1, NODES * NODES], the first axis being the
    flashes left."""
    key = (flashes, order)
    if key not in player.fields:
        after = field(player, order[1:], flashes) if order else None
        length = np.full((flashes + 1, NODES * NODES), FAR, dtype=np.int32)
        at = np.arange(NODES) * SPACING
        px, pz = player.map.points[order[0] if order else player.end]
        disc = np.flatnonzero((at[:, None] - pz) ** 2 + (at - px) ** 2 <= physics.TRIGGER_RADIUS**2)
        for f in range(flashes + 1):
            done = np.zeros(len(disc), dtype=np.int32) if after is None else after[f, disc]
            if order and order[0] == 0:
                done = boosted(done, STEP)
            if f > 0:
                length[f] = length[f - 1]
                _flash_back(player.edges, player.stand, length[f - 1], length[f])
            length[f, disc] = np.minimum(length[f, disc], done)
            new = np.flatnonzero(length[f] < (length[f - 1] if f > 0 else FAR))
            new = new[np.argsort(length[f, new], kind="stable")]
            q = player.queues
            q.seed[: len(new)] = length[f, new].astype(np.int64) << 32 | new
            distances.spread(player.edges, NODES, lattice.STRAIGHT, length[f], q, len(new), distances.EVERYWHERE)
        if len(player.fields) >= FIELDS_KEPT:
            player.fields.pop(next(iter(player.fields)))
        player.fields[key] = length
    return player.fields[key]


@jit
def between(field: NDArray[np.int32], x: float, z: float) -> float:
    """A field (i32 [NODES * NODES]) at a place given in squares, bilinear; FAR next to the nodes that lead on."""
    nx, nz = int(np.floor(x)), int(np.floor(z))
    fx, fz = x - nx, z - nz
    node = nz * NODES + nx
    low, high = field[node], field[node]
    if fx > 0:
        low = field[node + 1]
    a = field[node] * (1 - fx) + low * fx
    if fz == 0:
        return float(a)
    high = field[node + NODES]
    low = high
    if fx > 0:
        low = field[node + NODES + 1]
    return float(a * (1 - fz) + (high * (1 - fx) + low * fx) * fz)


@jit
def _flash_back(
    edges: NDArray[np.uint16], stand: NDArray[np.uint8], after: NDArray[np.int32], length: NDArray[np.int32]
) -> None:
    """Lower `length` (i32 [NODES * NODES]) to what is to walk if the next thing is a flash; `after`: once landed."""
    for node in range(len(length)):
        if edges[node] == 0:
            continue
        nx, nz = node % NODES, node // NODES
        for d in range(DIRECTIONS):
            x, z = nx + physics.FLASH_MOVE[d, 0] / SPACING, nz + physics.FLASH_MOVE[d, 1] / SPACING
            for corner in range(4):
                # from one of the squares around the node, just next to it
                sx, sz = nx - (corner & 1), nz - (corner >> 1)
                tx, tz = int(np.floor(x)), int(np.floor(z))
                if not d & 1:
                    tx, tz = tx - (corner & 1), tz - (corner >> 1)
                if min(sx, sz, tx, tz) < 0 or max(sx, sz, tx, tz) >= SQUARES:
                    continue
                if stand[sz * SQUARES + sx] == 1 and stand[tz * SQUARES + tx] >= 1:
                    through = int(between(after, x, z) + STEP)
                    if through < length[node]:
                        length[node] = through


class Ways(NamedTuple):
    """What is still to walk, for several orders."""

    order: NDArray[np.int32]  # [P, M] points, 0 is the buff, -1 behind the last
    flashes: int  # at most
    field: NDArray[np.int32]  # [P, M + 1] which one counts when m points are done
    length: NDArray[np.int32]  # [U, F + 1, NODES * NODES] all fields that occur


def make_ways(player: Player, orders: Sequence[tuple[int, ...]], flashes: int) -> Ways:
    """Look up the fields for these orders."""
    most = max(len(order) for order in orders)
    points = np.full((len(orders), most), -1, dtype=np.int32)
    which = np.zeros((len(orders), most + 1), dtype=np.int32)
    fields: dict[tuple[int, ...], NDArray[np.int32]] = {}
    for p, order in enumerate(orders):
        points[p, : len(order)] = order
        for m in range(len(order), -1, -1):
            if order[m:] not in fields:
                fields[order[m:]] = field(player, order[m:], flashes)
            which[p, m] = list(fields).index(order[m:])
    return Ways(points, flashes, which, np.stack(list(fields.values())))
