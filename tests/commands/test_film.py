"""`realm record` and `realm play` of any environment that renders pictures or text."""

from __future__ import annotations

import json
import os
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from PIL import Image

from realm.commands.main import main
from realm.errors import to_install
from tests.learn.test_export import ROOT, make_run
from tests.odd import registered

pytest.importorskip("pygame")


class Drawn(gymnasium.Env[Any, Any]):
    """Eleven steps, 120 a second; its picture has another colour at each. It has as many actions as the home game.
    given: what it shows instead, or raises; home: a folder that it goes to."""

    metadata = {"render_modes": ["rgb_array", "ansi"], "render_fps": 120}  # noqa: RUF012 - as gymnasium has it
    observation_space, action_space = spaces.Box(-1, 1, (2,)), spaces.Discrete(16)

    def __init__(self, render_mode: str | None = None, given: Any = None, home: str = ".") -> None:
        assert not (isinstance(given, str) and given == "asserts" and render_mode)
        self.render_mode, self.given = render_mode, given
        os.chdir(home)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.steps = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return self.observation_space.sample(), 0.5, self.steps == 11, False, {}

    def render(self) -> Any:
        if isinstance(self.given, Exception):
            raise self.given
        if isinstance(self.given, str):
            return f"step {self.steps}\n \x1b[41mA\x1b[0m|\n" if self.render_mode == "ansi" else None
        return np.full((17, 21, 3), 20 * self.steps, np.uint8) if self.given is None else self.given


def drawn(given: Any = None, home: str = ".") -> str:
    name = f"Drawn{len(gymnasium.registry)}-v0"
    gymnasium.register(name, entry_point=Drawn, kwargs={"given": given, "home": home})
    return f"env.id={name}"


def film_of(page: Path) -> Any:
    found = re.search(r"const film = (\{.*?\}), of", page.read_text())
    assert found
    return json.loads(found[1])


