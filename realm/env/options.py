"""Episode options: the `usr_conf` of the game, checked.

Used by the environments. A `usr_conf` is `{"diy": {...}}` or the inner dict; `parse` turns it into an
`Episode`, or refuses it with an `OptionError` of one sentence that names the key, the value and what is
allowed. `parse_layouts` does the same for the `layouts` of an evaluation: a list of usr_confs or of
treasure-id lists.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Any

from realm.errors import UserError

IDS = range(1, 16)
MAX_TREASURES = 13  # 15 points less start and end
MAX_STEP_LIMIT = 2**31 - 1
KEYS = ("start", "end", "treasure_random", "treasure_num", "treasure_id", "max_step", "talent_type")
DEFAULTS: Mapping[str, Any] = {
    "start": 2,
    "end": 1,
    "treasure_random": 1,
    "treasure_num": 5,
    "max_step": 2000,
    "talent_type": 1,
}
TREASURE_KEYS = ("treasure_random", "treasure_num", "treasure_id")


class OptionError(UserError):
    """A wrong episode option; the message is one sentence."""


@dataclass(frozen=True)
class Episode:
    """What to draw an episode from: `treasure_id` when the treasures are fixed, else `treasure_num` random
    ones."""

    start: int = 2
    end: int = 1
    max_step: int = 2000
    treasure_num: int = 5
    treasure_id: tuple[int, ...] | None = None


def of_table(env: Mapping[str, Any]) -> dict[str, Any]:
    """The usr_conf in the table [env] of a configuration, which has options of other kinds, too."""
    return {key: value for key, value in env.items() if key in KEYS}


def parse(usr_conf: Mapping[str, Any] | None, base: Mapping[str, Any] | None = None) -> Episode:
    """Check a usr_conf. Keys it lacks come from `base` (an inner dict), then from the defaults."""
    conf = inner(usr_conf)
    below = inner(base)
    # one way of choosing treasures replaces the other as a whole
    if any(key in conf for key in TREASURE_KEYS):
        below = {key: value for key, value in below.items() if key not in TREASURE_KEYS}
    conf = {**below, **conf}
    start = _integer(conf, "start", 1, 15)
    end = _integer(conf, "end", 1, 15)
    if start == end:
        raise OptionError(f"end is {end}, it must differ from start ({start})")
    _integer(conf, "talent_type", 1, 1)
    max_step = _integer(conf, "max_step", 1, MAX_STEP_LIMIT)
    num = _integer(conf, "treasure_num", 0, MAX_TREASURES)
    ids = _treasure_ids(conf["treasure_id"], start, end) if "treasure_id" in conf else None
    # a list of treasures alone means: these
    random = _integer(conf, "treasure_random", 0, 1) if "treasure_random" in conf or ids is None else 0
    if random:
        return Episode(start, end, max_step, treasure_num=num)
    if ids is None:
        raise OptionError("treasure_random is 0, so treasure_id must be given: a list of different ids from 1 to 15")
    return Episode(start, end, max_step, treasure_num=len(ids), treasure_id=ids)


def parse_layouts(layouts: Sequence[Any], base: Mapping[str, Any] | None = None) -> list[Episode]:
    """Check a list of usr_confs or treasure-id lists; keys an entry lacks come from `base`."""
    if isinstance(layouts, str | Mapping) or not isinstance(layouts, Sized) or len(layouts) == 0:
        raise OptionError(f"layouts is {layouts!r}, it must be a list of usr_confs or lists of treasure ids")
    episodes = []
    for i, layout in enumerate(layouts):
        try:
            episodes.append(parse(of_layout(layout), base))
        except OptionError as error:
            raise OptionError(f"layouts[{i}]: {error}") from None
    return episodes


def of_layout(layout: Any) -> dict[str, Any]:
    """The inner dict of an entry of `layouts`."""
    return inner(layout if isinstance(layout, Mapping) else {"treasure_random": 0, "treasure_id": layout})


def inner(usr_conf: Mapping[str, Any] | None) -> dict[str, Any]:
    """The inner dict of a usr_conf, with known keys only."""
    if usr_conf is None:
        return {}
    if not isinstance(usr_conf, Mapping):
        raise OptionError(f"usr_conf is {usr_conf!r}, it must be a dict like {{'diy': {{...}}}}")
    conf = usr_conf
    if "diy" in conf:
        if len(conf) > 1 or not isinstance(conf["diy"], Mapping):
            raise OptionError(f"usr_conf is {usr_conf!r}, it must be {{'diy': {{...}}}} or the inner dict")
        conf = conf["diy"]
    for key, value in conf.items():
        if key not in KEYS:
            raise OptionError(f"{key} is {value!r}, but there is no such option; allowed are {', '.join(KEYS)}")
    return dict(conf)


def _whole(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def _integer(conf: Mapping[str, Any], key: str, low: int, high: int) -> int:
    value = conf[key] if key in conf else DEFAULTS[key]
    number = _whole(value)
    if number is None or not low <= number <= high:
        allowed = f"{low}" if low == high else f"a whole number from {low} to {high}"
        raise OptionError(f"{key} is {value!r}, it must be {allowed}")
    return number


def _treasure_ids(value: Any, start: int, end: int) -> tuple[int, ...]:
    ids: list[int] = []
    try:
        items = None if isinstance(value, str | bytes | Mapping) else list(value)
    except TypeError:
        items = None
    if items is None:
        raise OptionError(f"treasure_id is {value!r}, it must be a list of ids from 1 to 15")
    for item in items:
        number = _whole(item)
        if number is None or number not in IDS:
            raise OptionError(f"treasure_id has {item!r}, ids are whole numbers from 1 to 15")
        if number in (start, end):
            raise OptionError(f"treasure_id has {number}, which is the {'start' if number == start else 'end'}")
        if number in ids:
            raise OptionError(f"treasure_id has {number} twice, ids must differ")
        ids.append(number)
    return tuple(ids)
