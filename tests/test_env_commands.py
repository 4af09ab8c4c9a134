"""`realm map show|generate|check` and `realm record`, as a user calls them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from realm.config import ConfigError
from realm.env import map as maps
from realm.env.options import OptionError
from realm.env_commands import corridor_widths, facts, fixed_options, generate_map, show_map, treasure_ids

ROOT = Path(__file__).parents[1]


def start(*arguments: str | Path) -> subprocess.Popen[str]:
    command = [sys.executable, *map(str, arguments)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def realm(*arguments: str | Path) -> tuple[int, str, str]:
    process = start("-m", "realm", *arguments)
    out, err = process.communicate(timeout=240)
    return process.returncode, out, err


def error_of(*arguments: str | Path) -> str:
    """The one line of a command that has to fail."""
    code, out, err = realm(*arguments)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    return err


# ---- maps ----


def test_widths_of_corridors() -> None:
    road = np.zeros((12, 12), np.uint8)
    road[2:4, 1:11] = 1  # two wide,
    road[2:9, 4:9] = 1  # a hall of seven by five,
    road[11, 0] = 1  # a lone cell
    width = corridor_widths(road)
    assert width.dtype == np.int64
    assert width[2, [0, 1, 3, 4, 8, 9, 11]].tolist() == [0, 2, 2, 5, 5, 2, 0]
    assert (width[2:9, 4:9] == 5).all()
    assert width[11, 0] == 1
    assert np.array_equal(width > 0, road > 0)


def test_facts_of_the_default_map() -> None:
    lines = facts(maps.default())
    distance = maps.default().distance[1, maps.default().cells[2, 1], maps.default().cells[2, 0]]
    assert lines[3] == f"start-end  {distance} cells from point 2 to point 1, the defaults"
    assert all(f"{i} ({x}, {z})" in "\n".join(lines[-2:]) for i, (x, z) in enumerate(maps.default().cells))


def test_show(tmp_path: Path) -> None:
    code, out, err = realm("map", "show", "--out", tmp_path / "map.png")
    assert (code, err) == (0, "")
    assert out.splitlines() == [*facts(maps.default()), f"drawn in {tmp_path / 'map.png'}"]
    with Image.open(tmp_path / "map.png") as file:
        assert file.size == (1440, 1632)
    code, out, _ = realm("map", "show", ROOT / "realm" / "env" / "maps" / "default" / "map_1.json")
    assert code == 0
    assert [len(line) for line in out.splitlines()[-32:]] == [64] * 32
    assert "no folder" in error_of("map", "show", "--out", tmp_path / "no" / "map.png")
    with pytest.raises(ConfigError, match=r"must end in \.png"):
        show_map("default", tmp_path / "map.jpg")


def test_generate_and_check(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "deep" / "b"
    for folder in (a, b):
        code, out, err = realm("map", "generate", "--seed", "5", "--out", folder)
        assert (code, err) == (0, "")
        assert out.endswith(f"written to {folder}: map_1.json, crab.yaml, map.png\n")
    for name in ("map_1.json", "crab.yaml", "map.png"):
        assert (a / name).read_bytes() == (b / name).read_bytes()
    assert np.array_equal(maps.load(a).road, maps.generate(5).road)
    assert realm("map", "check", a) == (0, f"{a}: good, {maps.load(a).road.mean():.1%} road, all 16 points reach each "
                                        "other\n", "")  # fmt: skip
    # nothing is written over
    assert f"{a / 'map_1.json'} is there already" in error_of("map", "generate", "--seed", "6", "--out", a)
    with pytest.raises(ConfigError, match="--seed is -1"):
        generate_map(-1, tmp_path / "c")
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"cannot write .*file/x: Not a directory"):
        generate_map(6, tmp_path / "file" / "x")


def not_square(folder: Path) -> None:
    data = json.loads((folder / "map_1.json").read_text())
    data["Flags"] = data["Flags"][:-128]
    data["Height"] = 127
    (folder / "map_1.json").write_text(json.dumps(data))


def disconnected(folder: Path) -> None:
    """Wall off point 3 by a ring around it."""
    data, (x, z) = json.loads((folder / "map_1.json").read_text()), maps.load(folder).cells[3]
    flags = np.array(data["Flags"]).reshape(128, 128)
    ring = flags[z - 1 : z + 2, x - 1 : x + 2]
    ring[:] = 0
    ring[1, 1] = 1
    data["Flags"] = flags.ravel().tolist()
    (folder / "map_1.json").write_text(json.dumps(data))


def in_crab(old: str, new: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        lines = (folder / "crab.yaml").read_text().splitlines()
        lines = [new if line.startswith(old) else line for line in lines]
        (folder / "crab.yaml").write_text("\n".join(lines))

    return change


BROKEN: dict[str, tuple[Callable[[Path], None], str]] = {
    "not square": (not_square, "Height is 127, it must be 128"),
    "disconnected": (disconnected, "point 3 cannot be reached from point 0"),
    "on an obstacle": (in_crab("4:", "4: [0, 0]"), "point 4 lies on an obstacle (cell x 4, z 10)"),
    "missing": (in_crab("7:", ""), "lacks point 7"),
    "duplicate": (in_crab("7:", "6: [1, 1]"), "point 6 is there twice"),
}


def test_check_says_what_is_wrong(tmp_path: Path) -> None:
    processes = {}
    for name, (damage, _) in BROKEN.items():
        folder = tmp_path / name
        maps.save(maps.generate(5), folder)
        damage(folder)
        processes[name] = start("-m", "realm", "map", "check", folder)
    for name, process in processes.items():
        out, err = process.communicate(timeout=240)
        assert (process.returncode, out) == (2, ""), name
        assert BROKEN[name][1] in err
        assert err.startswith("error: ")
        assert len(err.splitlines()) == 1, name


# ---- episodes ----


def test_options_of_one_certain_episode() -> None:
    env = {"start": 4, "end": 5, "treasure_num": 3, "treasure_random": 1, "max_step": 50}
    certain = fixed_options(env, None, None, 7)
    assert certain == fixed_options(env, None, None, 7) != fixed_options(env, None, None, 8)
    assert len(certain["treasure_id"]) == 3
    assert {key: certain[key] for key in ("start", "end", "max_step", "treasure_random")} == {
        "start": 4, "end": 5, "max_step": 50, "treasure_random": 0
    }  # fmt: skip
    assert fixed_options(env, [9, 3], None, 0)["treasure_id"] == [3, 9]
    assert fixed_options(env, [], None, 0)["treasure_id"] == []
    assert len(fixed_options(env, None, 11, 0)["treasure_id"]) == 11
    layouts = fixed_options({**env, "layouts": [{"treasure_id": [8], "start": 6}, [9]]}, None, None, 0)
    assert (layouts["treasure_id"], layouts["start"], "layouts" in layouts) == ([8], 6, False)
    assert fixed_options({"map": "default", "own": 1}, [3], None, 0)["own"] == 1
    with pytest.raises(OptionError, match="treasure_id has 4, which is the start"):
        fixed_options(env, [4], None, 0)
    assert treasure_ids(" 3, 12,7") == [3, 12, 7]
    assert treasure_ids("") == []
    for text in ("3,", "a", "-1", "3 7"):
        with pytest.raises(ConfigError, match="like 3,7,12"):
            treasure_ids(text)


@pytest.mark.system
def test_record_a_trained_model(tmp_path: Path) -> None:
    train = start("train_test.py", "--set", f"log_dir={tmp_path}", "--set", "run_name=tiny", "--set", "env.max_step=60",
                  "--set", "max_env_steps=1000")  # fmt: skip
    _, err = train.communicate(timeout=240)
    assert train.returncode == 0, err
    gif, png = tmp_path / "episode.gif", tmp_path / "episode.png"
    tiny, gif, png = tmp_path / "tiny", tmp_path / "episode.gif", tmp_path / "episode.png"
    calls = {
        "all": start("-m", "realm", "record", tiny, "--treasures", "3,7,12", "--out", gif),
        "end": start("-m", "realm", "record", "--log-dir", tmp_path, "--random", "9", "--seed", "3", "--stochastic",
                     "--out", png),
        "treasure_id has 1, which is the end": start("-m", "realm", "record", tiny, "--treasures", "1", "--out", gif),
        "must end in .gif or .png": start("-m", "realm", "record", tiny, "--out", tmp_path / "episode.mp4"),
    }  # fmt: skip
    done = {name: (*process.communicate(timeout=240), process.returncode) for name, process in calls.items()}

    out, err, code = done.pop("all")
    assert code == 0, err
    summary, drawn = out.splitlines()
    assert re.fullmatch(r"(reached the end|ran out of time) in \d+ steps: .*, treasures \d of 3, flashes \d", summary)
    assert drawn.startswith(f"drawn in {gif} (")
    with Image.open(gif) as file:
        assert f"({file.n_frames} frames, " in drawn  # type: ignore[attr-defined]
        assert file.size == (720, 816)
        assert file.n_frames >= 60  # type: ignore[attr-defined]

    out, err, code = done.pop("end")
    assert code == 0, err
    assert " of 9, " in out
    with Image.open(png) as file:
        assert file.size == (1440, 1632)

    for text, (out, err, code) in done.items():
        assert (code, out) == (2, "")
        assert text in err
        assert len(err.splitlines()) == 1
