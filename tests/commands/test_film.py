"""`realm record` of any environment that renders pictures."""

from __future__ import annotations

import json
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
    """Eleven steps, 120 a second; its picture has another colour at each. given: what it shows instead, or raises."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 120}  # noqa: RUF012 - as gymnasium has it
    observation_space, action_space = spaces.Box(-1, 1, (2,)), spaces.Discrete(2)

    def __init__(self, render_mode: str | None = None, given: Any = None) -> None:
        self.render_mode, self.given = render_mode, given

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.steps = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return self.observation_space.sample(), 0.5, self.steps == 11, False, {}

    def render(self) -> Any:
        if isinstance(self.given, Exception):
            raise self.given
        return np.full((17, 21, 3), 20 * self.steps, np.uint8) if self.given is None else self.given


def drawn(given: Any = None) -> str:
    name = f"Drawn{len(gymnasium.registry)}-v0"
    gymnasium.register(name, entry_point=Drawn, kwargs={"given": given})
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


def test_what_cannot_be_filmed_is_a_sentence_before_the_model_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def never(*_: Any) -> None:
        raise AssertionError("the model was loaded")

    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("realm.learn.checkpoint.find", never)
    missing = gymnasium.error.DependencyNotInstalled('pygame is not installed, run `pip install "gymnasium[box2d]"`')
    nothing = "renders no pictures, so there is nothing to record; with render_mode="
    for env, text in (
        (f"env.id={registered(Drawn.observation_space, Drawn.action_space)}", nothing),  # it takes no render_mode
        (drawn(np.zeros((4, 4))), nothing),
        (drawn(NotImplementedError()), nothing),
        (drawn(RuntimeError("no\nscreen")), ": RuntimeError: no screen (while rendering)"),
        (drawn(missing), f"run `{to_install(chr(39) + 'gymnasium[box2d]' + chr(39))}`"),
    ):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        run = str(make_run(folder, "cartpole.toml", "algo=realm.zoo.ppo", env))
        assert main(["record", run, "--out", str(tmp_path / "a.gif")]) == 2
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
