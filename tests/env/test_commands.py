"""`realm map show|generate|check`, `realm oracle`, `realm record` and `realm play`, as a user calls them."""

from __future__ import annotations

import json
import os
import re
import termios
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from realm.commands.main import main
from realm.env import map as maps
from realm.env import oracle as oracles
from realm.env.commands import oracle as oracle_command
from realm.env.commands.episodes import chosen, fixed_options, treasure_ids
from realm.env.commands.maps import corridor_widths, facts, generate_map, show_map
from realm.env.options import OptionError
from realm.env.oracle import Oracle, lattice
from realm.errors import ConfigError
from tests.cluster import ROOT
from tests.console import end, read_until, realm, start, start_in_terminal

RESET = "\x1b[0m"  # numba writes it at the end, where there is a colorama


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


@pytest.mark.slow
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
        code, out, err = end(process)
        assert (code, out) == (2, ""), name
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
    layouts = {"layouts": [{"treasure_id": [8], "start": 6, "max_step": 700}, [9]]}
    asked = fixed_options(chosen({**env, **layouts}, {"start": 2, "max_step": 300}), None, None, 0)
    assert (asked["treasure_id"], asked["start"], asked["end"], asked["max_step"]) == ([8], 2, 5, 300)
    assert chosen(layouts, {"map": "generated:1"}) == {**layouts, "map": "generated:1"}
    assert fixed_options({"map": "default", "own": 1}, [3], None, 0)["own"] == 1
    with pytest.raises(OptionError, match="treasure_id has 4, which is the start"):
        fixed_options(env, [4], None, 0)
    assert treasure_ids(" 3, 12,7") == [3, 12, 7]
    assert treasure_ids("") == []
    for text in ("3,", "a", "-1", "3 7"):
        with pytest.raises(ConfigError, match="like 3,7,12"):
            treasure_ids(text)


@pytest.mark.slow
@pytest.mark.system
@pytest.mark.parametrize("config", ["cartpole.toml", "classic.toml", "pendulum.toml"])
def test_another_environment_is_refused_before_its_model_is_looked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], config: str
) -> None:
    (tmp_path / "config.toml").write_text((ROOT / "conf" / config).read_text())
    for command in ("record", "play"):
        assert main([command, "--treasures", "3", str(tmp_path)]) == 2
        (said,) = capsys.readouterr().err.splitlines()
        assert "its episodes have no map, points and treasures to choose" in said


@pytest.mark.slow
def test_record_a_trained_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train = start("train_test.py", "--set", f"log_dir={tmp_path}", "--set", "run_name=tiny", "--set", "env.max_step=60",
                  "--set", "max_env_steps=1000")  # fmt: skip
    code, _, err = end(train)
    assert code == 0, err
    tiny, gif, png = tmp_path / "tiny", tmp_path / "episode.gif", tmp_path / "episode.png"
    calls = {
        "all": start("-m", "realm", "record", tiny, "--treasures", "3,7,12", "--out", gif),
        "end": start("-m", "realm", "record", "--log-dir", tmp_path, "--random", "9", "--seed", "3", "--stochastic",
                     "--out", png),
    }  # fmt: skip
    done = {name: end(process) for name, process in calls.items()}

    code, out, err = done.pop("all")
    assert code == 0, err
    summary, drawn = out.splitlines()
    assert re.fullmatch(r"(reached the end|ran out of time) in \d+ steps: .*, treasures \d of 3, flashes \d", summary)
    assert drawn.startswith(f"drawn in {gif} (")
    with Image.open(gif) as file:
        assert f"({file.n_frames} frames, " in drawn  # type: ignore[attr-defined]
        assert file.size == (720, 816)
        assert file.n_frames >= 60  # type: ignore[attr-defined]

    code, out, err = done.pop("end")
    assert code == 0, err
    assert " of 9, " in out
    with Image.open(png) as file:
        assert file.size == (1440, 1632)

    for arguments, text in (
        (("--treasures", "1", "--out", str(gif)), "treasure_id has 1, which is the end"),
        (("--out", str(tmp_path / "episode.mp4")), "must end in .gif or .png"),
    ):
        assert main(["record", str(tiny), *arguments]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert text in err
        assert len(err.splitlines()) == 1


# ---- the oracle ----


@pytest.fixture(scope="module")
def prepared() -> Oracle:
    return oracles.make_oracle(maps.default(), treasures=(5, 7), fine=lattice.FINE)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, prepared: Oracle) -> list[tuple[Any, ...]]:
    """The commands' calls of make_oracle, which takes seconds, so that it is made once here; answers are kept in
    tmp_path/deep/cache."""
    calls: list[tuple[Any, ...]] = []

    def make(map_: maps.Map, *rest: Any, report: Any = None) -> Oracle:
        assert np.array_equal(map_.road, prepared.map.road)
        calls.append(rest)
        return prepared

    monkeypatch.setattr(oracles, "make_oracle", make)
    monkeypatch.setattr(oracle_command, "CACHE", tmp_path / "deep" / "cache")
    return calls


