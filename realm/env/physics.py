"""The rules of the realm, once: numba kernels over arrays of E environments.

`State` holds E episodes in progress as a struct of arrays, `World` one map, `Episodes` what resets draw from.
`step` advances all environments by one action (an environment whose episode is over is reset instead:
gymnasium's NEXT_STEP autoreset), `reset` starts chosen ones; `observe.py` turns the state into observations. The
state after a step also tells what happened in it, so that users can shape rewards in kernels of their own.
Nothing here is random but `reset`, whose generators live in `State.rng`. Every number of the game is a
constant below; *choice* marks what the game does not publish.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from realm.env.map import CELL, POINTS, SIZE, Map
from realm.env.options import Episode
from realm.jit import jit, jit_helper

# ---- the numbers of the game ----

FRAMES_PER_STEP = 3
WALK_FRAME = 233.0  # units a frame; choice: constant, so an open step is always 699
BUFF_FACTOR = 1.4
BUFF_FRAME = WALK_FRAME * BUFF_FACTOR
FLASH_UNITS = 8000.0  # choice: exactly
WALK_HIT, BUFF_HIT, FLASH_HIT = 600.0, 900.0, 7900.0  # a step that moves less has hit a wall
TRIGGER_RADIUS = 1000.0  # choice; the border counts
FLASH_COOLDOWN = 606  # steps in which no flash is legal after a flash
BUFF_STEPS = 50  # steps at the higher speed after the one that took the buff
BUFF_RETURN = 454  # steps in which the buff is away after the one that took it
TREASURE_SCORE, END_SCORE, STEP_SCORE = 100.0, 150.0, 0.2
VIEW = 25  # cells seen to each side
WINDOW = 2 * VIEW + 1
CHANNEL = WINDOW * WINDOW
IMAGE = 4 * CHANNEL
MAX_GRID_DISTANCE = 256.0  # grid_distance is steps / 256, at most 1
ACTIONS, DIRECTIONS = 16, 8
VECTOR = 31
FIRST_SHOWN, SHOWN = 3, 13  # the vector shows treasures 3..15
FULL = np.uint8(255)  # 1.0 of the game's maps in the image
ONE = np.float32(1.0)
VISIT = np.uint8(51)  # 0.2 of the game's memory map in the image

PADDED = SIZE + 2 * VIEW
_D = 0.7071067811865476  # nearest float64 to sqrt(1/2)
# 45 degree steps counter-clockwise from +x; a table, since cos(90 degrees) is not quite 0
DIRECTION = np.array(
    [[1.0, 0.0], [_D, _D], [0.0, 1.0], [-_D, _D], [-1.0, 0.0], [-_D, -_D], [0.0, -1.0], [_D, -_D]],
    dtype=np.float64,
)
FRAME_MOVE = np.stack([DIRECTION * WALK_FRAME, DIRECTION * BUFF_FRAME])  # [buffed, direction, (x, z)]
FLASH_MOVE = DIRECTION * FLASH_UNITS


# ---- the arrays ----


class World(NamedTuple):
    """One map as the kernels read it. Padded arrays have 25 more cells on each side: index them [z + 25, x +
    25]."""

    obstacle: NDArray[np.uint8]  # [178, 178], 255 road, 0 obstacle or outside
    contact: NDArray[np.int32]  # [178, 178], bit i: the trigger disc of point i touches the cell
    points: NDArray[np.float64]  # [16, 2] world x, z
    cells: NDArray[np.int32]  # [16, 2] cell x, z
    near: NDArray[np.float32]  # [128, 128, 16] grid_distance (0..1) from cell [z, x] to point i
    distance: NDArray[np.int32]  # [16, 128, 128] the same in steps, FAR where no way leads


class Episodes(NamedTuple):
    """What resets draw from: K layouts, handed out in order."""

    start: NDArray[np.int32]  # [K]
    end: NDArray[np.int32]  # [K]
    max_step: NDArray[np.int32]  # [K]
    fixed: NDArray[np.bool_]  # [K] treasures are `treasures`, not random
    treasure_num: NDArray[np.int32]  # [K]
    treasures: NDArray[np.uint8]  # [K, 16] 1 = a fixed treasure


class State(NamedTuple):
    """E environments. The observation after a step describes exactly this."""

    x: NDArray[np.float64]  # [E] world units
    z: NDArray[np.float64]  # [E]
    from_x: NDArray[np.float64]  # [E] where the last step began
    from_z: NDArray[np.float64]  # [E]
    cell_x: NDArray[np.int32]  # [E] cell of (x, z)
    cell_z: NDArray[np.int32]  # [E]
    # the episode
    start: NDArray[np.int32]  # [E] point ids
    end: NDArray[np.int32]  # [E]
    max_step: NDArray[np.int32]  # [E]
    planned: NDArray[np.uint8]  # [E, 16] 1 = treasure of this episode, taken or not
    total: NDArray[np.int32]  # [E] number of these
    layout: NDArray[np.int32]  # [E] index into the layouts
    turn: NDArray[np.int64]  # [E] how many episodes were handed out before this one
    # what is left and what was done so far
    there: NDArray[np.uint8]  # [E, 16] 1 = there now: the buff (0) and treasures (their id)
    steps: NDArray[np.int32]  # [E]
    treasures: NDArray[np.int32]  # [E] taken
    buffs: NDArray[np.int32]  # [E] taken
    flashes: NDArray[np.int32]  # [E] used
    walls: NDArray[np.int32]  # [E] steps that hit a wall
    buff_left: NDArray[np.int32]  # [E] steps at the higher speed to come
    buff_wait: NDArray[np.int32]  # [E] steps until the buff is back
    flash_wait: NDArray[np.int32]  # [E] steps until a flash is legal
    memory: NDArray[np.uint8]  # [E, 178, 178] padded, 51 a visit, at most 255
    score: NDArray[np.float64]  # [E] treasures so far; the final score once the episode is over
    # the last step
    reward: NDArray[np.float64]  # [E] change of score
    terminated: NDArray[np.bool_]  # [E] reached the end
    truncated: NDArray[np.bool_]  # [E] out of time
    fresh: NDArray[np.bool_]  # [E] the episode has just been reset; all below is 0
    took_treasures: NDArray[np.int32]  # [E] number taken in this step
    took_buff: NDArray[np.bool_]  # [E]
    used_flash: NDArray[np.bool_]  # [E] whether it moved the hero or not
    hit_wall: NDArray[np.bool_]  # [E]
    # generators
    rng: NDArray[np.uint64]  # [E] splitmix64
    cursor: NDArray[np.int64]  # [1] episodes handed out


def make_world(map_: Map) -> World:
    """Prepare a map for the kernels."""
    obstacle = np.pad(map_.road * FULL, VIEW)
    # distance from each point to the nearest spot of each cell, by axis; one unit more to be safe
    low = np.arange(-VIEW, SIZE + VIEW) * CELL
    at = map_.points[:, :, None]
    gap = np.maximum(0.0, np.maximum(low - at, at - low - CELL))
    touches = gap[:, 1, :, None] ** 2 + gap[:, 0, None, :] ** 2 <= (TRIGGER_RADIUS + 1.0) ** 2
    contact = (touches * (1 << np.arange(POINTS, dtype=np.int32))[:, None, None]).sum(0).astype(np.int32)
    near = np.minimum(map_.distance / MAX_GRID_DISTANCE, 1.0).astype(np.float32)
    near = np.ascontiguousarray(near.transpose(1, 2, 0))
    return World(obstacle, contact, map_.points, map_.cells, near, map_.distance)


def make_episodes(layouts: list[Episode]) -> Episodes:
    """Prepare checked layouts for the kernels."""
    treasures = np.zeros((len(layouts), POINTS), dtype=np.uint8)
    for k, layout in enumerate(layouts):
        treasures[k, list(layout.treasure_id or ())] = 1
    return Episodes(
        start=np.array([layout.start for layout in layouts], dtype=np.int32),
        end=np.array([layout.end for layout in layouts], dtype=np.int32),
        max_step=np.array([layout.max_step for layout in layouts], dtype=np.int32),
        fixed=np.array([layout.treasure_id is not None for layout in layouts], dtype=np.bool_),
        treasure_num=np.array([layout.treasure_num for layout in layouts], dtype=np.int32),
        treasures=treasures,
    )


def make_state(num_envs: int) -> State:
    """Arrays for E environments, to be filled by `reset`."""
    e = num_envs
    arrays: dict[str, Any] = {
        "planned": np.zeros((e, POINTS), np.uint8),
        "there": np.zeros((e, POINTS), np.uint8),
        "memory": np.zeros((e, PADDED, PADDED), np.uint8),
        "turn": np.zeros(e, np.int64),
        "rng": np.zeros(e, np.uint64),
        "cursor": np.zeros(1, np.int64),
    }
    for name in ("x", "z", "from_x", "from_z", "score", "reward"):
        arrays[name] = np.zeros(e, np.float64)
    for name in ("terminated", "truncated", "fresh", "took_buff", "used_flash", "hit_wall"):
        arrays[name] = np.zeros(e, np.bool_)
    for name in State._fields:
        if name not in arrays:
            arrays[name] = np.zeros(e, np.int32)
    return State(**arrays)


# The kernels take arrays out of the tuples before their loops and pass helpers only what they need: a tuple
# of thirty arrays given to a function inside a loop costs more than the step itself, and seconds to compile.

# ---- randomness ----


@jit_helper
def _random_below(rng: NDArray[np.uint64], e: int, n: int) -> np.int64:
    """The next number 0..n-1 of environment e's splitmix64 generator."""
    rng[e] += np.uint64(0x9E3779B97F4A7C15)
    v = rng[e]
    v = (v ^ (v >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    v = (v ^ (v >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    v = v ^ (v >> np.uint64(31))
    return np.int64(((v >> np.uint64(32)) * np.uint64(n)) >> np.uint64(32))


# ---- reset ----


@jit_helper
def _draw_treasures(
    planned: NDArray[np.uint8], rng: NDArray[np.uint64], e: int, start: int, end: int, num: int
) -> None:
    """Choose `num` of the points that are neither start nor end: the head of a Fisher-Yates shuffle."""
    free = np.empty(POINTS, dtype=np.int64)
    n = 0
    for i in range(POINTS):
        planned[e, i] = 0
        if i != 0 and i != start and i != end:
            free[n] = i
            n += 1
    for i in range(num):
        j = i + _random_below(rng, e, n - i)
        free[i], free[j] = free[j], free[i]
        planned[e, free[i]] = 1


@jit
def reset(s: State, w: World, episodes: Episodes, which: NDArray[np.bool_]) -> None:
    """Start a new episode in each environment e with which[e]; bool [E]."""
    cursor, turn, layout, planned, total, rng = s.cursor, s.turn, s.layout, s.planned, s.total, s.rng
    starts, ends, max_step, there, memory = s.start, s.end, s.max_step, s.there, s.memory
    x, z, from_x, from_z, cell_x, cell_z = s.x, s.z, s.from_x, s.from_z, s.cell_x, s.cell_z
    steps, treasures, buffs, flashes, walls = s.steps, s.treasures, s.buffs, s.flashes, s.walls
    buff_left, buff_wait, flash_wait, score = s.buff_left, s.buff_wait, s.flash_wait, s.score
    reward, terminated, truncated, fresh = s.reward, s.terminated, s.truncated, s.fresh
    took_treasures, took_buff, used_flash, hit_wall = s.took_treasures, s.took_buff, s.used_flash, s.hit_wall
    points, cells, fixed, fixed_ids = w.points, w.cells, episodes.fixed, episodes.treasures
    for e in range(len(which)):
        if not which[e]:
            continue
        k = cursor[0] % len(episodes.start)
        turn[e], layout[e] = cursor[0], k
        cursor[0] += 1
        start, end, num = episodes.start[k], episodes.end[k], episodes.treasure_num[k]
        starts[e], ends[e], max_step[e], total[e] = start, end, episodes.max_step[k], num
        if fixed[k]:
            for i in range(POINTS):
                planned[e, i] = fixed_ids[k, i]
        else:
            _draw_treasures(planned, rng, e, start, end, num)
        for i in range(POINTS):
            there[e, i] = planned[e, i]
        there[e, 0] = 1
        x[e], z[e] = points[start, 0], points[start, 1]
        from_x[e], from_z[e] = x[e], z[e]
        cell_x[e], cell_z[e] = cells[start, 0], cells[start, 1]
        steps[e] = treasures[e] = buffs[e] = flashes[e] = walls[e] = 0
        buff_left[e] = buff_wait[e] = flash_wait[e] = 0
        score[e] = 0.0
        for row in range(PADDED):
            for column in range(PADDED):
                memory[e, row, column] = 0
        memory[e, cell_z[e] + VIEW, cell_x[e] + VIEW] = VISIT
        reward[e] = 0.0
        terminated[e] = truncated[e] = False
        fresh[e] = True
        took_treasures[e] = 0
        took_buff[e] = used_flash[e] = hit_wall[e] = False


# ---- step ----


@jit_helper
def _cell(v: float) -> int:
    """The cell of a coordinate."""
    return int(np.floor(v / CELL))


@jit_helper
def _within_reach(points: NDArray[np.float64], i: int, x: float, z: float) -> bool:
    dx, dz = x - points[i, 0], z - points[i, 1]
    return bool(dx * dx + dz * dz <= TRIGGER_RADIUS * TRIGGER_RADIUS)


@jit_helper
def _take(
    there: NDArray[np.uint8], e: int, end: int, near: int, points: NDArray[np.float64], x: float, z: float
) -> tuple[int, bool, bool]:
    """Take what is within reach of (x, z) out of `there`. `near`: bits of the points that may be.

    Returns the number of treasures taken, whether the buff was, whether the end was reached.
    """
    treasures, buff, at_end = 0, False, False
    for i in range(POINTS):
        if near & (1 << i) and (there[e, i] or i == end) and _within_reach(points, i, x, z):
            if i == end:
                at_end = True
            elif i == 0:
                buff = True
                there[e, 0] = 0
            else:
                treasures += 1
                there[e, i] = 0
    return treasures, buff, at_end


@jit_helper
def _move(s: State, w: World, actions: NDArray[np.int64]) -> None:
    """Move the heroes and let them take what they pass: fills the position, `there` and the last step's
    flags."""
    obstacle, contact, points = w.obstacle, w.contact, w.points
    xs, zs, from_x, from_z, cell_x, cell_z = s.x, s.z, s.from_x, s.from_z, s.cell_x, s.cell_z
    there, end, buff_left, flash_wait, fresh = s.there, s.end, s.buff_left, s.flash_wait, s.fresh
    terminated, took_treasures, took_buff = s.terminated, s.took_treasures, s.took_buff
    used_flash, hit_wall = s.used_flash, s.hit_wall
    for e in range(len(actions)):
        if fresh[e]:
            continue
        buffed = buff_left[e] > 0  # a buff taken in this step speeds up the next one: choice
        direction = actions[e] % DIRECTIONS
        flash = actions[e] >= DIRECTIONS and flash_wait[e] == 0  # an illegal flash is a walk
        x, z, cx, cz = xs[e], zs[e], cell_x[e] + VIEW, cell_z[e] + VIEW  # cells in padded coordinates
        from_x[e], from_z[e] = x, z
        treasures, buff, at_end = 0, False, False
        if flash:
            new_x, new_z = x + FLASH_MOVE[direction, 0], z + FLASH_MOVE[direction, 1]
            new_cx, new_cz = _cell(new_x) + VIEW, _cell(new_z) + VIEW
            if obstacle[new_cz, new_cx]:
                x, z, cx, cz = new_x, new_z, new_cx, new_cz
            # a flash that stays where it is looks around there too: choice
            if contact[cz, cx]:
                treasures, buff, at_end = _take(there, e, end[e], contact[cz, cx], points, x, z)
        else:
            move_x, move_z = FRAME_MOVE[int(buffed), direction, 0], FRAME_MOVE[int(buffed), direction, 1]
            for _ in range(FRAMES_PER_STEP):
                new_x, new_z = x + move_x, z + move_z
                new_cx, new_cz = _cell(new_x) + VIEW, _cell(new_z) + VIEW
                if obstacle[new_cz, new_cx]:
                    x, z, cx, cz = new_x, new_z, new_cx, new_cz
                elif obstacle[cz, new_cx]:
                    x, cx = new_x, new_cx
                elif obstacle[new_cz, cx]:
                    z, cz = new_z, new_cz
                if contact[cz, cx]:
                    n, b, at_end = _take(there, e, end[e], contact[cz, cx], points, x, z)
                    treasures += n
                    buff |= b
                    if at_end:
                        break
        moved_x, moved_z = x - from_x[e], z - from_z[e]
        least = FLASH_HIT if flash else BUFF_HIT if buffed else WALK_HIT
        xs[e], zs[e], cell_x[e], cell_z[e] = x, z, cx - VIEW, cz - VIEW
        took_treasures[e], took_buff[e], used_flash[e], terminated[e] = treasures, buff, flash, at_end
        # a step cut short by the end is no wall hit: choice
        hit_wall[e] = not at_end and moved_x * moved_x + moved_z * moved_z < least * least


@jit_helper
def _count(s: State) -> None:
    """Carry the last step's flags into counters, timers, memory map and score."""
    fresh, terminated, truncated, steps, max_step = s.fresh, s.terminated, s.truncated, s.steps, s.max_step
    treasures, buffs, flashes, walls = s.treasures, s.buffs, s.flashes, s.walls
    took_treasures, took_buff, used_flash, hit_wall = s.took_treasures, s.took_buff, s.used_flash, s.hit_wall
    flash_wait, buff_left, buff_wait, there = s.flash_wait, s.buff_left, s.buff_wait, s.there
    memory, cell_x, cell_z, score, reward = s.memory, s.cell_x, s.cell_z, s.score, s.reward
    for e in range(len(fresh)):
        if fresh[e]:
            continue
        steps[e] += 1
        treasures[e] += took_treasures[e]
        buffs[e] += took_buff[e]
        flashes[e] += used_flash[e]
        walls[e] += hit_wall[e]

        # one visit a step, where it ends, also when standing: choice
        row, column = cell_z[e] + VIEW, cell_x[e] + VIEW
        memory[e, row, column] = min(np.int64(memory[e, row, column]) + VISIT, FULL)

        # timers: one that was set in this step starts to run with the next
        flash_wait[e] = FLASH_COOLDOWN if used_flash[e] else max(flash_wait[e] - 1, 0)
        if took_buff[e]:
            buff_left[e], buff_wait[e] = BUFF_STEPS, BUFF_RETURN
        else:
            buff_left[e] = max(buff_left[e] - 1, 0)
            if buff_wait[e] > 0:
                buff_wait[e] -= 1
                there[e, 0] = buff_wait[e] == 0

        truncated[e] = not terminated[e] and steps[e] >= max_step[e]
        new_score = 0.0 if truncated[e] else TREASURE_SCORE * treasures[e]
        if terminated[e]:
            new_score += END_SCORE + STEP_SCORE * (max_step[e] - steps[e])
        reward[e] = new_score - score[e]
        score[e] = new_score


@jit
def step(s: State, w: World, episodes: Episodes, actions: NDArray[np.int64]) -> None:
    """Advance E environments by one action each (i64 [E], 0..15). Where an episode is over the action is
    ignored and the next episode begins: reward 0, nothing over, `fresh`."""
    terminated, truncated, fresh = s.terminated, s.truncated, s.fresh
    for e in range(len(actions)):
        fresh[e] = terminated[e] or truncated[e]
    reset(s, w, episodes, fresh)
    _move(s, w, actions)
    _count(s)
