"""Plays a plan of the oracle in the real environment, in few steps.

`oracle.solve` calls `play` with an order of points; it returns the actions of an episode, found by a beam search in
which every step is made by the rules themselves (`physics.step`). The search is led by exact distance fields: what is
still to walk from any place of the map, with so many points of the order done and so many flashes left.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from realm.env import oracle_lattice as lattice
from realm.env import physics
from realm.env.jit import jit
from realm.env.map import CELL, Map
from realm.env.options import Episode
from realm.env.oracle_lattice import FAR, NODES, SPACING, SQUARES, STEP, Lattice
from realm.env.physics import DIRECTIONS, State, World

FLASH_SLACK = STEP  # a flash is tried if it may cost that much more than the best way
CUT_FRAME = 100.0  # units of a frame that cuts corners as much as is likely
GRAIN = 20.0  # states nearer than that, else alike, are one


class Fields(NamedTuple):
    """What is still to walk."""

    order: NDArray[np.int32]  # [M] points, 0 is the buff
    length: NDArray[np.int32]  # [F + 1, M + 1, NODES * NODES] with f flashes left and m points done, to the end


def make_grid(map_: Map, start: int, end: int, treasures: Sequence[int]) -> Lattice:
    """The lattice for `make_fields`. Where bounds are generous it is moderate: how much of a corner a frame cuts is a
    matter of luck, so some of what is possible is assumed."""
    return lattice.make_lattice(map_, end, lattice.end_is_clear(map_, start, end, (0, *treasures)), CUT_FRAME)


def make_fields(map_: Map, grid: Lattice, order: Sequence[int], end: int, flashes: int) -> Fields:
    """Walk back from the end over the points of `order`."""
    queues = lattice.make_queues()
    length = np.full((flashes + 1, len(order) + 1, NODES * NODES), FAR, dtype=np.int32)
    at = np.arange(NODES) * SPACING
    for m in range(len(order), -1, -1):
        px, pz = map_.points[end if m == len(order) else order[m]]
        disc = np.flatnonzero((at[:, None] - pz) ** 2 + (at - px) ** 2 <= physics.TRIGGER_RADIUS**2)
        for f in range(flashes + 1):
            field, seed = length[f, m], np.full(NODES * NODES, FAR, dtype=np.int32)
            if m == len(order):
                seed[disc] = 0
            else:
                done = length[f, m + 1, disc]
                seed[disc] = lattice.boosted(done) if order[m] == 0 else done
            if f > 0:
                field[:] = length[f - 1, m]
                _flash_back(grid.stand, length[f - 1, m], seed)
            nodes = np.flatnonzero(seed < field)
            nodes = nodes[np.argsort(seed[nodes], kind="stable")]
            field[nodes] = seed[nodes]
            queues.node[0, : len(nodes)], queues.cost[0, : len(nodes)] = nodes, seed[nodes]
            lattice.spread(grid.edges, field, queues, len(nodes))
    return Fields(np.array(order, dtype=np.int32), length)


@jit
def _between(field: NDArray[np.int32], x: float, z: float) -> float:
    """A field (i32 [NODES * NODES]) at a place given in squares, bilinear; FAR beside the nodes that lead on."""
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
def _flash_back(stand: NDArray[np.uint8], after: NDArray[np.int32], seed: NDArray[np.int32]) -> None:
    """Lower `seed` (i32 [NODES * NODES]) to what is to walk if the next thing is a flash; `after`: the same, landed."""
    for node in range(len(seed)):
        nx, nz = node % NODES, node // NODES
        for d in range(DIRECTIONS):
            x, z = nx + physics.FLASH_MOVE[d, 0] / SPACING, nz + physics.FLASH_MOVE[d, 1] / SPACING
            for corner in range(4):
                # from one of the squares around the node, just beside it
                sx, sz = nx - (corner & 1), nz - (corner >> 1)
                tx, tz = int(np.floor(x)), int(np.floor(z))
                if not d & 1:
                    tx, tz = tx - (corner & 1), tz - (corner >> 1)
                if min(sx, sz, tx, tz) < 0 or max(sx, sz, tx, tz) >= SQUARES:
                    continue
                if stand[sz * SQUARES + sx] == 1 and stand[tz * SQUARES + tx] >= 1:
                    length = int(_between(after, x, z)) + STEP
                    if length < seed[node]:
                        seed[node] = length


# ---- the search ----


class Table(NamedTuple):
    """Rows of the search: hypothetical environments, one a row."""

    state: State
    parent: NDArray[np.int32]  # [R] row in the selection before
    action: NDArray[np.int64]  # [R]
    left: NDArray[np.float64]  # [R] steps still to make, estimated; infinite for a lost row
    key: NDArray[np.int64]  # [R] equal for rows that are as good as the same


def _make_table(rows: int) -> Table:
    state = physics.make_state(rows)
    # nothing here looks at the visits, so all rows write them to the same map
    memory = as_strided(state.memory[:1].copy(), state.memory.shape, (0, *state.memory.strides[1:]))
    return Table(
        state._replace(memory=memory),
        np.zeros(rows, np.int32),
        np.zeros(rows, np.int64),
        np.zeros(rows, np.float64),
        np.zeros(rows, np.int64),
    )


def _copy_rows(source: State, target: State, rows: NDArray[np.int64]) -> None:
    """target[0], target[1] .. = source[rows[0]], source[rows[1]] .. in all arrays of the state."""
    for name in State._fields:
        if name not in ("memory", "cursor"):
            np.take(getattr(source, name), rows, axis=0, out=getattr(target, name)[: len(rows)], mode="clip")


@jit
def _stage(there: NDArray[np.uint8], buffs: NDArray[np.int32], e: int, order: NDArray[np.int32]) -> int:
    """How many points of the order are done, in order."""
    passed = 0
    for m in range(len(order)):
        if order[m] == 0:
            passed += 1
            if buffs[e] < passed:
                return m
        elif there[e, order[m]]:
            return m
    return len(order)


@jit
def _expand(
    s: State,
    obstacle: NDArray[np.uint8],
    rows: NDArray[np.int64],
    fields: Fields,
    parent: NDArray[np.int32],
    action: NDArray[np.int64],
) -> int:
    """Write what the selected rows may do next: all walks, and flashes that are worth it. Returns how many."""
    # arrays are taken out of the tuple once: helpers would get all of it at every call
    there, buffs, flashes, flash_wait, xs, zs = s.there, s.buffs, s.flashes, s.flash_wait, s.x, s.z
    order, length = fields.order, fields.length
    n = 0
    for r in range(len(rows)):
        e = rows[r]
        for a in range(DIRECTIONS):
            parent[n], action[n] = r, a
            n += 1
        left = len(length) - 1 - flashes[e]
        if left <= 0 or flash_wait[e] > 0:
            continue
        stage = _stage(there, buffs, e, order)
        here = _between(length[left, stage], xs[e] / SPACING, zs[e] / SPACING)
        for a in range(DIRECTIONS):
            x, z = xs[e] + physics.FLASH_MOVE[a, 0], zs[e] + physics.FLASH_MOVE[a, 1]
            if obstacle[int(np.floor(z / CELL)) + physics.VIEW, int(np.floor(x / CELL)) + physics.VIEW]:
                landed = _between(length[left - 1, stage], x / SPACING, z / SPACING)
                if landed + STEP <= here + FLASH_SLACK:
                    parent[n], action[n] = r, a + DIRECTIONS
                    n += 1
    return n


@jit
def _judge(s: State, fields: Fields, left: NDArray[np.float64], key: NDArray[np.int64]) -> int:
    """Write Table.left and .key of the rows of `s`. Returns a row that has come to the end with all of the order done,
    or -1."""
    there, buffs, flashes, buff_left, xs, zs = s.there, s.buffs, s.flashes, s.buff_left, s.x, s.z
    terminated, truncated = s.terminated, s.truncated
    order, length = fields.order, fields.length
    for e in range(len(xs)):
        left[e] = np.inf
        if terminated[e]:
            missed = 0
            for i in order:
                missed += i > 0 and there[e, i] == 1
            if missed == 0:
                return e
        if terminated[e] or truncated[e]:
            continue
        stage = _stage(there, buffs, e, order)
        field = length[max(0, len(length) - 1 - flashes[e]), stage]
        steps = _between(field, xs[e] / SPACING, zs[e] / SPACING) / STEP
        if steps * STEP < FAR:
            fast = buff_left[e] * physics.BUFF_FACTOR
            left[e] = steps - fast + buff_left[e] if steps > fast else steps / physics.BUFF_FACTOR
        place = int(zs[e] / GRAIN) * 4096 + int(xs[e] / GRAIN)
        key[e] = ((place * 32 + stage) * 64 + buff_left[e]) * 8 + min(flashes[e], 7)
    return -1


@jit
def _select(
    flashes: NDArray[np.int32],
    ranked: NDArray[np.int64],
    left: NDArray[np.float64],
    key: NDArray[np.int64],
    width: int,
    kinds: int,
    rows: NDArray[np.int64],
) -> int:
    """Keep the best `width` rows of each number of flashes used, none twice. Returns how many."""
    n = 0
    seen = {np.int64(-1)}
    of_kind = np.zeros(kinds, dtype=np.int64)
    for e in ranked:
        if not np.isfinite(left[e]):
            break
        kind = min(kinds - 1, flashes[e])
        if of_kind[kind] < width and key[e] not in seen:
            seen.add(key[e])
            of_kind[kind] += 1
            rows[n] = e
            n += 1
    return n


def play(
    world: World,
    fields: Fields,
    treasures: Sequence[int],
    start: int,
    end: int,
    max_step: int,
    width: int,
) -> NDArray[np.int64] | None:
    """Find the actions of a short episode with `treasures` that takes the points of fields.order and ends.

    Beam search: of all states reached after so many steps, the `width` with the least still to walk go on (that many
    for each number of flashes used, since the fields know the best place for a flash only roughly). i64 [T]; None if no
    state came to the end within max_step.
    """
    kinds = len(fields.length)
    tables = [_make_table(width * kinds * 2 * DIRECTIONS) for _ in range(2)]
    episodes = physics.make_episodes([Episode(start, end, max_step, len(treasures), tuple(treasures))])
    physics.reset(tables[0].state, world, episodes, np.array([True]))
    rows = np.zeros(1, dtype=np.int64)
    chosen = np.empty(width * kinds, dtype=np.int64)
    trail: list[tuple[NDArray[np.int32], NDArray[np.int64]]] = []
    for _ in range(max_step):
        now, then = tables
        n = _expand(now.state, world.obstacle, rows, fields, then.parent, then.action)
        _copy_rows(now.state, then.state, rows[then.parent[:n]])
        state = State(**{name: array[:n] for name, array in then.state._asdict().items()})
        physics.step(state, world, episodes, then.action[:n])
        goal = _judge(state, fields, then.left, then.key)
        if goal >= 0:
            actions = [int(then.action[goal])]
            row = int(then.parent[goal])
            for parent, action in reversed(trail):
                actions.append(int(action[row]))
                row = int(parent[row])
            return np.array(actions[::-1], dtype=np.int64)
        ranked = np.argsort(then.left[:n], kind="stable")
        kept = _select(then.state.flashes, ranked, then.left, then.key, width, kinds, chosen)
        if kept == 0:
            return None
        rows = chosen[:kept].copy()
        trail.append((then.parent[rows], then.action[rows]))
        tables.reverse()
    return None
