"""The oracle: against exhaustive search, against enumeration, and against whoever plays."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from realm.env import map as maps
from realm.env import oracle as oracles
from realm.env import physics
from realm.env.games import Games
from realm.env.map import CELL, EXTENT, Map, MapError
from realm.env.oracle import Oracle, beam, distances, fields, lattice, lengths, solving
from realm.env.oracle.beam import STATE_NAMES, _copy_rows, _make_state

TREASURES = (3, 7, 11, 14)


@pytest.fixture(scope="module")
def oracle() -> Oracle:
    return oracles.make_oracle(maps.default(), treasures=TREASURES, fine=lattice.FINE)


@pytest.fixture(scope="module")
def generated() -> Oracle:
    return oracles.make_oracle(maps.generate(1), treasures=(7, 12), fine=lattice.FINE)


def subsets(ids: tuple[int, ...]) -> list[tuple[int, ...]]:
    return [part for n in range(len(ids) + 1) for part in itertools.combinations(ids, n)]


# ---- the lattice never overestimates a walk ----


@pytest.mark.parametrize("fine", [lattice.FINE, lattice.FINEST])
@pytest.mark.parametrize("buffed", [False, True])
def test_no_walk_is_shorter_than_the_lattice_says(buffed: bool, fine: int) -> None:
    games = Games(200, {"treasure_num": 0}, map="default")
    games.seed([0])
    games.reset()
    frame = physics.BUFF_FRAME if buffed else physics.WALK_FRAME
    grid = lattice.make_lattice(games.map, 1, True, frame, fine)
    cost = np.empty(len(grid.edges), np.int32)
    begin = lattice.nodes_at(*games.map.points[2], fine=fine)
    distances.walks_from(grid, distances.make_queues(grid.side + 1), begin, distances.EVERYWHERE, cost)
    rng, state = np.random.default_rng(1), games.state
    direction = rng.integers(8, size=200)
    for t in range(1, 301):
        # mostly straight on or half a turn, so that they get around corners
        turn = rng.integers(-1, 2, size=200) * (rng.random(200) < 0.4)
        direction = np.where(state.hit_wall & (rng.random(200) < 0.5), rng.integers(8, size=200), direction + turn) % 8
        state.buff_left[:] = 9 if buffed else 0
        state.there[:, 0] = 0
        games.step(direction.astype(np.int64))
        going = ~(state.terminated | state.fresh)
        x, z = ((at * fine / CELL).astype(int) for at in (state.x, state.z))
        corner = z * (grid.side + 1) + x
        least = np.min([cost[corner + n] for n in (0, 1, grid.side + 1, grid.side + 2)], 0)  # of a square's corners
        assert (least[going] <= t * 3 * frame * lattice.PER_UNIT + 1e-6).all()
    assert least.max() > 60 * lattice.STEP


def shifted(to: NDArray[np.int32], source: NDArray[np.int32], x: int, z: int) -> None:
    """to[i + z, j + x] = min(to[i + z, j + x], source[i, j]) for all i, j"""
    size = len(to)
    fz, fx, tz, tx = max(0, -z), max(0, -x), size - max(0, z), size - max(0, x)
    part = to[fz + z : tz + z, fx + x : tx + x]
    np.minimum(part, source[fz:tz, fx:tx], out=part)


def lowered(grid: lattice.Lattice, cost: NDArray[np.int32]) -> NDArray[np.int32]:
    """Distances from the nodes that `cost` knows, without any order or queue: over all edges until nothing changes."""
    nodes = grid.side + 1
    room = slice(48 * grid.side // 128, 78 * grid.side // 128)  # of `small_map`
    edges = grid.edges.reshape(nodes, nodes)[room, room]
    every = cost.reshape(nodes, nodes).copy()
    straight = lattice.STRAIGHT * lattice.SQUARES // grid.side
    while True:
        before = every.copy()
        for d, (x, z) in enumerate(((1, 0), (1, 1), (0, 1), (-1, 1), (-1, 0), (-1, -1), (0, -1), (1, -1))):
            length = straight * 14_142 // 10_000 if d & 1 else straight
            part = every[room, room]
            shifted(part, np.where(edges >> d & 1, part + length, lattice.FAR).astype(np.int32), x, z)
        if (every == before).all():
            return every.ravel()


def flashed(grid: lattice.Lattice, before: NDArray[np.int32]) -> NDArray[np.int32]:
    """What one flash from anywhere leads to, square by square."""
    side, stand = grid.side, grid.stand.reshape(grid.side, grid.side) == 1
    table, after = before.reshape(side + 1, side + 1), np.full((side + 1, side + 1), lattice.FAR, np.int32)
    corners = [np.s_[z : side + z, x : side + x] for z in (0, 1) for x in (0, 1)]
    nearest = np.min([table[corner] for corner in corners], axis=0)
    move = physics.FLASH_MOVE * side / EXTENT
    for d in range(8):
        for x in {int(np.floor(move[d, 0] + 1e-9)), int(np.ceil(move[d, 0] - 1e-9))}:
            for z in {int(np.floor(move[d, 1] + 1e-9)), int(np.ceil(move[d, 1] - 1e-9))}:
                for corner in corners:
                    source = np.where(stand, (nearest if d & 1 else table[corner]) + lattice.STEP, lattice.FAR)
                    landed = np.full((side, side), lattice.FAR, np.int32)
                    shifted(landed, source.astype(np.int32), x, z)
                    np.minimum(after[corner], np.where(stand, landed, lattice.FAR), out=after[corner])
    return after.ravel()


@pytest.mark.slow
@pytest.mark.parametrize("fine", [lattice.FINE, lattice.FINEST])
def test_distances_are_the_shortest(fine: int) -> None:
    map_ = next(map_ for seed in itertools.count() if (map_ := small_map(seed)))
    grid = lattice.make_lattice(map_, 1, True, physics.WALK_FRAME, fine)
    cost, landed = np.empty((2, len(grid.edges)), np.int32), np.empty((2, lattice.END_BIT + 1), np.int32)
    queues = distances.make_queues(grid.side + 1)
    for source in np.flatnonzero(grid.edges)[[3000, -1000]].astype(np.int32):
        seeds = np.full(len(grid.edges), lattice.FAR, np.int32)
        seeds[source] = 0
        walks = lowered(grid, seeds)
        flashes = flashed(grid, walks)
        for slack in (0, lattice.SLACK):
            distances.distances_from(grid, queues, np.array([source]), True, slack, distances.EVERYWHERE, cost, landed)
            assert (cost[0] == walks).all()
            truth = lowered(grid, np.minimum(flashes, np.minimum(walks + slack, lattice.FAR)))
            assert (cost[1] == truth).all()
            # asked for a few nodes only, it may stop early
            near = np.flatnonzero(walks < 20 * lattice.STEP)[::97].astype(np.int32)
            distances.distances_from(grid, queues, np.array([source]), True, slack, near, cost, landed)
            assert (cost[0, near] == walks[near]).all()
            assert (cost[1, near] == truth[near]).all()
            assert (cost[0] != walks).any()


# ---- exhaustive search ----


def small_map(seed: int) -> Map | None:
    """A walled room of 26 x 26 cells with a few obstacles; start 2, end 1, treasure 3 and the buff near each other,
    the other points along its edge."""
    rng = np.random.default_rng(seed)
    road = np.zeros((128, 128), np.uint8)
    road[50:76, 50:76] = 1
    for _ in range(4):
        z, x = rng.integers(52, 73, 2)
        road[z : z + rng.integers(1, 6), x : x + rng.integers(1, 6)] = 0
    edge = [(50 + 2 * i, 50) for i in range(12)]
    cells = np.array([(0, 0)] * 4 + edge)
    spread = 3 if seed % 4 == 3 else 7  # every fourth with discs that overlap
    cells[:4] = rng.integers(60 - spread, 64 + spread, (4, 2))
    points = (cells + 0.5) * CELL
    points[:4] += rng.uniform(-249, 249, (4, 2)).round()
    road[50:76, 50] = 1
    try:
        return Map(road, points)
    except MapError:
        return None


def least_steps(map_: Map, treasure: int | None, most: int) -> int:
    """The least steps of an episode that takes the treasure (or none) and reaches the end: every play is tried. `most`:
    steps in which one is known to get there."""
    world = physics.make_world(map_)
    games = Games(1, {"start": 2, "end": 1}, [[treasure] if treasure else []], map_)
    games.reset()
    now = _make_state(1)
    _copy_rows(games.state, now, np.zeros(1, np.int64), STATE_NAMES)
    end = map_.points[1]
    for t in range(1, most):
        count = len(now.x)
        then = _make_state(16 * count)
        _copy_rows(now, then, np.repeat(np.arange(count), 16), STATE_NAMES)
        physics.step(then, world, games.episodes, np.tile(np.arange(16), count))
        missed = then.there[:, treasure] == 1 if treasure else np.zeros(16 * count, bool)
        if (then.terminated & ~missed).any():
            return t
        # whoever cannot be at the end in time, flying with the buff and flashing, is left out
        gap = np.hypot(then.x - end[0], then.z - end[1]) - 1000 - 8001 * (then.flash_wait == 0)
        late = t + np.ceil(gap / 979) >= most
        keep = np.flatnonzero(~then.terminated & ~late)
        alike = np.stack(
            [then.x.round(6), then.z.round(6), missed, then.there[:, 0], then.buff_left, then.flash_wait], axis=1
        )[keep]
        keep = keep[np.unique(alike, axis=0, return_index=True)[1]]
        now = _make_state(max(len(keep), 1))
        _copy_rows(then, now, keep, STATE_NAMES)
        if len(keep) == 0:
            break
    return most


@pytest.mark.slow
def test_bound_and_play_against_every_possible_play() -> None:
    played = exact = tight = 0
    for seed in itertools.count():
        map_ = small_map(seed)
        if map_ is None:
            continue
        oracle = oracles.make_oracle(map_, treasures=(3,), fine=(lattice.FINEST, lattice.FINE)[played % 4 > 1])
        for treasures in ((), (3,)):
            found = oracles.solve(oracle, treasures, width=300)
            if found.run.steps > 8 or len(found.bound.treasures) < len(treasures):
                continue
            truth = least_steps(map_, treasures[0] if treasures else None, found.run.steps)
            assert found.bound.steps <= truth <= found.run.steps, (seed, treasures)
            played, exact, tight = played + 1, exact + (found.run.steps == truth), tight + (found.bound.steps == truth)
        if played >= 4:
            break
    assert exact >= played - 1
    assert tight >= played / 2


# ---- enumeration ----


def brute_steps(oracle: Oracle, treasures: tuple[int, ...]) -> int:
    """Least steps by trying every order, every place for one buff or none, every leg for one flash or none."""
    buff = len(oracle.treasures)
    blocks = [slice(oracle.block[k], oracle.block[k + 1]) for k in range(buff + 1)]
    best = lattice.FAR
    own = [oracle.treasures.index(i) for i in treasures]
    orders = [list(order) for order in itertools.permutations(own)]
    orders += [[*order[:b], buff, *order[b:]] for order in orders for b in range(len(order) + 1)]
    for order in orders:
        for flash in range(-1, len(order) + 1):
            here = [slice(-1, None), *(blocks[k] for k in order)]
            # way[m] leads from here[m] to here[m + 1], the last one to the end; [before any buff, after it]
            way = [
                oracle.leg[:, int(flash == m), here[m + 1], here[m]].astype(np.int64)
                if m < len(order)
                else oracle.last[:, int(flash == m), None, here[m]].astype(np.int64)
                for m in range(len(order) + 1)
            ]
            begin = order.index(buff) + 1 if buff in order else len(way)
            to_buff = np.zeros(1, np.int64)
            for m in range(begin):
                to_buff = (way[m][0] + to_buff).min(1)
            if begin == len(way):
                best = min(best, int(to_buff[0]))
                continue
            for c, before in enumerate(to_buff):
                # on from one contact of the buff; whoever leaves a later one in time still has it
                since = np.full(len(to_buff), lattice.FAR, dtype=np.int64)
                since[c] = 0
                for m in range(begin, len(way)):
                    since = (np.where(since < lengths.HASTE, way[m][1], way[m][0]) + since).min(1)
                total = int(since[0])
                total = total - 20 * lattice.STEP if total >= 70 * lattice.STEP else total * 5 // 7
                best = min(best, int(before) + total)
    return -(-best // lattice.STEP)


@pytest.mark.slow
def test_table_equals_enumeration(oracle: Oracle) -> None:
    for part in subsets(TREASURES)[:-1]:  # all four have as many ways as the others together
        assert oracle.steps[oracles.set_index(oracle, part)] == brute_steps(oracle, part)


def brute_rest(oracle: Oracle, tail: list[int]) -> NDArray[np.int64]:
    """Length from each contact of the buff, just taken, over the blocks `tail` in order to the end, without a flash."""
    buff = len(oracle.treasures)
    blocks = [slice(oracle.block[k], oracle.block[k + 1]) for k in range(buff + 1)]
    count = blocks[buff].stop - blocks[buff].start
    rest = np.empty(count, np.int64)
    after = brute_rest(oracle, tail[tail.index(buff) + 1 :]) if buff in tail else None
    for c in range(count):
        since, here = np.full(count, lattice.FAR, dtype=np.int64), buff
        since[c] = 0
        for k in tail[: tail.index(buff) + 1 if buff in tail else None]:
            slow, fast = oracle.leg[:, 0, blocks[k], blocks[here]].astype(np.int64)
            since, here = (np.where(since < lengths.HASTE, fast, slow) + since).min(1), k
        slow, fast = oracle.last[:, 0, blocks[here]].astype(np.int64)
        onward = np.where(since < lengths.HASTE, fast, slow) if after is None else after
        rest[c] = (since + onward).min()
    return np.where(rest >= 70 * lattice.STEP, rest - 20 * lattice.STEP, rest * 5 // 7)


def test_two_buffs_equal_enumeration(oracle: Oracle) -> None:
    buff = len(oracle.treasures)
    value = np.full((1, 3, 2**buff, oracle.leg.shape[-1]), lattice.FAR, np.int32)
    lengths.fill_all(oracle.leg[:, :1].copy(), oracle.last[:, :1].copy(), oracle.block, value)
    for part in subsets((0, 1, 2)):
        truth = lattice.FAR
        for order in set(itertools.permutations((*part, buff, buff))):
            first = order.index(buff)
            rest = brute_rest(oracle, list(order[first + 1 :]))
            for k in reversed(range(first + 1)):
                here = slice(oracle.block[order[k]], oracle.block[order[k] + 1])
                before = slice(oracle.block[order[k - 1]], oracle.block[order[k - 1] + 1]) if k else slice(-1, None)
                rest = (oracle.leg[0, 0, here, before].astype(np.int64) + rest[:, None]).min(0)
            truth = min(truth, int(rest[0]))
        assert value[0, 2, sum(1 << k for k in part), -1] == truth


def test_plans_are_the_best_orders(oracle: Oracle) -> None:
    plans = oracles.plans(oracle, TREASURES, 5)
    assert len({plan.order for plan in plans}) == len(plans) == 10
    assert [plan.length for plan in plans] == sorted(plan.length for plan in plans)
    assert -(-plans[0].length // lattice.STEP) == oracle.steps[-1]
    assert all(sorted(i for i in plan.order if i) == sorted(TREASURES) for plan in plans)


def test_more_treasures_never_take_less(oracle: Oracle) -> None:
    for part in range(16):
        for k in range(4):
            assert oracle.steps[part | 1 << k] >= oracle.steps[part]


def test_treasures_are_left_out_where_that_pays(oracle: Oracle) -> None:
    whole = oracles.bound(oracle, TREASURES)
    assert whole.treasures == TREASURES
    for max_step in (whole.steps, whole.steps - 1, 150, 100, int(oracle.steps[0])):
        found = oracles.bound(oracle, TREASURES, max_step)
        feasible = [
            (150 + 0.2 * (max_step - int(steps)) + 100 * len(part), part)
            for part in subsets(TREASURES)
            if (steps := oracle.steps[oracles.set_index(oracle, part)]) <= max_step
        ]
        assert found.score == pytest.approx(max(feasible)[0])
        assert found.steps <= max_step
    nothing = oracles.bound(oracle, TREASURES, int(oracle.steps[0]) - 1)
    assert (nothing.score, nothing.treasures) == (0, ())
    with pytest.raises(ValueError, match="2000"):
        oracles.bound(oracle, TREASURES, 2001)
    with pytest.raises(ValueError, match="treasure 5"):
        oracles.bound(oracle, (5,))


def test_bounds_of_all_sets_at_once(oracle: Oracle) -> None:
    score, take = oracles.bounds(oracle)
    for part in subsets(TREASURES):
        one = oracles.bound(oracle, part)
        index = oracles.set_index(oracle, part)
        assert one.score == score[index]
        assert one.treasures == oracles.set_ids(oracle, int(take[index]))


# ---- the play ----


@pytest.mark.parametrize("treasures", [(), (3, 7), TREASURES])
def test_played_plan_is_real_and_below_the_bound(oracle: Oracle, treasures: tuple[int, ...]) -> None:
    found = oracles.solve(oracle, treasures, width=200)
    run = found.run
    assert found.bound.steps <= run.steps <= found.bound.steps * 1.08 + 2
    assert run.score <= found.bound.score
    # once more, with a fresh environment
    games = Games(1, {"start": 2, "end": 1}, [list(treasures)], oracle.map)
    games.reset()
    total = 0.0
    for action in run.actions:
        games.step(np.array([action]))
        total += games.state.reward[0]
    assert bool(games.state.terminated[0])
    assert games.state.steps[0] == run.steps == len(run.actions) == len(run.route) - 1
    assert total == pytest.approx(run.score)
    assert sorted(i for i in run.taken if i) == sorted(treasures)
    assert games.state.flashes[0] == len(run.flashes)
    assert all(run.actions[t] >= physics.DIRECTIONS for t in run.flashes)


def test_play_of_a_generated_map(generated: Oracle) -> None:
    found = oracles.solve(generated, (7, 12), width=200)
    assert found.bound.steps <= found.run.steps <= found.bound.steps * 1.06 + 2


def test_play_in_too_little_time(oracle: Oracle) -> None:
    steps = int(oracle.steps[-1])
    found = oracles.solve(oracle, TREASURES, max_step=steps - 1, width=200)
    assert len(found.bound.treasures) < len(TREASURES)
    assert 0 < found.run.score <= found.bound.score
    found = oracles.solve(oracle, TREASURES, max_step=20)
    assert (found.plan, found.run.steps, found.run.score, found.bound.score) == (None, 0, 0, 0)


def test_few_sets_are_tried_when_time_is_short(oracle: Oracle, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def nothing(*arguments: object) -> None:
        tried.append(arguments)

    monkeypatch.setattr(beam, "play", nothing)
    found = oracles.solve(oracle, TREASURES)
    assert (found.plan, found.run.score) == (None, 0)
    assert 0 < len(tried) <= solving.SETS * len(solving.LONGER) + 1


# ---- whoever plays ----


def greedy_actions(games: Games, rng: np.random.Generator) -> NDArray[np.int64]:
    """Towards the nearest treasure left, or the end, down the distance field; sometimes a flash or anything."""
    s, distance = games.state, games.world.distance
    actions = np.empty(len(s.x), np.int64)
    for e in range(len(actions)):
        goals = np.flatnonzero(s.there[e, 1:]) + 1
        x, z = int(s.cell_x[e]), int(s.cell_z[e])
        goal = min(goals, key=lambda i: distance[i, z, x]) if len(goals) else s.end[e]
        best, least = 0, 10**9
        for d, (dx, dz) in enumerate(((1, 0), (1, 1), (0, 1), (-1, 1), (-1, 0), (-1, -1), (0, -1), (1, -1))):
            value = 2 * distance[goal, min(max(z + dz, 0), 127), min(max(x + dx, 0), 127)] - (d & 1)
            if value < least:
                best, least = d, value
        actions[e] = best
    any_way = rng.random(len(actions)) < 0.15
    return np.where(any_way, rng.integers(16, size=len(actions)), actions)


def test_nobody_beats_the_bound(oracle: Oracle) -> None:
    score, _ = oracles.bounds(oracle)
    layouts = [list(part) for part in subsets(TREASURES)]
    rng = np.random.default_rng(0)
    for kind in ("greedy", "random"):
        games = Games(64, layouts=layouts, map=oracle.map)
        games.reset()
        s = games.state
        done = np.zeros(64, bool)
        for _ in range(600 if kind == "greedy" else 300):
            games.step(greedy_actions(games, rng) if kind == "greedy" else rng.integers(16, size=64))
            for e in np.flatnonzero((s.terminated | s.truncated) & ~done):
                done[e] = True
                assert s.score[e] <= score[oracles.set_index(oracle, layouts[s.layout[e]])]
        assert kind == "random" or done.sum() >= 20


def test_cache_gives_the_same(tmp_path: Path) -> None:
    made = [oracles.make_oracle(maps.default(), treasures=(15,), cache=tmp_path, fine=lattice.FINE) for _ in range(2)]
    assert len(list(tmp_path.iterdir())) == 1
    assert all(np.array_equal(a, b) for a, b in zip(made[0][5:], made[1][5:], strict=True))


@pytest.mark.slow
def test_damaged_files_of_the_cache_are_made_anew(tmp_path: Path) -> None:
    def made() -> tuple[Oracle, oracles.Played]:
        one = oracles.make_oracle(maps.default(), treasures=(15,), cache=tmp_path, fine=lattice.FINE)
        return one, oracles.play_sets(one, [1], tmp_path)

    first = made()
    files = sorted(tmp_path.iterdir())
    assert len(files) == 2
    for damage in (lambda text: text[: len(text) // 2], lambda text: b"\0" * len(text)):
        for file in files:
            file.write_bytes(damage(file.read_bytes()))
        again = made()
        assert np.array_equal(again[0].steps, first[0].steps)
        assert again[1].steps.tolist() == first[1].steps.tolist()
        assert sorted(tmp_path.iterdir()) == files


def test_a_buff_taken_before_its_turn_does_not_lead_astray() -> None:
    # the way to 7 passes the buff, so that states outside of 7's disc would look better than those inside
    order = (9, 5, 11, 3, 8, 10, 7, 0, 6, 4)
    treasures = sorted(set(order) - {0})
    ready = fields.make_player(maps.generate(2), 2, 1, treasures)
    played = beam.play(ready, fields.make_ways(ready, [order], 1), treasures, 2000, 30)
    assert played is not None
    assert len(played[1]) <= 400


def test_many_sets_are_played_once(oracle: Oracle, tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    sets = [15, 0, 5, 15]
    first = oracles.play_sets(oracle, sets, tmp_path, report=lambda done, of: told.append((done, of)))
    assert told == [(1, 3), (2, 3), (3, 3)]
    for n, part in enumerate(sets):
        run = oracles.solve(oracle, oracles.set_ids(oracle, part)).run
        assert (first.steps[n], first.score[n]) == (run.steps, run.score)
        assert (first.treasures[n], first.buffs[n]) == (part.bit_count(), run.taken.count(0))
    again = oracles.play_sets(oracle, [5, 3], tmp_path, report=lambda done, of: told.append((done, of)))
    assert told[3:] == [(1, 1)]
    assert again.steps[0] == first.steps[2]
    assert again.cpu_s[0] == first.cpu_s[2]


# ---- plays that a former bound forbade ----


def test_a_buff_entered_by_flash_counts_from_the_landing() -> None:
    """A straight corridor, the buff a flash away from the start."""
    road = np.zeros((128, 128), np.uint8)
    road[59:62, 2:90] = 1
    points = np.array([[500 * i - 250, 30250] for i in range(16)], float)
    points[:3] = [(18250, 30250), (38810, 30250), (10250, 30250)]
    oracle = oracles.make_oracle(Map(road, points), treasures=())
    run = oracles.replay(oracle, (), 2000, np.array([8] + [0] * 40))
    assert (run.taken, run.steps) == ((0,), 21)
    limit = oracles.bound(oracle, ())
    assert limit.steps <= run.steps
    assert limit.score >= run.score


@pytest.mark.slow
def test_what_only_a_second_flash_reaches_is_in_the_bound() -> None:
    """The end bars a junction: two flashes, 607 steps apart, take all treasures."""
    road = np.zeros((128, 128), np.uint8)
    road[59:61, 30:100] = road[59:100, 63:65] = 1
    points = np.array([[500 * (i + 26.5), 30250] for i in range(16)], float)
    points[:7] = [
        (16250, 30250), (32000, 30000), (26343, 30000), (32000, 37000), (32000, 40000), (37000, 30000), (40000, 30000),
    ]  # fmt: skip
    oracle = oracles.make_oracle(Map(road, points), treasures=(3, 4, 5, 6), fine=lattice.FINE)
    actions = [9] + [2] * 5 + [6] * 5 + [2, 6] * 298 + [15] + [0] * 2 + [4] * 15
    run = oracles.replay(oracle, (3, 4, 5, 6), 2000, np.array(actions))
    assert (sorted(run.taken), run.flashes, run.steps) == ([3, 4, 5, 6], (0, 607), 619)
    limit = oracles.bound(oracle, (3, 4, 5, 6))
    assert limit.score >= run.score
