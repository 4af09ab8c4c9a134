"""Plays plans of the oracle in the real environment, in few steps.

`oracle.solve` calls `play` with several orders of points; it returns the actions of an episode, found by a beam search
in which every step is made by the rules themselves (`physics.step`). All orders are searched at once, step by step, so
that the first one to come to the end is the fastest. The search is led by distance fields: what is still to walk from
any place of the map, with so many points of the order done and so many flashes left.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from realm.env import oracle_lattice as lattice
from realm.env import physics
from realm.env.map import CELL, SIZE, Map
from realm.env.options import Episode
from realm.env.oracle_lattice import FAR, boosted
from realm.env.physics import DIRECTIONS, FRAMES_PER_STEP, State, World
from realm.jit import jit

FINE = 2  # squares of the fields' lattice along the side of a cell
SQUARES = SIZE * FINE
NODES = SQUARES + 1
SPACING = CELL / FINE
STEP = FRAMES_PER_STEP * physics.WALK_FRAME / SPACING * lattice.STRAIGHT  # length of a step in the open
FLASH_SLACK = 1.0  # a flash is tried if it may cost so many steps more than the best way
WALK_SLACK = 1.0  # the same for a walk
GRAIN = 20.0  # units; states nearer than that, else alike, are one
BUFF_WORTH = lattice.BOOST_STEPS - physics.BUFF_STEPS  # steps that a buff saves at most
MARGIN = 6.0  # steps behind the best; such states are given up
# what of a state changes as it goes on and counts for what comes next
CHANGING: tuple[str, ...] = ("x", "z", "cell_x", "cell_z", "there", "steps", "treasures", "buffs", "flashes")
CHANGING += ("buff_left", "buff_wait", "flash_wait")
STATE_NAMES = tuple(name for name in State._fields if name not in ("memory", "cursor"))
PATIENCE = 60  # steps without coming nearer to the end after which the search is given up
LATE = 5.0  # steps by which the estimate of what is left may be too long
FIELDS_KEPT = 400  # in the memory, 0.5 MB each with one flash


class Player(NamedTuple):
    """A map, start and end made ready for `play`."""

    map: Map
    world: World
    start: int
    end: int
    edges: NDArray[np.uint16]  # [NODES * NODES] of the fields' lattice, as in `Lattice`
    stand: NDArray[np.uint8]  # [SQUARES * SQUARES] the same
    queues: lattice.Queues
    fields: dict[tuple[int, tuple[int, ...]], NDArray[np.int32]]  # (flashes, order) -> what `field` gives for them


def make_player(map_: Map, start: int, end: int, treasures: Sequence[int]) -> Player:
    """Make a map ready for `play` with any of `treasures`."""
    free = np.kron(map_.road, np.ones((FINE, FINE), dtype=np.uint8))
    if lattice.end_is_clear(map_, start, end, (0, *treasures)):
        middle = (np.arange(SQUARES) + 0.5) * SPACING
        x, z = map_.points[end]
        free[((middle[:, None] - z) ** 2 + (middle - x) ** 2 <= lattice.CORE**2) & (free == 1)] = 2
    edges = lattice.make_edges(free == 1, np.zeros((2, SQUARES, SQUARES), dtype=np.bool_))
    return Player(map_, physics.make_world(map_), start, end, edges, free.ravel(), lattice.make_queues(NODES), {})


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
            lattice.spread(player.edges, NODES, lattice.STRAIGHT, length[f], q, len(new), lattice.EVERYWHERE)
        if len(player.fields) >= FIELDS_KEPT:
            player.fields.pop(next(iter(player.fields)))
        player.fields[key] = length
    return player.fields[key]


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
                # from one of the squares around the node, just beside it
                sx, sz = nx - (corner & 1), nz - (corner >> 1)
                tx, tz = int(np.floor(x)), int(np.floor(z))
                if not d & 1:
                    tx, tz = tx - (corner & 1), tz - (corner >> 1)
                if min(sx, sz, tx, tz) < 0 or max(sx, sz, tx, tz) >= SQUARES:
                    continue
                if stand[sz * SQUARES + sx] == 1 and stand[tz * SQUARES + tx] >= 1:
                    through = int(_between(after, x, z) + STEP)
                    if through < length[node]:
                        length[node] = through


# ---- the search ----


class Rows(NamedTuple):
    """Beside the state of hypothetical environments, one a row: what the search has to know of them."""

    plan: NDArray[np.int32]  # [R] which order it goes by
    parent: NDArray[np.int32]  # [R] row in the selection before
    action: NDArray[np.int64]  # [R]
    left: NDArray[np.float64]  # [R] steps still to make, estimated; infinite for a lost row
    key: NDArray[np.int64]  # [R] equal for rows that are as good as the same


def _make_rows(rows: int) -> Rows:
    i32, i64 = np.zeros((2, rows), np.int32), np.zeros((2, rows), np.int64)
    return Rows(i32[0], i32[1], i64[0], np.zeros(rows), i64[1])


def _make_state(rows: int) -> State:
    state = physics.make_state(rows)
    # nothing here looks at the visits, so all rows write them to the same map
    return state._replace(
        memory=as_strided(state.memory[:1].copy(), state.memory.shape, (0, *state.memory.strides[1:]))
    )


def _copy_rows(source: State, target: State, rows: NDArray[np.int64], names: tuple[str, ...]) -> None:
    """target[0], target[1] .. = source[rows[0]], source[rows[1]] .. in these arrays of the state."""
    for name in names:
        np.take(getattr(source, name), rows, axis=0, out=getattr(target, name)[: len(rows)], mode="clip")


class Ways(NamedTuple):
    """What is still to walk, for several orders."""

    order: NDArray[np.int32]  # [P, M] points, 0 is the buff, -1 behind the last
    flashes: int  # at most so many
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


@jit
def _stage(there: NDArray[np.uint8], buffs: NDArray[np.int32], e: int, order: NDArray[np.int32]) -> tuple[int, int]:
    """How many points of the order are done, in order, and how many buffs of the rest were taken before their turn."""
    stage, passed, coming = -1, 0, 0
    for m in range(len(order)):
        if order[m] < 0:
            break
        buff = order[m] == 0
        if stage < 0 and (buffs[e] <= passed if buff else there[e, order[m]]):
            stage = m
        passed += buff and stage < 0
        coming += buff and stage >= 0
    if stage < 0:
        stage = int(np.sum(order >= 0))
    return stage, min(coming, buffs[e] - passed)


@jit
def _expand(s: State, obstacle: NDArray[np.uint8], ways: Ways, rows: NDArray[np.int64], now: Rows, then: Rows) -> int:
    """Write what the selected rows of `now` may do next to .parent, .plan and .action of `then`: walks and flashes that
    are worth it as far as one can tell without making them. Returns how many."""
    # arrays are taken out of the tuples once: helpers would get all of it at every call
    there, buffs, flashes, flash_wait, buff_left, xs, zs = (
        s.there, s.buffs, s.flashes, s.flash_wait, s.buff_left, s.x, s.z
    )  # fmt: skip
    order, most, field, length = ways.order, ways.flashes, ways.field, ways.length
    n = 0
    for r in range(len(rows)):
        e = rows[r]
        plan = now.plan[e]
        of_stage = length[field[plan, _stage(there, buffs, e, order[plan])[0]]]
        left, buffed = max(0, most - flashes[e]), int(buff_left[e] > 0)
        here = _between(of_stage[left], xs[e] / SPACING, zs[e] / SPACING)
        for a in range(2 * DIRECTIONS):
            flash, d = a >= DIRECTIONS, a % DIRECTIONS
            if flash and (left == 0 or flash_wait[e] > 0):
                break
            if flash:
                x, z = xs[e] + physics.FLASH_MOVE[d, 0], zs[e] + physics.FLASH_MOVE[d, 1]
                worth = here + FLASH_SLACK * STEP - STEP
            else:
                x = xs[e] + physics.FRAMES_PER_STEP * physics.FRAME_MOVE[buffed, d, 0]
                z = zs[e] + physics.FRAMES_PER_STEP * physics.FRAME_MOVE[buffed, d, 1]
                worth = here + (WALK_SLACK - 1) * STEP
            if obstacle[int(np.floor(z / CELL)) + physics.VIEW, int(np.floor(x / CELL)) + physics.VIEW]:
                if _between(of_stage[left - int(flash)], x / SPACING, z / SPACING) > worth:
                    continue
            elif flash:
                continue  # where a walk is stopped only the rules know
            then.plan[n], then.parent[n], then.action[n] = plan, r, a
            n += 1
    return n


@jit
def _judge(s: State, ways: Ways, now: Rows) -> int:
    """Write .left and .key of the rows of `s`. Returns a row that has come to the end with all of its order done, or
    -1."""
    there, buffs, flashes, buff_left, xs, zs = s.there, s.buffs, s.flashes, s.buff_left, s.x, s.z
    terminated, truncated = s.terminated, s.truncated
    order, most, field, length = ways.order, ways.flashes, ways.field, ways.length
    for e in range(len(xs)):
        now.left[e] = np.inf
        plan = now.plan[e]
        if terminated[e]:
            missed = 0
            for i in order[plan]:
                missed += i > 0 and there[e, i] == 1
            if missed == 0:
                return e
        if terminated[e] or truncated[e]:
            continue
        stage, early = _stage(there, buffs, e, order[plan])
        still = _between(length[field[plan, stage], max(0, most - flashes[e])], xs[e] / SPACING, zs[e] / SPACING)
        if still < FAR:
            steps, fast = still / STEP, buff_left[e] * physics.BUFF_FACTOR
            now.left[e] = steps - fast + buff_left[e] if steps > fast else steps / physics.BUFF_FACTOR
            now.left[e] += early * BUFF_WORTH  # the field counts on a buff that is gone
        place = int(zs[e] / GRAIN) * 4096 + int(xs[e] / GRAIN)
        now.key[e] = (((place * 32 + stage) * 64 + buff_left[e]) * 8 + min(flashes[e], 7)) * 64 + plan
    return -1


@jit
def _select(flashes: NDArray[np.int32], ways: Ways, now: Rows, ranked: NDArray[np.int64], width: int) -> list[int]:
    """The best `width` rows of each plan and number of flashes used, none twice."""
    plan, left, key = now.plan, now.left, now.key
    chosen, seen = [ranked[0]][:0], {np.int64(-1)}
    of_kind = np.zeros((len(ways.order), ways.flashes + 1), dtype=np.int64)
    for e in ranked:
        if not left[e] <= left[ranked[0]] + MARGIN:
            break
        kind = min(ways.flashes, flashes[e])
        if of_kind[plan[e], kind] < width and key[e] not in seen:
            seen.add(key[e])
            of_kind[plan[e], kind] += 1
            chosen.append(e)
    return chosen


def play(
    player: Player, ways: Ways, treasures: Sequence[int], max_step: int, width: int
) -> tuple[int, NDArray[np.int64]] | None:
    """Find the actions of a short episode with `treasures` that takes the points of one of the orders and ends.

    Beam search: of all states reached after so many steps, the `width` with the least still to walk go on (that many
    for each order and each number of flashes used, since the fields know the best place for a flash only roughly).
    Returns the order's number and the actions (i64 [T]); None if no state came to the end within max_step, or if it
    became clear that none would.
    """
    room = width * len(ways.order) * (ways.flashes + 1) * physics.ACTIONS
    episodes = physics.make_episodes([Episode(player.start, player.end, max_step, len(treasures), tuple(treasures))])
    first = physics.make_state(1)
    physics.reset(first, player.world, episodes, np.array([True]))
    states, tables = [_make_state(room) for _ in range(2)], [_make_rows(room) for _ in range(2)]
    for state in states:
        _copy_rows(first, state, np.zeros(room, dtype=np.int64), STATE_NAMES)
    rows = np.arange(len(ways.order))
    tables[0].plan[: len(rows)] = rows
    trail: list[tuple[NDArray[np.int32], NDArray[np.int64]]] = []
    nearest, since = np.inf, 0
    for t in range(1, max_step + 1):
        n = _expand(states[0], player.world.obstacle, ways, rows, *tables)
        then = Rows(**{name: array[:n] for name, array in tables[1]._asdict().items()})
        state = State(**{name: array[:n] for name, array in states[1]._asdict().items()})
        _copy_rows(states[0], state, rows[then.parent], CHANGING)
        state.terminated[:] = state.truncated[:] = False
        physics.step(state, player.world, episodes, then.action)
        goal = _judge(state, ways, then)
        if goal >= 0:
            plan, actions = int(then.plan[goal]), []
            trail.append((then.parent, then.action))
            for parent, action in reversed(trail):
                actions.append(int(action[goal]))
                goal = int(parent[goal])
            return plan, np.array(actions[::-1], dtype=np.int64)
        ranked = np.argsort(then.left, kind="stable")
        rows = np.array(_select(state.flashes, ways, then, ranked, width), dtype=np.int64)
        if len(rows) == 0:
            return None
        if then.left[rows[0]] < nearest:
            nearest, since = then.left[rows[0]], t
        if t > since + PATIENCE or t + then.left[rows[0]] > max_step + LATE:
            return None
        trail.append((then.parent[rows], then.action[rows]))
        states.reverse()
        tables.reverse()
    return None
