"""The report on a model of the realm: layouts to play, the oracle's limits for them, regret, and the table's rows.

Called by `realm eval`, and by everybody who judges a model in code. Layouts are episodes with fixed treasures
(`Episode`); `layouts.py` plays them, and nothing here plays a model or prints.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from loguru import logger

from realm.contract import Array
from realm.env import map as maps
from realm.env import options, oracle
from realm.env.games import Games
from realm.env.layouts import Outcome
from realm.env.map import Map
from realm.env.options import Episode
from realm.env.oracle.cache import BOUND_SOURCES, keep_arrays, kept_arrays, key_of

DEFAULT_MAX_STEP = int(options.DEFAULTS["max_step"])
FEW = 6  # treasures; N of them are bounded in seconds, all in two minutes, but that bound serves all later calls

T = TypeVar("T")

# ---- layouts ----


def all_layouts(env: Mapping[str, Any]) -> list[Episode]:
    """Every choice of as many treasures as the table [env] has: 715 for nine of them."""
    base = _base(env)
    return [_with(base, ids) for ids in itertools.combinations(_treasures(base), base.treasure_num)]


def all_sets(env: Mapping[str, Any]) -> list[Episode]:
    """Every set of treasures, 8 192 of them: the largest first, as their episodes are the longest."""
    base = _base(env)
    ids = _treasures(base)
    return [_with(base, some) for n in range(len(ids), -1, -1) for some in itertools.combinations(ids, n)]


def sampled_layouts(env: Mapping[str, Any], number: int, seed: int) -> list[Episode]:
    """So many episodes as the table [env] draws them."""
    games = Games(min(number, 256), options.of_table(env), env.get("layouts"), env.get("map", "default"))
    games.seed([seed + e for e in range(len(games.state.x))])
    state, found = games.state, list[Episode]()
    while len(found) < number:
        games.reset()
        for e in range(len(state.x)):
            ids = tuple(int(i) for i in np.flatnonzero(state.planned[e]))
            found.append(Episode(int(state.start[e]), int(state.end[e]), int(state.max_step[e]), len(ids), ids))
    return found[:number]


def as_option(layout: Episode) -> dict[str, Any]:
    """A layout as the usr_conf that the environment takes."""
    return {
        "start": layout.start,
        "end": layout.end,
        "max_step": layout.max_step,
        "treasure_random": 0,
        "treasure_id": list(layout.treasure_id or ()),
    }


def _base(env: Mapping[str, Any]) -> Episode:
    return options.parse(options.of_table(env))


def _treasures(base: Episode) -> list[int]:
    return [i for i in options.IDS if i not in (base.start, base.end)]


def _with(base: Episode, ids: Sequence[int]) -> Episode:
    return replace(base, treasure_num=len(ids), treasure_id=tuple(ids))


# ---- the oracle ----


class Limits(NamedTuple):
    """What the oracle reaches in each of K layouts."""

    score: Array  # f64 [K]
    steps: Array  # i64 [K], with all treasures taken; 0 where it does not take all


def bound_limits(
    map_: Map, layouts: Sequence[Episode], cache: Path | None, show: Callable[[float], None] | None = None
) -> Limits:
    """The bound: no policy can score more, or take everything in fewer steps.

    cache: a folder. Each pair of start and end takes about two minutes unless it is there, or comes with the map.
    show: gets the share of the pairs that is done, 0..1.
    """
    score, steps = np.zeros(len(layouts)), np.zeros(len(layouts), np.int64)
    pairs = sorted({(one.start, one.end) for one in layouts})
    for n, (start, end) in enumerate(pairs):
        of_pair = [k for k, one in enumerate(layouts) if (one.start, one.end) == (start, end)]
        ids, longest = _extent([layouts[k] for k in of_pair])
        known = _every_bound(map_, start, end, ids, longest, cache, _share_of(show, n, len(pairs)))
        # what is best to take when time is short depends on max_step
        best = {limit: oracle.bounds(known, limit)[0] for limit in {layouts[k].max_step for k in of_pair}}
        for k in of_pair:
            index = oracle.set_index(known, layouts[k].treasure_id or ())
            score[k] = best[layouts[k].max_step][index]
            if known.steps[index] <= layouts[k].max_step:
                steps[k] = known.steps[index]
    return Limits(score, steps)


def executed_limits(
    map_: Map, layouts: Sequence[Episode], cache: Path | None, show: Callable[[int, int], None] | None = None
) -> Limits:
    """The oracle's own play of each layout, which a policy may beat.

    Takes a few tenths of a second for each one that is not in the cache, and about two minutes for each pair of
    start and end. show: gets how many layouts are done, and how many of these had to be played.
    """
    score, steps = np.zeros(len(layouts)), np.zeros(len(layouts), np.int64)
    done = played = new = 0
    group: list[int] = []  # the layouts with one start, end and max_step

    def report(so_far: int, of: int) -> None:
        nonlocal new
        new = so_far
        if show:
            show(done + len(group) - of + new, played + new)

    for start, end in sorted({(one.start, one.end) for one in layouts}):
        of_pair = [k for k, one in enumerate(layouts) if (one.start, one.end) == (start, end)]
        ids, longest = _extent([layouts[k] for k in of_pair])
        known = _kept(cache, partial(oracle.make_oracle, map_, start, end, ids, longest))
        for limit in sorted({layouts[k].max_step for k in of_pair}):
            group, new = [k for k in of_pair if layouts[k].max_step == limit], 0
            sets = [oracle.set_index(known, layouts[k].treasure_id or ()) for k in group]
            found = _kept(cache, partial(oracle.play_sets, known, sets, max_step=limit, report=report))
            everything = (found.score > 0) & (found.treasures == [len(layouts[k].treasure_id or ()) for k in group])
            score[group], steps[group] = found.score, np.where(everything, found.steps, 0)
            done, played = done + len(group), played + new
            if show:
                show(done, played)
    return Limits(score, steps)


def _extent(layouts: Sequence[Episode]) -> tuple[list[int], int]:
    """Treasures and max_step that an oracle needs for layouts with one start and end."""
    ids = sorted({i for one in layouts for i in one.treasure_id or ()})
    return ids if len(ids) <= FEW else _treasures(layouts[0]), max(DEFAULT_MAX_STEP, *(one.max_step for one in layouts))


def _share_of(show: Callable[[float], None] | None, n: int, parts: int) -> Callable[[float], None] | None:
    return show and (lambda done: show((n + done) / parts))


def _every_bound(
    map_: Map,
    start: int,
    end: int,
    ids: Sequence[int],
    max_step: int,
    cache: Path | None,
    show: Callable[[float], None] | None,
) -> oracle.Oracle:
    """An oracle that knows the least steps of all sets; from a file it knows nothing else (its ways are empty)."""
    file = cache and cache / f"bounds-{key_of(map_, (start, end, max_step, *ids), BOUND_SOURCES)}.npz"
    kept = kept_arrays(shipped_bounds(map_, start, end, ids, max_step)) or (kept_arrays(file) if file else None)
    if kept is not None:
        ways, block, value = (
            np.zeros((2, 0, 0, 0), np.int32),
            np.zeros(0, np.int32),
            np.zeros((1, 0, 0, 0), np.int32),
        )
        return oracle.Oracle(
            map_, start, end, tuple(ids), max_step, block, ways, ways[0], value, value[0], kept["steps"]
        )
    found = oracle.make_oracle(map_, start, end, ids, max_step, report=show)
    if file:
        with suppress(OSError):  # where nothing can be kept, it is made again
            keep_arrays(file, steps=found.steps)
    return found


def shipped_bounds(map_: Map, start: int, end: int, ids: Sequence[int], max_step: int) -> Path:
    """The file of these bounds, if they came with the default map: i32 [2**n] under the name `steps`, as in
    `oracle.Oracle`. Its name is a hash of the question and of the map, so another question or map finds no file."""
    return maps.DEFAULT_DIR / f"bounds-{key_of(map_, (start, end, max_step, *ids), ())}.npz"


def _kept(cache: Path | None, ask: Callable[..., T]) -> T:
    """What the oracle says, with its cache; without, where that cannot be written."""
    try:
        return ask(cache=cache)
    except OSError as error:
        if cache is None:
            raise
        logger.warning("the oracle's files in {} cannot be used, it does without them: {}", cache, error)
        return ask(cache=None)


# ---- regret ----


def regret(played: Outcome, limits: Limits) -> Array:
    """The oracle's score minus the agent's, f64 [K]."""
    result: Array = limits.score - played.score
    return result


def excess(played: Outcome, limits: Limits) -> Array:
    """How many per cent more steps than the oracle's, f64 [K]; nan where something was left, by the agent or by it."""
    whole = played.reached_end & (played.missed == 0) & (limits.steps > 0)
    result: Array = np.full(len(whole), np.nan)
    result[whole] = 100 * (played.steps[whole] / limits.steps[whole] - 1)
    return result


