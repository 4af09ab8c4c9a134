"""An episode as a page: one HTML file that any browser plays, without a network.

`page` puts a recording into `episode.html`, next to this file, whose script draws everything: the route, the memory
map, and where the recording has them the probability of each action and the critic's value.
"""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from realm.env.draw import pen
from realm.env.draw.recording import Recording
from realm.env.map import CELL
from realm.env.physics import TRIGGER_RADIUS

COLOURS = {
    "paper": pen.PAPER, "wall": pen.WALL, "face": pen.WALL_FACE, "edge": pen.EDGE, "road": pen.ROAD, "text": pen.TEXT,
    "quiet": pen.QUIET, "old": pen.OLD_ROUTE, "new": pen.NEW_ROUTE, "flash": pen.FLASH, "gold": pen.GOLD,
    "taken": pen.GOLD_DIM, "missed": pen.MISSED, "buff": pen.BUFF, "start": pen.START, "end": pen.END, "hero": pen.HERO,
    "core": pen.HERO_CORE,
}  # fmt: skip


def page(recording: Recording, title: str) -> str:
    """The page of an episode of one step at least."""
    template = (Path(__file__).parent / "episode.html").read_text("utf-8")
    css = " ".join(f"--{name}: rgb{colour};" for name, colour in COLOURS.items())
    # no "</script>" can come from the data
    data = json.dumps(episode(recording), separators=(",", ":")).replace("<", "\\u003c")
    for place, content in (("@TITLE@", html.escape(title)), ("@COLOURS@", css), ("@DATA@", data)):
        template = template.replace(place, content)
    return template


def episode(recording: Recording) -> dict[str, Any]:
    """What the page's script gets: lists with an entry for each of the T + 1 moments, or for each of the T actions."""
    moments, last = recording.moments, recording.moments[-1]
    road = np.packbits(recording.map.road.astype(np.bool_), axis=1)  # [128, 16], south first
    return {
        "cell": CELL,
        "reach": TRIGGER_RADIUS,
        "road": [row.tobytes().hex() for row in road],
        "points": recording.map.points.tolist(),
        "start": last.start,
        "end": last.end,
        "planned": [i for i, yes in enumerate(last.planned) if yes],
        "max_step": last.max_step,
        "terminated": last.terminated,
        "truncated": last.truncated,
        "x": [round(one.x, 1) for one in moments],
        "z": [round(one.z, 1) for one in moments],
        "there": [sum(1 << i for i, yes in enumerate(one.there) if yes) for one in moments],
        "score": [round(one.score, 1) for one in moments],
        "flash_wait": [one.flash_wait for one in moments],
        "buff_left": [one.buff_left for one in moments],
        "buff_wait": [one.buff_wait for one in moments],
        "flash": recording.route[:, 2].astype(int).tolist(),
        "actions": recording.actions,
        "probability": _rounded(recording.probability, 4),
        "value": _rounded(recording.value, 3),
        "colours": COLOURS,
    }


def _rounded(array: NDArray[np.float32] | None, digits: int) -> list[Any] | None:
    if array is None:
        return None
    rounded: list[Any] = array.astype(np.float64).round(digits).tolist()
    return rounded
