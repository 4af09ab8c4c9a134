"""Pictures: what is where in them, both render modes, recorded episodes and files."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env
from numpy.typing import NDArray
from PIL import Image

import realm  # noqa: F401  (registers Realm-v0)
from realm.env import map as maps
from realm.env.draw import ansi, draw, frames, moment, pen, record, to_pixel, write_gif, write_png
from realm.env.realm_env import RealmEnv, RealmVectorEnv

CONF = {"treasure_id": [3, 5, 7], "max_step": 40}
EAST, NORTH, FLASH = 0, 2, 8


def pixel(picture: NDArray[np.uint8], x: float, z: float, right: int = 0, down: int = 0) -> tuple[int, ...]:
    """The colour at a place of the world, some pixels off."""
    column, row = to_pixel(x, z)
    return tuple(int(v) for v in picture[math.floor(row) + down, math.floor(column) + right])


def started(**conf: Any) -> RealmEnv:
    env = RealmEnv(usr_conf={**CONF, **conf}, observation="vector")
    env.reset(seed=0)
    return env


# ---- the map ----


@pytest.mark.parametrize("map_", [maps.default(), maps.generate(4)], ids=["default", "generated"])
def test_every_cell_is_where_it_belongs_with_north_up(map_: maps.Map) -> None:
    picture = draw(map_)
    assert picture.shape == (pen.HEIGHT, pen.WIDTH, 3)
    assert picture.dtype == np.uint8
    seen = 0
    for z in range(0, 128, 3):
        for x in range(0, 128, 3):
            if np.abs(map_.cells - (x, z)).max(1).min() > 3:
                road = pixel(picture, (x + 0.5) * 500, (z + 0.5) * 500) == pen.ROAD
                assert road == bool(map_.road[z, x]), (x, z)
                seen += 1
    assert seen > 1000


def test_points_stand_where_they_are() -> None:
    map_ = maps.default()
    picture = draw(map_)
    for i, (x, z) in enumerate(map_.points):
        assert pixel(picture, x, z, -7, 2) == (pen.BUFF if i == 0 else pen.START), i


def test_drawing_is_deterministic_and_leaves_nothing_behind() -> None:
    map_, env = maps.default(), started()
    route = np.array([[*map_.points[2], 0], [*map_.points[5], 0]])
    first = draw(map_, moment(env.state), route)
    draw(map_)
    assert np.array_equal(draw(map_, moment(env.state), route), first)
    assert draw(map_, moment(env.state), route, scale=2).shape == (2 * pen.HEIGHT, 2 * pen.WIDTH, 3)


# ---- an episode ----


def test_the_way_has_arrows_when_it_is_over() -> None:
    env = started(max_step=20)
    x, z = env.map.points[2]
    route = np.array([[x + 700 * k, z, 0] for k in range(pen.ARROW_EVERY + 3)])
    now = moment(env.state)
    before, after = draw(env.map, now, route), draw(env.map, now._replace(truncated=True), route)
    at = x + 700 * (pen.ARROW_EVERY - 0.5), z
    assert pixel(before, *at, 0, 3) == pixel(before, *at, 0, -4)  # beside the line
    assert pixel(after, *at, -1, 2) not in (pen.ROAD, pen.WALL, pen.PAPER)
    assert pixel(after, *at, -3, 4) != pixel(after, *at, 3, 4)  # it points east


def test_a_label_makes_room_for_the_hero() -> None:
    env = started()
    x, z = env.map.points[1]
    now = moment(env.state)
    row = math.floor(to_pixel(x, z)[1])
    above, below = slice(row - 24, row - 13), slice(row + 14, row + 25)
    written = [
        (draw(env.map, now._replace(x=x, z=z + up))[where] == pen.END).all(2).any()
        for up in (0, 1000)
        for where in (above, below)
    ]
    assert written == [True, False, False, True]


def test_hero_and_points_of_an_episode() -> None:
    env = started()
    for action in (NORTH, NORTH, NORTH, NORTH):
        env.step(action)  # type: ignore[arg-type]
    now = moment(env.state)
    assert (now.x, now.z) == (env.state.x[0], env.state.z[0])
    picture = draw(env.map, now)
    assert pixel(picture, now.x, now.z) == pen.HERO_CORE
    points = env.map.points
    assert pixel(picture, *points[2], -7, 2) == pen.START
    assert pixel(picture, *points[1], -7, 2) == pen.END
    assert pixel(picture, *points[0], -7, 2) == pen.BUFF
    for i in (3, 5, 7):
        assert pixel(picture, *points[i], -6, 3) == pen.GOLD
    # points without a part in the episode are small and dark
    assert max(pixel(picture, *points[9], -5, 1)) < max(pen.ROAD)


def test_treasures_that_are_there_taken_and_missed() -> None:
    now = moment(started().state)
    there = tuple(there and i != 3 for i, there in enumerate(now.there))
    before, after = now._replace(there=there), now._replace(there=there, truncated=True)
    x3, x5 = maps.default().points[3], maps.default().points[5]
    picture, end = draw(maps.default(), before), draw(maps.default(), after)
    assert pixel(picture, *x5, -6, 3) == pen.GOLD
    assert pixel(end, *x5, -6, 3) == pen.MISSED_DARK
    for one in (picture, end):
        assert max(pixel(one, *x3, -6, 3)) < max(pen.ROAD)  # hollow
    for one in (now, before, after):
        assert draw(maps.default(), one).shape == picture.shape
    assert not np.array_equal(draw(maps.default(), before._replace(flash_wait=100))[:64], picture[:64])
    assert not np.array_equal(draw(maps.default(), before._replace(buff_left=20, buff_wait=400))[:64], picture[:64])


def test_route_and_flashes() -> None:
    """A way east, a flash north, a flash that went nowhere, and on to the west."""
    map_, now = maps.default(), moment(started().state)
    at = np.array([[20_000, 20_000], [24_000, 20_000], [24_000, 28_000], [24_000, 28_000], [15_000, 28_000]])
    route = np.column_stack([at, [0, 0, 1, 1, 0]]).astype(float)
    plain, drawn = draw(map_, now), draw(map_, now, route)
    changed = (plain != drawn).any(2)
    column, row = map(round, to_pixel(now.x, now.z))
    changed[row - 18 : row + 18, column - 18 : column + 18] = False  # the hero looks along the route
    rows, columns = np.nonzero(changed)
    assert np.allclose((columns.min(), columns.max()), (to_pixel(15_000, 0)[0], to_pixel(24_000, 0)[0] + 8), atol=3)
    assert np.allclose((rows.min(), rows.max()), (to_pixel(0, 28_000)[1] - 8, to_pixel(0, 20_000)[1] + 8), atol=3)
    for x, z in ((22_000, 20_000), (18_000, 28_000)):  # walked: a whole line, cold colours
        colour = pixel(drawn, x, z)
        assert colour[2] > 200
        assert colour != pen.FLASH
    # flashed: dashes, so the colour is there and between it is not
    column = math.floor(to_pixel(24_000, 0)[0])
    line = drawn[math.ceil(to_pixel(0, 27_000)[1]) : math.floor(to_pixel(0, 21_000)[1]), column]
    lit = (np.abs(line.astype(int) - pen.FLASH).max(1) < 40).mean()
    assert 0.3 < lit < 0.9
    # both ends spark
    for z in (20_000, 28_000):
        assert min(pixel(drawn, 24_000, z)) > 200
        around = [pixel(drawn, 24_000, z, right, down) for right in range(-8, 9) for down in range(-8, 9)]
        assert around.count(pen.FLASH) > 6


def test_new_steps_of_the_route_are_brighter() -> None:
    now = moment(started().state)
    xs = 10_000 + 400 * np.arange(100)
    route = np.column_stack([xs, np.full(100, 5_000), np.zeros(100)]).astype(float)
    picture = draw(maps.default(), now, route)
    assert pixel(picture, xs[10] + 200, 5_000) == pen.OLD_ROUTE
    new = pixel(picture, xs[97] + 200, 5_000)
    assert np.abs(np.array(new) - pen.NEW_ROUTE).max() < 12


def test_text() -> None:
    lines = ansi(maps.default()).splitlines()
    assert [len(line) for line in lines] == [64] * 32
    road = maps.default().road
    for row, column in ((5, 30), (20, 3), (31, 50), (1, 20)):
        z = 4 * (31 - row)
        shares = road[z + 2 : z + 4, 2 * column : 2 * column + 2].mean(), road[z : z + 2, 2 * column :][:, :2].mean()
        want = {(True, True): " ", (True, False): "▄", (False, True): "▀", (False, False): "█"}
        assert lines[row][column] == want[shares[0] >= 0.5, shares[1] >= 0.5]
    cell_x, cell_z = maps.default().cells[9]
    assert lines[31 - cell_z // 4][cell_x // 2] == "9"

    env = started()
    env.step(NORTH)  # type: ignore[arg-type]
    head, *lines = ansi(env.map, moment(env.state)).splitlines()
    assert head == "step 1/40, score 0.0, treasures 0/3, flash ready, buff 0"
    row, column = 31 - int(env.state.cell_z[0]) // 4, int(env.state.cell_x[0]) // 2
    assert lines[row][column] == "@"
    text = "".join(lines)
    assert all(text.count(mark) == 1 for mark in "E3579B@" if mark != "9")
    assert "9" not in text


# ---- render modes ----


def test_the_environment_draws_its_route() -> None:
    env = RealmEnv(usr_conf=CONF, observation="vector", render_mode="rgb_array")
    with pytest.raises(ResetNeeded):
        env.render()
    for _ in range(2):
        env.reset(seed=0)
        way = [(env.state.x[0], env.state.z[0], 0.0)]
        for action in (NORTH, FLASH + NORTH, EAST):
            env.step(action)  # type: ignore[arg-type]
            way.append((env.state.x[0], env.state.z[0], float(env.state.used_flash[0])))
        picture = env.render()
        assert np.array_equal(picture, draw(env.map, moment(env.state), np.array(way)))
        assert not np.array_equal(picture, draw(env.map, moment(env.state)))


def test_without_a_render_mode_nothing_is_kept_and_render_warns() -> None:
    env, envs = started(), RealmVectorEnv(2)
    envs.reset()
    env.step(0)  # type: ignore[arg-type]
    envs.step(np.zeros(2, np.int64))
    assert env._routes == envs._routes == []
    for one in (env, envs):
        with pytest.warns(UserWarning, match="render needs a render_mode"):
            assert one.render() is None


def test_vector_environment_draws_as_single_ones_do() -> None:
    """Over autoresets, and after a reset of some."""
    make: dict[str, Any] = {"num_envs": 2, "usr_conf": {**CONF, "max_step": 6}, "render_mode": "rgb_array"}
    ours = gymnasium.make_vec("Realm-v0", **make)
    stock = gymnasium.make_vec("Realm-v0", vectorization_mode="sync", **make)
    rng = np.random.default_rng(0)
    for envs in (ours, stock):
        envs.reset(seed=3)
    for step in range(10):
        actions = rng.integers(16, size=2)
        for envs in (ours, stock):
            if step == 4:
                envs.reset(options={"reset_mask": np.array([False, True])})
            envs.step(actions)
        if step % 2:
            pictures, want = ours.render(), stock.render()
            assert isinstance(pictures, tuple)
            assert all(np.array_equal(a, b) for a, b in zip(pictures, want, strict=True))


@pytest.mark.parametrize("mode", [None, "rgb_array", "ansi"])
def test_gymnasium_is_content(mode: str | None) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gymnasium.make("Realm-v0", render_mode=mode).unwrapped)
        if mode:
            env = gymnasium.make("Realm-v0", render_mode=f"{mode}_list")
            env.reset(seed=0)
            for action in range(3):
                env.step(action)
            assert len(env.render()) == 4  # type: ignore[arg-type]


# ---- episodes and files ----


def test_record_plays_until_the_episode_or_its_actions_end() -> None:
    env, rng = started(), np.random.default_rng(0)
    actions = [int(rng.integers(16)) for _ in range(40)]
    whole = record(env, [*actions, 0, 0])
    assert whole.actions == actions
    assert len(whole.moments) == len(whole.route) == 41
    assert whole.moments[-1].truncated
    assert whole.route[:, 2].sum() == env.state.flashes[0]
    assert np.array_equal(whole.route[:, 0], [one.x for one in whole.moments])
    assert len(record(env, actions[:5]).actions) == 5


def test_frames_and_files(tmp_path: Path) -> None:
    recording = record(started(), [NORTH] * 5 + [FLASH + EAST] + [EAST] * 34)
    pictures = frames(recording, most=12)
    assert 10 <= len(pictures) <= 14
    assert np.array_equal(pictures[0], draw(recording.map, recording.moments[0], recording.route[:1]))
    assert np.array_equal(pictures[-1], draw(recording.map, recording.moments[-1], recording.route))

    write_gif(pictures, tmp_path / "a.gif")
    with Image.open(tmp_path / "a.gif") as file:
        assert file.format == "GIF"
        assert file.n_frames == len(pictures)  # type: ignore[attr-defined]
        for k in (0, 5, len(pictures) - 1):
            file.seek(k)
            shown = np.asarray(file.convert("RGB")).astype(int)
            assert np.abs(shown - pictures[k]).mean() < 2
        assert file.info["duration"] == 3000
    assert (tmp_path / "a.gif").stat().st_size < 400_000

    write_png(pictures[3], tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as file:
        assert np.array_equal(np.asarray(file), pictures[3])