class ReportRow(NamedTuple):
    """A line of the table: the layouts with one number of treasures."""

    treasures: int | None  # None: all layouts
    episodes: int
    reached_end: float  # share
    missed: float  # mean, as are the next three
    steps: float
    score: float
    regret: float
    worst_regret: float
    worst: int  # index of that layout
    excess: float | None  # per cent, mean over the episodes in which everything was taken
    worst_excess: float | None


def rows(layouts: Sequence[Episode], played: Outcome, limits: Limits) -> list[ReportRow]:
    """The table: a line for each number of treasures, and one for all if there is more than one."""
    number = np.array([layout.treasure_num for layout in layouts])
    lost, more = regret(played, limits), excess(played, limits)
    kinds: list[int | None] = [int(n) for n in np.unique(number)]
    table = []
    for kind in [*kinds, None] if len(kinds) > 1 else kinds:
        k = np.flatnonzero((number == kind) | (kind is None))
        worst, known = int(k[lost[k].argmax()]), more[k][~np.isnan(more[k])]
        table.append(
            ReportRow(
                treasures=kind,
                episodes=len(k),
                reached_end=float(played.reached_end[k].mean()),
                missed=float(played.missed[k].mean()),
                steps=float(played.steps[k].mean()),
                score=float(played.score[k].mean()),
                regret=float(lost[k].mean()),
                worst_regret=float(lost[worst]),
                worst=worst,
                excess=float(known.mean()) if len(known) else None,
                worst_excess=float(known.max()) if len(known) else None,
            )
        )
    return table


def worst_layouts(played: Outcome, limits: Limits, number: int) -> list[int]:
    """The layouts with the greatest regret, worst first."""
    return [int(k) for k in np.argsort(-regret(played, limits), kind="stable")[:number]]


def resolve_map(env: Mapping[str, Any]) -> Map:
    """The map of the table [env]."""
    return maps.resolve(env.get("map", "default"))
