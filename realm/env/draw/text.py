"""The map, or an episode on it, as plain text that can be read from a log file."""

from __future__ import annotations

from realm.env.draw.recording import Moment
from realm.env.map import CELL, POINTS, SIZE, Map

COLUMNS, LINES = SIZE // 2, SIZE // 4


def ansi(map_: Map, now: Moment | None = None) -> str:
    """The map as 32 lines of 64 half blocks, walls filled, below a line of numbers if there is an episode.

    Points are their numbers: all of them without an episode, else the treasures that are there, with S the start, E the
    end, B the buff if there, @ the hero. Plain characters without colours, so that it can be read from a log file.
    """
    wall = map_.road[::-1].reshape(COLUMNS, 2, COLUMNS, 2).sum((1, 3)) < 2
    rows = [
        ["█" if upper and lower else "▀" if upper else "▄" if lower else " " for upper, lower in zip(a, b, strict=True)]
        for a, b in zip(wall[::2], wall[1::2], strict=True)
    ]

    def put(x: float, z: float, text: str) -> None:
        row, column = LINES - 1 - int(z / CELL) // 4, int(x / CELL) // 2
        column = min(column, COLUMNS - len(text))
        rows[row][column : column + len(text)] = text

    head = []
    if now is None:
        for i, (x, z) in enumerate(map_.points):
            put(x, z, str(i))
    else:
        marks = {i: str(i) for i in range(1, POINTS) if now.planned[i] and now.there[i]}
        marks |= {0: "B"} if now.there[0] else {}
        for i, mark in (marks | {now.start: "S", now.end: "E"}).items():
            put(map_.points[i, 0], map_.points[i, 1], mark)
        put(now.x, now.z, "@")
        flash = "ready" if now.flash_wait == 0 else f"in {now.flash_wait}"
        over = f", {now.ending}" if now.ending else ""
        head = [
            f"step {now.steps}/{now.max_step}, score {now.score:.1f}, treasures {now.taken}/{sum(now.planned)}, "
            f"flash {flash}, buff {now.buff_left}{over}"
        ]
    return "\n".join([*head, *("".join(row) for row in rows)]) + "\n"
