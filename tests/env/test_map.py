"""Maps: files in the competition's format, every reason to refuse one, the generator."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from realm.env import map as maps
from realm.env.map import Map, MapError
from realm.env.realm_env import RealmEnv


def test_default_map_is_what_its_seed_makes() -> None:
    made, shipped = maps.generate(26), maps.default()
    assert np.array_equal(made.road, shipped.road)
    assert np.array_equal(made.points, shipped.points)


def test_save_and_load_give_the_same_map_back(tmp_path: Path) -> None:
    map_ = maps.generate(7)
    points = map_.points.copy()
    points[3] += [0.1, -17.25]
    map_ = Map(map_.road, points)
    maps.save(map_, tmp_path / "a")
    for path in (tmp_path / "a", tmp_path / "a" / "map_1.json"):
        again = maps.load(path)
        assert np.array_equal(again.road, map_.road)
        assert np.allclose(again.points, map_.points, rtol=0, atol=1e-9)
    env = RealmEnv(map=tmp_path / "a")
    env.reset(seed=0)
    assert np.array_equal(env.map.road, map_.road)


@pytest.mark.parametrize("seed", range(12))
def test_generated_maps_have_the_character_asked_for(seed: int) -> None:
    map_ = maps.generate(seed)
    assert np.array_equal(map_.road, maps.generate(seed).road)
    assert 0.2 < map_.road.mean() < 0.32
    assert (map_.distance[0][map_.road == 1] < maps.FAR).all()  # connected
    assert np.abs(map_.cells[0] - 64).max() < 32  # the buff is near the centre
    # every road cell lies in some 4 x 4 block of road
    wide = np.zeros_like(map_.road)
    for z in range(125):
        for x in range(125):
            if map_.road[z : z + 4, x : x + 4].all():
                wide[z : z + 4, x : x + 4] = 1
    assert np.array_equal(wide, map_.road)


def test_distance_is_bfs() -> None:
    map_ = maps.generate(0)
    x, z = map_.cells[5]
    frontier, seen, d = {(x, z)}, {(x, z)}, 0
    while frontier:
        assert all(map_.distance[5, b, a] == d for a, b in frontier)
        around = {(a + i, b + j) for a, b in frontier for i, j in ((1, 0), (-1, 0), (0, 1), (0, -1))}
        frontier = {(a, b) for a, b in around - seen if map_.road[b, a]}
        seen |= frontier
        d += 1
    assert (map_.distance[5] != maps.FAR).sum() == len(seen)


Change = Callable[[dict[str, Any], list[str]], None]


def flags(change: Callable[[dict[str, Any]], object]) -> Change:
    return lambda data, lines: (change(data), None)[1]


def line(i: int, text: str) -> Change:
    return lambda data, lines: lines.__setitem__(i, text)


# a few lines of YAML that would fill any memory if they were written out: each list is ten times the one before
BOMB = ", ".join(["&a0 [1]", *(f"&a{n} [" + f"*a{n - 1}, " * 10 + "]" for n in range(1, 30))])
CASES: list[tuple[Change, str]] = [
    (flags(lambda d: d.update(Width=64)), "Width is 64, it must be 128"),
    (flags(lambda d: d.update(Height=129)), "Height is 129"),
    (flags(lambda d: d.update(CellWidth=250)), "CellWidth is 250"),
    (flags(lambda d: d.pop("Height")), "lacks Height"),
    (flags(lambda d: d.pop("Flags")), "lacks Flags"),
    (flags(lambda d: d["Flags"].pop()), "Flags has 16383 numbers, it must have 16384"),
    (flags(lambda d: d.update(Flags="0101")), "Flags must be a list"),
    (flags(lambda d: d["Flags"].__setitem__(5, 2)), "Flags[5] is 2"),
    (flags(lambda d: d["Flags"].__setitem__(5, None)), "Flags[5] is None"),
    (flags(lambda d: d.update(Flags=[0] * 16384)), "point 0 lies on an obstacle"),
    (line(4, ""), "lacks point 4"),
    (line(4, "3: [0, 0]"), "point 3 is there twice"),
    (line(4, "16: [0, 0]"), "16 is no point"),
    (line(4, "4: [1]"), "point 4 is [1], it must be [x, z]"),
    (line(4, "4: [a, 2]"), "point 4 is"),
    (line(4, "4: [.nan, 2]"), "point 4 at world"),
    (line(4, "4: [90000, 2]"), "lies outside the map"),
    (line(4, "4: [1" + "0" * 400 + ", 2]"), "lies outside the map"),
    (line(4, "4: [-2250, -5250]"), "point 4 lies on an obstacle (cell x 0, z 0)"),
    (line(4, "4: ["), "is not YAML"),
    (line(4, "4: [&a [1, 1], &b [*a, *a], &c [*b, *b], &d [*c, *c], [*d, *d]]"), "it must be [x, z]"),
    (line(4, f"4: {'[' * 2000}"), "far too long or too deep"),
    (line(4, f"4: [1, 2]{' ' * 100_000}"), "too large with"),
    (line(4, "4: 2024-13-45"), "is not YAML"),
    (line(4, "4: !!python/object/apply:os.mkdir [evil]"), "is not YAML"),
    (line(4, "4: [" + BOMB + "]"), "point 4 is [[1], [[1], "),
]


@pytest.mark.parametrize(("change", "words"), CASES, ids=[words for _, words in CASES])
def test_malformed_files_are_refused_in_one_sentence(tmp_path: Path, change: Change, words: str) -> None:
    maps.save(maps.default(), tmp_path)
    data = json.loads((tmp_path / "map_1.json").read_text())
    lines = (tmp_path / "crab.yaml").read_text().splitlines()
    change(data, lines)
    (tmp_path / "map_1.json").write_text(json.dumps(data))
    (tmp_path / "crab.yaml").write_text("\n".join(lines))
    with pytest.raises(MapError) as error:
        maps.load(tmp_path)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_two_points_in_one_cell_and_unreachable_points_are_refused() -> None:
    good = maps.default()
    points = good.points.copy()
    points[9] = points[4]
    with pytest.raises(MapError, match="points 4 and 9 lie in the same cell"):
        Map(good.road, points)
    road = good.road.copy()
    x, z = good.cells[6]
    road[z - 6 : z + 7, x - 6 : x + 7] = 0
    road[z, x] = 1
    with pytest.raises(MapError, match="point 6 cannot be reached"):
        Map(road, good.points)
    with pytest.raises(MapError, match="128 x 128"):
        Map(good.road[:64], good.points)


def test_files_of_an_editor_that_marks_the_byte_order(tmp_path: Path) -> None:
    maps.save(maps.default(), tmp_path)
    for file in tmp_path.iterdir():
        file.write_text(file.read_text(), encoding="utf-8-sig")
    np.testing.assert_array_equal(maps.load(tmp_path).road, maps.default().road)


def test_unreadable_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(MapError, match="cannot read"):
        maps.load(tmp_path)
    (tmp_path / "map_1.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(MapError, match="not a text file"):
        maps.load(tmp_path)
    (tmp_path / "map_1.json").write_text("[" * 100_000)
    with pytest.raises(MapError, match="is not JSON"):
        maps.load(tmp_path)
    (tmp_path / "map_1.json").write_text("[]")
    with pytest.raises(MapError, match="must hold an object"):
        maps.load(tmp_path)


# ---- names ----


def test_a_generated_map_has_a_name() -> None:
    for seed in (0, 7, 10**17):
        assert np.array_equal(maps.resolve(f"generated:{seed}").road, maps.generate(seed).road)
    env = RealmEnv(map="generated:7")
    env.reset(seed=0)
    assert np.array_equal(env.map.points, maps.generate(7).points)


@pytest.mark.parametrize("seed", ["", "x", "-1", "1.5", " 7", "٣", "7,8", "9" * 5000])
def test_a_seed_that_is_none_is_refused(seed: str) -> None:
    with pytest.raises(MapError, match=r"^map is 'generated:.*', after generated: comes a seed: a whole number .*$"):
        maps.resolve(f"generated:{seed}")


@pytest.mark.parametrize("what", [["default"], 7, None, {"seed": 7}])
def test_what_names_no_map_is_refused(what: Any) -> None:
    with pytest.raises(MapError, match=r"^map is .*, it must be default, generated:SEED or a path$"):
        maps.resolve(what)