@pytest.mark.slow
def test_oracle_says_what_it_knows_and_draws_it(
    asked: list[tuple[Any, ...]], prepared: Oracle, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    gif, png = tmp_path / "a.gif", tmp_path / "a.png"
    assert main(["oracle", "--treasures", "7,5", "--out", str(gif)]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    lines = dict(line.split(maxsplit=1) for line in out.splitlines())
    assert list(lines) == ["episode", "bound", "plan", "played", "flashes", "taken", "drawn"]
    assert lines["episode"] == "default, from point 2 to point 1 in 2000 steps; treasures 5 7"

    solution = oracles.solve(prepared, (5, 7))
    bound, run, plan = solution.bound, solution.run, solution.plan
    assert plan is not None
    assert lines["bound"] == f"score {bound.score:.1f}, {bound.steps} steps with all treasures; no play can score more"
    assert lines["plan"].startswith(" > ".join(str(i or "buff") for i in (*plan.order, 1)) + ", up to 1 flash")
    assert lines["played"] == (f"score {run.score:.1f}, {run.steps} steps; {run.score / bound.score:.2%} of the bound")
    t = run.flashes[0]
    (x, z), (to_x, to_z) = np.floor(run.route[t : t + 2] / 500).astype(int)
    assert lines["flashes"] == f"step {t + 1} from ({x}, {z}) to ({to_x}, {to_z})"
    taken = [(part.split()[0], int(part.split()[2].rstrip(")"))) for part in lines["taken"].split(", ")]
    assert [name for name, _ in taken] == [str(i or "buff") for i in run.taken]
    steps = [step for _, step in taken]
    assert steps == sorted(steps)
    for name, step in taken:  # in that step the hero came near enough
        apart = np.linalg.norm(run.route[:, :] - maps.default().points[0 if name == "buff" else int(name)], axis=1)
        assert apart[step] < 1500 < apart[step - 2]
    with Image.open(gif) as file:
        assert file.n_frames > 50  # type: ignore[attr-defined]

    # the second time it remembers, and `record --oracle` is the same
    assert main(["record", "--oracle", "--treasures", "5,7", "--out", str(png)]) == 0
    again = capsys.readouterr().out.splitlines()
    assert again[:-1] == out.splitlines()[:-1]
    assert asked == [(2, 1, (5, 7), 2000)]
    # but not from a damaged file: it asks again
    monkeypatch.setattr(oracles, "solve", lambda *_: solution)
    (file,) = (tmp_path / "deep" / "cache").iterdir()
    for damaged in ("", "[]", "{}", '{"bound": null}', '{"bound": [1, 2, [3]], "plan": 4}'):
        file.write_text(damaged)
        assert main(["oracle", "--treasures", "5,7"]) == 0
        assert capsys.readouterr().out.splitlines() == out.splitlines()[:-1]
    assert len(asked) == 6
    with Image.open(png) as file:
        assert file.size == (1440, 1632)


@pytest.mark.usefixtures("asked")
def test_oracle_short_of_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # one treasure is left out
    assert main(["oracle", "--treasures", "5,7", "--max-step", "70"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[1].endswith("steps leaving out 7; no play can score more")
    assert out[2].startswith("plan     5 > ")
    # nothing can be done
    png, cache = str(tmp_path / "a.png"), tmp_path / "deep" / "cache"
    assert len(list(cache.iterdir())) == 1
    assert main(["oracle", "--treasures", "5,7", "--max-step", "20", "--out", png]) == 2
    out, err = capsys.readouterr()
    assert out.splitlines()[1:] == ["bound    score 0: the end cannot be reached in 20 steps"]
    assert err == f"error: --out {png}: no play was found, so there is nothing to draw\n"
    assert len(list(cache.iterdir())) == 2
    assert main(["play", "--oracle", "--treasures", "5,7", "--max-step", "20"]) == 2
    assert capsys.readouterr().err == "error: --oracle: no play was found that comes to the end in time\n"
    # what can be done is shown
    assert main(["play", "--oracle", "--treasures", "5,7", "--max-step", "70"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("reached the end in ")
    # where nothing can be kept it says the same
    cache.rename(tmp_path / "away")
    cache.touch()
    assert main(["oracle", "--treasures", "5,7", "--max-step", "20"]) == 0
    assert capsys.readouterr().out == out


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("--treasures 3,x", "--treasures 3,x: it must be ids with commas between"),
        ("--treasures 0", "treasure_id has 0, ids are whole numbers from 1 to 15"),
        ("--treasures 1", "treasure_id has 1, which is the end"),
        ("--treasures 4,4", "treasure_id has 4 twice"),
        ("--random 14", "treasure_num is 14, it must be a whole number from 0 to 13"),
        ("--start 1", "end is 1, it must differ from start (1)"),
        ("--end 16", "end is 16, it must be a whole number from 1 to 15"),
        ("--max-step 0", "max_step is 0, it must be"),
        ("--seed -1", "--seed -1: must be a number from 0"),
        ("--map nowhere", "nowhere"),
        ("--out a.mp4", "--out a.mp4: the name must end in .gif or .png"),
        ("--out {}", "a folder.gif: cannot be written; it must be a file"),
        ("--out no/a.gif", "--out no/a.gif: there is no folder no"),
    ],
)
def test_oracle_refuses(arguments: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "a folder.gif"
    folder.mkdir()
    for command in (["oracle"], ["record", "--oracle"]):
        assert main([*command, *(part.format(folder) for part in arguments.split())]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith("error: ")
        assert text in err
        assert len(err.splitlines()) == 1


@pytest.mark.parametrize("more", ["train/run", "--id 3", "--stochastic", "--set env.start=3", "--log-dir x"])
def test_oracle_needs_no_model(more: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["record", "--oracle", *more.split()]) == 2
    assert "--oracle: it plays without a model" in capsys.readouterr().err


# ---- in a terminal ----


EPISODE = """
from realm.env.commands.terminal import play
from realm.env.draw import record
from realm.env.realm_env import RealmEnv
env = RealmEnv({"treasure_id": [3, 5], "treasure_random": 0, "max_step": 50}, observation="vector")
recording = record(env, [2] * 50)
"""
ENTER, LEAVE = "\x1b[?1049h", "\x1b[?1049l\x1b[?25h"


def test_an_episode_is_shown_in_a_terminal_and_its_end_stays_there() -> None:
    process, terminal = start_in_terminal(EPISODE + "play(recording, 500)")
    seen = read_until(terminal)
    assert process.wait(60) == 0
    os.close(terminal)
    before, shown, after = re.split(re.escape(ENTER) + "|" + re.escape(LEAVE), seen)
    assert before == ""
    assert "\x1b[2J" in shown
    assert len(re.findall(r"\x1b\[\d+;\d+H", shown)) > 30  # more than the lines of the first picture
    assert "\x1b[2J" not in after
    plain = re.sub(r"\x1b\[[\d;]*m", "", after).splitlines()
    assert "out of time" in "".join(plain[:-1])
    assert plain[-1] == "ran out of time in 50 steps: score 0.0, treasures 0 of 2, flashes 0"
    assert len(plain) <= 29


def test_ctrl_c_leaves_the_terminal_as_it_was() -> None:
    # a program that was started in the background of a script ignores SIGINT, and hands that on to all it starts
    code = "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
    code += EPISODE + "from realm.env import commands\nfrom realm.commands.main import main\n"
    code += "commands._oracle_episode = lambda _: recording\n"
    code += 'raise SystemExit(main(["play", "--oracle", "--speed", "0.5"]))'
    process, terminal = start_in_terminal(code)
    settings = termios.tcgetattr(terminal)
    assert settings[3] & termios.ECHO
    read_until(terminal, b"\x1b[2J")
    assert not termios.tcgetattr(terminal)[3] & termios.ECHO
    os.write(terminal, b"\x03")
    seen = read_until(terminal)
    assert process.wait(60) == 130
    assert seen.removesuffix(RESET).endswith(LEAVE)
    os.close(terminal)


def test_a_terminal_sees_that_work_goes_on(tmp_path: Path) -> None:
    """Even while one kernel runs: here for six seconds, in which the spinner is drawn 24 times."""
    (tmp_path / "kernel.py").write_text(
        """
from realm.jit import jit

@jit
def work(count: int) -> int:
    x = 1
    for i in range(count):
        x = (x * 25214903917 + i) % 281474976710597
    return x
"""
    )
    code = f"""
import sys, time
sys.path.insert(0, {str(tmp_path)!r})
from kernel import work
from realm.watch.progress import busy
work(1)
rates = []
for _ in range(5):  # of which the machine may have slept through some
    begin = time.monotonic()
    work(10_000_000)
    rates.append(10_000_000 / (time.monotonic() - begin))
with busy("preparing"):
    work(int(6 * max(rates)))
"""
    process, terminal = start_in_terminal(code)
    seen = read_until(terminal)
    assert process.wait(60) == 0
    os.close(terminal)
    assert seen.count("preparing") > 3
    assert seen.removesuffix(RESET).endswith("\x1b[2K")
