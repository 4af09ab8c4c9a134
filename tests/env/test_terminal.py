"""An episode in a terminal: what stands where, and that the changes add up to the picture."""

from __future__ import annotations

import re

import numpy as np
import pytest
from rich.color import ColorSystem

from realm.commands.screen import Screen, changes, lines, of_text
from realm.env import draw
from realm.env.commands import terminal
from realm.env.commands.terminal import PANEL, screen
from realm.env.draw import pen
from realm.env.map import EXTENT
from realm.env.realm_env import RealmEnv

TRUE = ColorSystem.TRUECOLOR


@pytest.fixture(scope="module")
def recording() -> draw.Recording:
    env = RealmEnv({"treasure_id": [3, 7, 12], "treasure_random": 0, "max_step": 60}, observation="vector")
    return draw.record(env, [2] * 10 + [8] + [0, 4] * 40)  # north, a flash to the east, to and fro


def text(drawn: Screen) -> list[str]:
    return ["".join(line).replace("▀", " ") for line in drawn.text]


@pytest.mark.parametrize(
    ("columns", "rows", "side"), [(80, 24, 48), (80, 30, 52), (160, 50, 100), (200, 80, 128), (50, 40, 50)]
)
def test_the_map_is_as_large_as_there_is_room(recording: draw.Recording, columns: int, rows: int, side: int) -> None:
    drawn = screen(recording, 30, columns, rows)
    assert drawn.text.shape == (rows, columns)
    beside = side + PANEL <= columns
    top = 0 if beside else terminal.STATUS
    block = drawn.text[top : top + side // 2, :side]
    assert (block == "▀").mean() > 0.9
    words = " ".join(" ".join(text(drawn)).split())
    for part in ("step 30 / 60", "treasures 0 / 3", "buff on the map", "flash 5", " steps away"):
        assert part in words
    assert ("hero" in words) == beside

    # every mark stands on its point
    def at(x: float, z: float) -> str:
        line, column = top + int((1 - z / EXTENT) * side) // 2, int(x / EXTENT * side)
        return "".join(drawn.text[line, max(0, column - 2) : column + 3])

    points = recording.map.points
    for mark, (x, z) in {"B": points[0], "S": points[2], "E": points[1], "3": points[3], "12": points[12]}.items():
        assert mark in at(x, z)
    assert "@" in at(recording.moments[30].x, recording.moments[30].z)
    if side == 128:  # each pixel is a cell
        pixels = np.stack([drawn.ink[:64, :128], drawn.paper[:64, :128]], 1).reshape(128, 128, 3)
        plain = np.repeat(drawn.text[:64, :128] == "▀", 2, 0)
        wall = (pixels == pen.WALL).all(-1)
        assert not (wall & recording.map.road[::-1].astype(bool))[plain].any()
        assert (pixels == pen.FLASH).all(-1).any()


def test_the_end_is_told(recording: draw.Recording) -> None:
    drawn = screen(recording, 60, 80, 24)
    assert "out of time" in " ".join(text(drawn))
    line, column = np.argwhere((drawn.paper[:, :48] == pen.MISSED).all(-1) & (drawn.text[:, :48] == "3"))[0]
    assert tuple(drawn.ink[line, column]) == pen.PAPER


def test_a_terminal_of_any_size_will_do(recording: draw.Recording) -> None:
    for columns, rows in ((1, 1), (5, 3), (30, 4), (300, 10)):
        drawn = screen(recording, 60, columns, rows)
        assert drawn.text.shape[0] >= rows
        assert changes(drawn, None, TRUE)
        assert lines(drawn, TRUE)


def test_changes_lead_from_one_screen_to_the_next(recording: draw.Recording) -> None:
    """A terminal of few words, fed with the changes of all frames, shows the last one."""
    shown = np.full((24, 80), " ")
    colours = np.full((24, 80), "", dtype=object)
    before, sizes = None, []
    for k in range(0, 61, 5):
        now = screen(recording, k, 80, 24)
        written = changes(now, before, TRUE)
        sizes.append(len(written))
        line = column = 0
        colour = ""
        for move, paint, letter in re.findall(r"\x1b\[(\d+;\d+)H|\x1b\[([\d;]*)(?:m|J)|([^\x1b])", written):
            if move:
                line, column = (int(one) - 1 for one in move.split(";"))
            elif paint:
                colour = paint
            else:
                shown[line, column], colours[line, column] = letter, colour
                column += 1
        before = now
    assert changes(before, before, TRUE) == ""  # type: ignore[arg-type]
    assert max(sizes[1:]) < sizes[0] / 5
    assert (shown == now.text).all()
    expected = [[f"38;2;{';'.join(map(str, a))};48;2;{';'.join(map(str, b))}" for a, b in zip(*row, strict=True)]
                for row in zip(now.ink, now.paper, strict=True)]  # fmt: skip
    assert (colours == np.array(expected, dtype=object)).all()


def test_lines_without_empty_ones(recording: draw.Recording) -> None:
    plain = re.sub(r"\x1b\[[\d;]*m", "", lines(screen(recording, 60, 40, 60), TRUE)).splitlines()
    assert len(plain) == terminal.STATUS + 20
    assert "38;5;" in lines(screen(recording, 60, 40, 60), ColorSystem.EIGHT_BIT)


def test_nothing_that_an_environment_writes_steers_the_terminal() -> None:
    drawn = of_text("a\x07b\x9bX\x1b[31mc\x1b[0m\x1b]0;title\x07d")
    assert "".join(drawn.text.ravel()).startswith("ab?Xc")
    assert not {"\x07", "\x9b"} & set(lines(drawn, TRUE))
