"""The realm's report of `realm eval`: layouts against the oracle, as tables, as columns of a file, and as a picture.

`evaluate` is called with a model that is ready to play; `realm/env/report.py` has the numbers, the helpers of
`realm/commands/evaluate.py` print and write them.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from realm.commands.evaluate import ROUNDS, Candidate, make_console, title_of, write_json
from realm.commands.parser import writing
from realm.env import draw, report
from realm.env.draw.regrets import Curve, Tile, draw_evaluation
from realm.env.layouts import Outcome, evaluate_layouts, plays_layouts
from realm.env.map import Map
from realm.env.options import Episode
from realm.env.oracle import CACHE
from realm.env.realm_env import RealmEnv
from realm.env.report import Limits, ReportRow
from realm.errors import ConfigError
from realm.watch.progress import busy, counting, measuring

ORACLES = {
    False: "regret and excess are against the oracle's bound, which no policy can beat and none may reach",
    True: "regret and excess are against the oracle's executed play",
}
MORE_STATS = ("treasures", "flashes", "buffs", "walls")


class Findings(NamedTuple):
    """All that the report is about. Rounds are in the order of `Request.explores`."""

    map: Map
    layouts: list[Episode]  # [K]
    limits: Limits
    names: list[str]  # of the rounds
    rounds: list[Outcome]
    tables: list[list[ReportRow]]  # of the rounds
    worst: list[int]  # layouts with the greatest regret in the first round, worst first


def evaluate(candidate: Candidate, options: argparse.Namespace) -> bool:
    """Play, print and write; False, before any of that, where the oracle is not asked or cannot be, unless layouts are
    asked for."""
    console = make_console()
    if options.no_oracle and not (options.all or options.sets):
        return False
    if why := _unfit(candidate):
        asked = {name: getattr(options, name) for name in ("all", "sets", "executed", "out")}
        for name, value in asked.items():
            if value:
                raise ConfigError(f"--{name}: {why}")
        if isinstance(candidate.config.env.get("map"), list):
            console.print(f"without the oracle: {why}")
        return False
    played = _play(candidate, options)
    kind = f"{title_of(candidate.checkpoint)}: {_kind(candidate, options, played)}"
    console.print(kind)
    against = "without the oracle" if options.no_oracle else ORACLES[options.executed]
    console.print(f"map {played.map.name}, {_places(played.layouts)}; {against}")
    for view in _scores(played) if options.no_oracle else _tables(played, console):
        console.print(view)
    if played.worst:
        console.print(_worst_table(played))
    for name, outcome in zip(played.names, played.rounds, strict=True):
        means = ", ".join(f"{key} {outcome.stats[key].mean():.2f}" for key in MORE_STATS if key in outcome.stats)
        console.print(f"mean of an episode, {name}: {means}")
    _write_json(candidate, options, played)
    if options.out:
        with busy("drawing"):
            picture = draw_evaluation(kind, ORACLES[options.executed], _curves(played), _tiles(played))
            with writing(options.out):
                draw.write_png(picture, options.out)
        console.print(f"drawn in {options.out} ({options.out.stat().st_size / 1e6:.1f} MB)")
    return True


def _unfit(candidate: Candidate) -> str:
    """Why the oracle cannot be asked about these environments; empty if it can."""
    maps = candidate.config.env.get("map")
    if isinstance(maps, list):
        return f"the oracle is asked about one map, and [env] has {len(maps)}: --set eval_env.map={maps[0]} takes one"
    if not plays_layouts(candidate.envs):
        return f"needs the realm, and the environments of {candidate.config.app.algo} play no layouts of it"
    return ""


def _play(candidate: Candidate, options: argparse.Namespace) -> Findings:
    """Ask the oracle about the layouts, and play them in each round."""
    env, request = candidate.config.env, candidate.request
    map_ = report.resolve_map(env)
    if options.all:
        layouts = report.all_layouts(env)
    elif options.sets:
        layouts = report.all_sets(env)
    else:
        layouts = report.sampled_layouts(env, candidate.episodes, request.seed)
    if options.no_oracle:
        limits = Limits(np.full(len(layouts), np.nan), np.zeros(len(layouts), np.int64))
    elif options.executed:
        with counting("the oracle's play", len(layouts), "layouts") as show:
            limits = report.executed_limits(map_, layouts, CACHE, show)
    else:
        with measuring("the oracle's bounds of this map, once") as share:
            limits = report.bound_limits(map_, layouts, CACHE, share)
    confs = [report.as_option(layout) for layout in layouts]
    rounds = list[Outcome]()
    for explore in request.explores:
        keep = options.out is not None and not rounds  # the picture shows routes of the first round
        with counting(ROUNDS[explore], len(layouts)) as show:
            rounds.append(evaluate_layouts(candidate.envs, candidate.predict, confs, explore, request.seed, show, keep))
    first: dict[Episode, int] = {}  # a layout that was drawn twice is named once
    for k in report.worst_layouts(rounds[0], limits, len(layouts)):
        first.setdefault(layouts[k], k)
    return Findings(
        map_,
        layouts,
        limits,
        [ROUNDS[explore] for explore in request.explores],
        rounds,
        [report.rows(layouts, outcome, limits) for outcome in rounds],
        [] if options.no_oracle else list(first.values())[: options.worst],
    )


# ---- what is printed ----


def _kind(candidate: Candidate, options: argparse.Namespace, played: Findings) -> str:
    how, count = " and ".join(played.names), f"{len(played.layouts):,}"
    if options.all:
        return f"all {count} layouts of {played.layouts[0].treasure_num} treasures, {how}"
    if options.sets:
        return f"all {count} sets of treasures, {how}"
    return f"{count} episodes as [env] has them, {how}, seed {candidate.request.seed}"


def _places(layouts: Sequence[Episode]) -> str:
    pairs = {(layout.start, layout.end) for layout in layouts}
    if len(pairs) > 1:
        return f"{len(pairs)} pairs of start and end"
    ((start, end),) = pairs
    return f"start {start}, end {end}"


def _ids(layout: Episode) -> str:
    return ",".join(map(str, layout.treasure_id or ())) or "none"


def _number(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _add_numbers(view: Table, *names: str) -> None:
    for name in names:
        view.add_column(name, justify="right", no_wrap=True)


def _tables(played: Findings, console: Console) -> list[Table]:
    """One table if the terminal is wide enough, else one for each group of columns: nothing is cut."""
    whole = _table(played)
    if console.measure(whole, options=console.options.update(width=1000)).maximum <= console.width:
        return [whole]
    return [_table(played, group) for group in range(1 + len(played.names))]


def _scores(played: Findings) -> list[Table]:
    """What needs no oracle, a table for each round."""
    rounds = zip(played.names, played.tables, strict=True)
    return [_table(played._replace(names=[name], tables=[rows]), 0) for name, rows in rounds]


def _table(played: Findings, group: int | None = None) -> Table:
    """A line for each number of treasures: all of the first round, and next to it less of the second. group: only these
    columns: 0 has scores, 1 regrets, 2 those of the second round."""
    heads: list[tuple[str, ...]] = [
        ("episodes", "end %", "missed", "steps", "score"),
        ("regret", "worst", "excess %", "worst", "worst layout"),
    ]
    for name in played.names[1:]:
        keys = ("end %", "missed", "score", "regret", "worst")
        heads.append(tuple(f"{name.split()[0]}:\n{key}" for key in keys))
    shown = range(len(heads)) if group is None else (group,)
    view = Table(box=box.SIMPLE_HEAD)
    _add_numbers(view, "treasures")
    for name in (name for k in shown for name in heads[k]):
        view.add_column(name, justify="left" if name == "worst layout" else "right", no_wrap=True)
    for lines in zip(*played.tables, strict=True):
        row, last = lines[0], lines[0].treasures is None
        cells = [
            [f"{row.episodes:,}", _number(100 * row.reached_end), _number(row.missed, 2), _number(row.steps),
             _number(row.score, 2)],
            [_number(row.regret, 2), _number(row.worst_regret), _number(row.excess), _number(row.worst_excess),
             _ids(played.layouts[row.worst])],
        ]  # fmt: skip
        for other in lines[1:]:
            numbers = [_number(100 * other.reached_end), _number(other.missed, 2), _number(other.score, 2)]
            cells.append([*numbers, _number(other.regret, 2), _number(other.worst_regret)])
        if last:
            view.add_section()
        view.add_row("all" if last else str(row.treasures), *(cell for k in shown for cell in cells[k]))
    return view


def _worst_table(played: Findings) -> Table:
    outcome, limits = played.rounds[0], played.limits
    title = f"the worst layouts, {played.names[0]}"
    view = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))  # 80 columns
    _add_numbers(view, "regret", "score", "oracle", "steps", "oracle", "missed")
    view.add_column("", no_wrap=True)
    view.add_column("treasures", overflow="fold")
    for k in played.worst:
        score, steps = float(outcome.score[k]), int(outcome.steps[k])
        end = "" if outcome.reached_end[k] else "out of time"
        least = f"{limits.steps[k]}" if limits.steps[k] else "-"
        numbers = [_number(limits.score[k] - score), _number(score), _number(limits.score[k]), str(steps), least]
        view.add_row(*numbers, str(outcome.missed[k]), end, _ids(played.layouts[k]))
    return view


# ---- what is written ----


def _write_json(candidate: Candidate, options: argparse.Namespace, played: Findings) -> None:
    explores = candidate.request.explores
    no_oracle = ("regret", "worst_regret", "worst", "excess", "worst_excess") if options.no_oracle else ()
    rows = [
        {"explore": explore, **{key: value for key, value in row._asdict().items() if key not in no_oracle}}
        for explore, lines in zip(explores, played.tables, strict=True)
        for row in lines
    ]
    oracle = None if options.no_oracle else "executed" if options.executed else "bound"
    more = {"map": played.map.name, "oracle": oracle, "table": rows}
    columns = [
        _columns(played.layouts, outcome, None if options.no_oracle else played.limits) for outcome in played.rounds
    ]
    write_json(candidate, columns, more)


def _columns(layouts: Sequence[Episode], outcome: Outcome, limits: Limits | None) -> dict[str, list[Any]]:
    """Column name -> a value for each episode of a round."""
    columns: dict[str, list[Any]] = {
        name: [getattr(layout, name) for layout in layouts] for name in ("start", "end", "max_step")
    }
    columns["treasure_id"] = [list(layout.treasure_id or ()) for layout in layouts]
    columns |= {name: values.tolist() for name, values in outcome.stats.items() if name not in ("layout", "turn")}
    if limits is None:
        return columns
    columns["oracle_score"] = limits.score.tolist()
    columns["oracle_steps"] = [int(steps) or None for steps in limits.steps]
    columns["regret"] = report.regret(outcome, limits).tolist()
    columns["excess_percent"] = [None if value != value else float(value) for value in report.excess(outcome, limits)]
    return columns


FIGURES: dict[str, Callable[[ReportRow], str]] = {
    "mean score": lambda row: f"{row.score:,.2f}",
    "mean regret": lambda row: f"{row.regret:,.2f}",
    "worst regret": lambda row: f"{row.worst_regret:,.1f}",
    "reached the end": lambda row: f"{100 * row.reached_end:.1f} %",
    "missed treasures": lambda row: f"{row.missed:.2f}",
    "mean steps": lambda row: f"{row.steps:,.1f}",
    "excess steps, mean": lambda row: "-" if row.excess is None else f"{row.excess:.1f} %",
    "excess steps, worst": lambda row: "-" if row.worst_excess is None else f"{row.worst_excess:.1f} %",
}
"""The figures of the picture, out of the last row of a round's table."""


def _curves(played: Findings) -> list[Curve]:
    return [
        Curve(name, report.regret(outcome, played.limits), {key: text(rows[-1]) for key, text in FIGURES.items()})
        for name, outcome, rows in zip(played.names, played.rounds, played.tables, strict=True)
    ]


def _tiles(played: Findings) -> list[Tile]:
    """The routes of the worst layouts."""
    outcome, limits, tiles = played.rounds[0], played.limits, []
    for k in played.worst:
        env = RealmEnv(report.as_option(played.layouts[k]), map=played.map, observation="none")
        note = f"oracle {limits.score[k]:,.1f}" + (f" in {limits.steps[k]} steps" if limits.steps[k] else "")
        ids = ",".join(map(str, played.layouts[k].treasure_id or ()))
        regret = float(limits.score[k] - outcome.score[k])
        tiles.append(Tile(draw.record(env, outcome.actions[k]), regret, ids, note))
    return tiles