def test_cartpole_on_film(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(ROOT)
    run, gif, page = str(make_run(tmp_path, "cartpole.toml")), tmp_path / "a.gif", tmp_path / "a.html"
    assert main(["record", run, "--out", str(gif), "--seed", "3"]) == 0
    said = re.search(r"(\d+) steps, return (\d+)\.0, filmed in \S+a.gif \((\d+) frames, ", capsys.readouterr().out)
    assert said
    steps = int(said[1])
    assert 5 < steps == int(said[2]) == int(said[3]) - 1
    with Image.open(gif) as file:
        assert file.size == (600, 400)
        times_ms = 0
        for frame in range(file.n_frames):  # type: ignore[attr-defined]
            file.seek(frame)
            times_ms += file.info["duration"]
        assert times_ms == 20 * steps + 2000, "what looks the same is one frame for longer"
        assert np.ptp(np.asarray(file.convert("L"))) > 200
    assert main(["record", run, "--out", str(page), "--seed", "3", "--max-step", "5"]) == 0
    assert "5 steps, return 5.0, filmed in" in capsys.readouterr().out
    film = film_of(page)
    assert film["ms"] == 20
    assert [(step, sum_) for step, sum_, _ in film["frames"]] == [(step, step) for step in range(6)]


def test_frames_are_left_out_where_a_second_has_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    run = str(make_run(tmp_path, "cartpole.toml", "algo=realm.zoo.ppo", drawn()))
    for out in ["a.html", "a.gif"] + ["a.mp4"] * bool(find_spec("imageio_ffmpeg")):
        assert main(["record", run, "--out", str(tmp_path / out)]) == 0
        assert f"11 steps, return 5.5, filmed in {tmp_path / out} (5 frames, " in capsys.readouterr().out
    film = film_of(tmp_path / "a.html")
    assert film["ms"] == 25
    assert [(step, sum_) for step, sum_, _ in film["frames"]] == [(0, 0), (3, 1.5), (6, 3), (9, 4.5), (11, 5.5)]
    with Image.open(tmp_path / "a.gif") as file:
        times_ms = []
        for frame in range(file.n_frames):  # type: ignore[attr-defined]
            file.seek(frame)
            times_ms.append(file.info["duration"])
        assert times_ms == [20, 30, 30, 20, 2000]
    if (tmp_path / "a.mp4").exists():
        import imageio.v3 as imageio

        assert imageio.imread(tmp_path / "a.mp4").shape == (5, 16, 20, 3)  # its sides are even


def test_paths_are_those_of_where_the_user_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    run = make_run(tmp_path, "cartpole.toml", "algo=realm.zoo.ppo", drawn(home="/"))
    monkeypatch.chdir(tmp_path)
    assert main(["record", str(run.relative_to(tmp_path)), "--out", "TITLE FILM.html"]) == 0
    assert len(film_of(tmp_path / "TITLE FILM.html")["frames"]) > 1


def test_what_cannot_be_filmed_is_a_sentence_before_the_model_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def never(*_: Any) -> None:
        raise AssertionError("the model was loaded")

    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("realm.learn.checkpoint.find", never)
    missing = gymnasium.error.DependencyNotInstalled('pygame is not installed, run `pip install "gymnasium[box2d]"`')
    nothing = "renders nothing, so there is nothing to see; with render_mode="
    for env, text in (
        (f"env.id={registered(Drawn.observation_space, Drawn.action_space)}", nothing),  # it takes no render_mode
        (drawn("asserts"), nothing),  # as the guides of gymnasium write it
        (drawn(np.zeros((4, 4))), nothing),
        (drawn(NotImplementedError()), nothing),
        (drawn(RuntimeError("no\nscreen")), ": RuntimeError: no screen (while rendering)"),
        (drawn(missing), f"run `{to_install(chr(39) + 'gymnasium[box2d]' + chr(39))}`"),
    ):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        run = str(make_run(folder, "cartpole.toml", "algo=realm.zoo.ppo", env))
        for command in (["record", "--out", str(tmp_path / "a.gif")], ["play"]):
            assert main([*command, run]) == 2
            (said,) = capsys.readouterr().err.splitlines()
            assert text in said
    monkeypatch.setattr("realm.commands.film.find_spec", lambda name: None)
    for options, text in (
        (["--out", "a.mp4"], f"imageio is not installed; {to_install('imageio imageio-ffmpeg')}"),
        (["--out", "a.png"], "must end in .gif or .html or .mp4"),
        (["--max-step", "0"], "--max-step 0: must be a number from 1"),
        (["--random", "3"], "its episodes have no map, points and treasures to choose"),
    ):
        assert main(["record", run, *options]) == 2
        (said,) = capsys.readouterr().err.splitlines()
        assert text in said
    assert not list(tmp_path.glob("a.*"))


def test_text_on_film_and_in_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    run = str(make_run(tmp_path, "cartpole.toml", "algo=realm.zoo.ppo", drawn("text")))
    assert main(["record", run, "--out", str(tmp_path / "a.gif")]) == 0
    with Image.open(tmp_path / "a.gif") as file:
        assert file.size == (2 * 6 * len("step 11"), 2 * 11 * 2)
        red = np.asarray(file.convert("RGB"))[22:, 12:24]
        assert (red == red[0, 0]).all(-1).mean() > 0.5
        assert red[0, 0, 0] > 100 > red[0, 0, 1]
    capsys.readouterr()
    assert main(["play", run]) == 0  # no terminal
    assert capsys.readouterr().out.splitlines()[1:] == ["11 steps, return 5.5"]
    shown = in_terminal(monkeypatch, capsys, "play", run, "--speed", "1000")
    assert shown[-5].rstrip().endswith("step 11")
    assert [line.strip() for line in shown[-4:-2]] == ["A|", shown[-1]]
    assert "100 env steps" in shown[-2]


def test_pictures_in_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    run = str(make_run(tmp_path, "cartpole.toml", "algo=realm.zoo.ppo", drawn()))
    shown = in_terminal(monkeypatch, capsys, "play", run, "--max-step", "3", "--speed", "1000")
    *picture, caption, _, last = shown
    assert caption.strip() == last == "3 steps, return 1.5"
    assert {line.strip() for line in picture[-20:]} == {"▀" * 51}  # 17 by 21 pixels, in 21 lines of two
    assert main(["play", run, "--speed", "0"]) == 2
    assert "--speed 0: must be a number above 0" in capsys.readouterr().err


def in_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    """What a command leaves in a terminal of 25 lines and 80 columns."""
    monkeypatch.setattr("realm.commands.screen.can_show", lambda console: True)
    for name, value in {"COLUMNS": "80", "LINES": "25"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("realm.commands.screen.HOLD_S", 0)
    assert main(list(words)) == 0
    return re.sub(r"\x1b\[[\d;]*[mHJ]", "", capsys.readouterr().out).splitlines()
