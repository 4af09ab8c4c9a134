"""Plays plans of the oracle in few steps: a beam search in which the rules themselves make every step.

`solving.solve` calls `play` with several orders of points; it returns the actions of an episode. All orders are
searched at once, step by step, so the first order that comes to the end is the fastest. The fields of `fields.py` lead
the search: what is left to walk from any place, with m points of the order done and f flashes left.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from realm.env import physics
from realm.env.map import CELL
from realm.env.options import Episode
from realm.env.oracle.fields import SPACING, STEP, Player, Ways, between
from realm.env.oracle.lattice import BOOST_STEPS, FAR
from realm.env.physics import DIRECTIONS, State
from realm.jit import jit

FLASH_SLACK = 1.0  # a flash is tried if it may cost N steps more than the best way
WALK_SLACK = 1.0  # the same for a walk
GRAIN = 20.0  # units; states nearer than that, else alike, are one
BUFF_WORTH = BOOST_STEPS - physics.BUFF_STEPS  # steps that a buff saves at most
MARGIN = 6.0  # steps behind the best; such states are given up
# what of a state changes as it goes on and counts for what comes next
CHANGING: tuple[str, ...] = ("x", "z", "cell_x", "cell_z", "there", "steps", "treasures", "buffs", "flashes")
CHANGING += ("buff_left", "buff_wait", "flash_wait")
STATE_NAMES = tuple(name for name in State._fields if name not in ("memory", "cursor"))
PATIENCE = 60  # steps without coming nearer to the end after which the search is given up
LATE = 5.0  # steps by which the estimate of what is left may be too long


class Nodes(NamedTuple):
    """The nodes of the search, one a row of hypothetical environments: what it has to know besides their state."""

    plan: NDArray[np.int32]  # [R] which order it goes by
    parent: NDArray[np.int32]  # [R] row in the selection before
    action: NDArray[np.int64]  # [R]
    left: NDArray[np.float64]  # [R] steps still to make, estimated; infinite for a lost row
    key: NDArray[np.int64]  # [R] equal for rows that are as good as the same


def _make_nodes(rows: int) -> Nodes:
    i32, i64 = np.zeros((2, rows), np.int32), np.zeros((2, rows), np.int64)
    return Nodes(i32[0], i32[1], i64[0], np.zeros(rows), i64[1])


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
def _expand(s: State, obstacle: NDArray[np.uint8], ways: Ways, rows: NDArray[np.int64], now: Nodes, then: Nodes) -> int:
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
        here = between(of_stage[left], xs[e] / SPACING, zs[e] / SPACING)
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
                if between(of_stage[left - int(flash)], x / SPACING, z / SPACING) > worth:
                    continue
            elif flash:
                continue  # where a walk is stopped only the rules know
            then.plan[n], then.parent[n], then.action[n] = plan, r, a
            n += 1
    return n


@jit
def _judge(s: State, ways: Ways, now: Nodes) -> int:
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
        still = between(length[field[plan, stage], max(0, most - flashes[e])], xs[e] / SPACING, zs[e] / SPACING)
        if still < FAR:
            steps, fast = still / STEP, buff_left[e] * physics.BUFF_FACTOR
            now.left[e] = steps - fast + buff_left[e] if steps > fast else steps / physics.BUFF_FACTOR
            now.left[e] += early * BUFF_WORTH  # the field counts on a buff that is gone
        place = int(zs[e] / GRAIN) * 4096 + int(xs[e] / GRAIN)
        now.key[e] = (((place * 32 + stage) * 64 + buff_left[e]) * 8 + min(flashes[e], 7)) * 64 + plan
    return -1


@jit
def _select(flashes: NDArray[np.int32], ways: Ways, now: Nodes, ranked: NDArray[np.int64], width: int) -> list[int]:
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

    Beam search: of all states reached after t steps, the `width` with the least still to walk go on (that many
    for each order and each number of flashes used, since the fields know the best place for a flash only roughly).
    Returns the order's number and the actions (i64 [T]); None if no state came to the end within max_step, or if it
    became clear that none would.
    """
    room = width * len(ways.order) * (ways.flashes + 1) * physics.ACTIONS
    episodes = physics.make_episodes([Episode(player.start, player.end, max_step, len(treasures), tuple(treasures))])
    first = physics.make_state(1)
    physics.reset(first, player.world, episodes, np.array([True]))
    states, tables = [_make_state(room) for _ in range(2)], [_make_nodes(room) for _ in range(2)]
    for state in states:
        _copy_rows(first, state, np.zeros(room, dtype=np.int64), STATE_NAMES)
    rows = np.arange(len(ways.order))
    tables[0].plan[: len(rows)] = rows
    trail: list[tuple[NDArray[np.int32], NDArray[np.int64]]] = []
    nearest, since = np.inf, 0
    for t in range(1, max_step + 1):
        n = _expand(states[0], player.world.obstacle, ways, rows, *tables)
        then = Nodes(**{name: array[:n] for name, array in tables[1]._asdict().items()})
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
