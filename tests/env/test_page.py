"""The page that plays an episode: its data, and its script in a real browser."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from realm.env.draw import Recording, page, record
from realm.env.physics import VIEW, VISIT
from realm.env.realm_env import RealmEnv
from tests.browser import BROWSER, Browser
from tests.cluster import ROOT

EAST, NORTH, FLASH_EAST = 0, 2, 8
STEPS = 40


def play() -> tuple[RealmEnv, Recording]:
    env = RealmEnv(usr_conf={"treasure_id": [5, 7], "max_step": STEPS}, observation="none")
    recording = record(env, [NORTH] * 12 + [EAST] * 8 + [FLASH_EAST] + [NORTH] * 19)
    count = len(recording.actions)
    probability = np.random.default_rng(0).dirichlet(np.full(16, 0.3), count).astype(np.float32)
    return env, recording._replace(probability=probability, value=np.linspace(0, 9, count, dtype=np.float32))


def data_of(text: str) -> dict[str, Any]:
    match = re.search(r'<script id="episode" type="application/json">(.*?)</script>', text)
    assert match
    data: dict[str, Any] = json.loads(match[1])
    return data


def test_no_file_of_realms_own_depends_on_the_locale(tmp_path: Path) -> None:
    """As GBK is in China: here it is one that knows letters of English alone."""
    code = """
import locale
from realm.commands.main import main
from realm.env.draw import page
from tests.env.test_page import play
assert locale.getpreferredencoding(False) == "ANSI_X3.4-1968"
assert main(["init", "mine", "--env", "CartPole-v1"]) == 0
assert "</html>" in page(play()[1], "an episode")
"""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_data_is_the_episode() -> None:
    env, recording = play()
    text = page(recording, "an <episode>")
    assert "<h1>an &lt;episode&gt;</h1>" in text
    assert "http" not in re.sub(r"http-equiv", "", text)  # nothing comes from elsewhere
    data = data_of(text)
    assert len(data["actions"]) == len(data["probability"]) == len(data["value"]) == STEPS
    assert {len(data[name]) for name in ("x", "z", "there", "score", "flash", "flash_wait", "buff_left")} == {STEPS + 1}
    road = [[int(digit, 16) >> (3 - k) & 1 for digit in row for k in range(4)] for row in data["road"]]
    assert np.array_equal(road, recording.map.road)
    assert data["planned"] == [5, 7]
    assert [k for k, flash in enumerate(data["flash"]) if flash] == [21]
    # the script counts visits from the places, as the game does
    memory = np.zeros_like(env.state.memory[0])
    for x, z in zip(data["x"], data["z"], strict=True):
        cell = int(z // data["cell"]) + VIEW, int(x // data["cell"]) + VIEW
        memory[cell] = min(5 * int(VISIT), int(memory[cell]) + int(VISIT))
    assert np.array_equal(memory, env.state.memory[0])


SETTLE = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"  # the next pictures are drawn
DRAWN = """[...document.querySelectorAll("canvas")].filter(one =>
  one.getContext("2d").getImageData(0, 0, one.width, one.height).data.some(byte => byte)).map(one => one.id)"""


@pytest.mark.slow
@pytest.mark.skipif(not BROWSER, reason="needs a browser: apt install chromium")
def test_the_page_plays_in_a_browser(tmp_path: Path) -> None:
    _, recording = play()
    file = tmp_path / "episode.html"
    with Browser() as browser:

        def step_after(script: str) -> int:
            browser.run(script)
            browser.run(SETTLE)
            return int(browser.run("document.body.dataset.step"))

        def key(name: str) -> str:
            return f"document.body.dispatchEvent(new KeyboardEvent('keydown', {{key: '{name}', bubbles: true}}))"

        file.write_text(page(recording, "an episode"))
        browser.open(f"{file.as_uri()}#step=7")
        assert step_after("0") == 7
        assert step_after(key("Home")) == 0
        assert step_after("$('on').click(), $('on').click(), $('back').click()") == 1
        assert step_after("$('at').value = 30, $('at').dispatchEvent(new Event('input'))") == 30
        assert step_after(key("PageDown")) == STEPS
        assert step_after(key("PageUp")) == 20
        assert step_after("$('memory').click()") == 20
        assert browser.run(DRAWN) == ["map", "actions", "shares", "value", "score", "marks"]
        browser.run("$('speed').value = '60', $('speed').dispatchEvent(new Event('change'))")
        assert browser.run("$('play').click(), draw(), $('play').textContent") == "pause"
        browser.run(f"new Promise(done => setInterval(() => document.body.dataset.step == {STEPS} && done(), 20))")
        assert browser.run("$('play').textContent") == "play"
        facts = browser.run("$('facts').textContent")
        assert facts == f"step{STEPS} / {STEPS}score0.0treasures0 / 2flashin 587buffon the mapepisodeout of time"

        # what the oracle plays has no policy: its page has no room for one
        file.write_text(page(recording._replace(probability=None, value=None), ""))
        browser.open(file.as_uri())
        browser.run(SETTLE)
        assert browser.run(DRAWN) == ["map", "score", "marks"]
        assert browser.errors == []
