"""The command `realm eval`: plays a trained model, prints how well it does, and writes that to files if asked to.

Called by the command line with plain values. Environments of the realm get a table against the oracle
(`eval_report.py`, `eval_picture.py`), all others the statistics of their episodes. What a user got wrong is a
ConfigError of one sentence.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich import box
from rich.console import Console
from rich.table import Table

from realm.config.load import EVAL_SEED, RunConfig
from realm.contract import Array
from realm.errors import ConfigError
from realm.learn.evaluate import Outcome, Predict, evaluate, evaluate_layouts, load_player, plays_layouts, table
from realm.watch.progress import busy, counting

if TYPE_CHECKING:
    from realm.env.eval_report import Limits, Row
    from realm.env.options import Episode
    from realm.learn.checkpoint import Checkpoint

NUM_ENVS = {"sample": 256, "all": 512, "sets": 512}
LOG_WIDTH = 200  # columns where nobody watches: nothing is wrapped there
ACTIONS = {0.0: "best actions", 1.0: "drawn actions"}  # by `explore`


@dataclass(frozen=True)
class Request:
    """What an evaluation shall do with its model."""

    which: Literal["sample", "all", "sets"] = "sample"
    episodes: int = 0  # of a sample; 0: eval_episodes of the configuration
    explores: tuple[float, ...] = (0.0,)  # 0 takes the best action, 1 draws from the policy; one round for each
    seed: int = EVAL_SEED
    executed: bool = False  # against the oracle's own play instead of its bound
    worst: int = 6  # how many of the worst layouts to list and to draw
    json: Path | None = None
    out: Path | None = None  # the picture

    def check(self) -> None:
        """Refuse what cannot be done, before all episodes are played and not after."""
        if self.episodes < 0:
            raise ConfigError(f"--episodes {self.episodes}: allowed is a number from 1, or 0 for eval_episodes")
        if not 0 <= self.worst <= 60:
            raise ConfigError(f"--worst {self.worst}: allowed is a number from 0 to 60")
        if self.out and self.out.suffix.lower() != ".png":
            raise ConfigError(f"--out {self.out}: the name must end in .png")
        for name, path in (("json", self.json), ("out", self.out)):
            check_file(f"--{name}", path)


def check_file(option: str, path: Path | None) -> None:
    """Refuse a file that cannot be written, before the work that goes into it."""
    if path and (path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK)):
        raise ConfigError(f"{option} {path}: cannot be written; allowed is a file in a folder that is there")


def evaluate_model(config: RunConfig, folder: Path, model: int | Literal["latest"], request: Request) -> None:
    """Play a checkpoint of `folder` (of checkpoints, or one itself), print the table, write the files."""
    from realm.errors import CheckpointError  # late: torch
    from realm.learn.checkpoint import find  # late: torch

    request.check()
    try:
        checkpoint = find(folder, model)
        episodes = request.episodes or config.app.eval_episodes
        num_envs = NUM_ENVS[request.which]
        if request.which == "sample":
            num_envs = min(num_envs, episodes)
        envs, agent = load_player(config, checkpoint, config.env, num_envs, request.seed)
    except CheckpointError as error:
        raise ConfigError(str(error)) from None
    try:
        if plays_layouts(envs):
            _evaluate_realm(config, checkpoint, envs, agent.predict, episodes, request)
        else:
            _evaluate_any(config, checkpoint, envs, agent.predict, episodes, request)
    finally:
        envs.close()


def _evaluate_any(
    config: RunConfig, checkpoint: Checkpoint, envs: Any, predict: Predict, episodes: int, request: Request
) -> None:
    """Statistics of any user's environment."""
    asked = {"--all": request.which == "all", "--sets": request.which == "sets", "--executed": request.executed}
    asked["--out"] = request.out is not None
    why = f"needs the realm, and the environments of {config.app.algo} play no layouts of it"
    maps = config.env.get("map")
    if isinstance(maps, list):
        why = (
            f"the oracle is asked about one map, and [env] has {len(maps)}: --set env.map={maps[0]} takes one, and "
            "tools/study/unseen_maps.py plays maps one by one"
        )
    for name, wanted in asked.items():
        if wanted:
            raise ConfigError(f"{name}: {why}")
    console, rounds = _console(), list[dict[str, Array]]()
    if isinstance(maps, list):
        console.print(f"without the oracle: {why}")
    for explore in request.explores:
        with counting(ACTIONS[explore], episodes) as show:
            statistics = evaluate(config, envs, predict, episodes, explore, request.seed, show)
        rounds.append(statistics)
        what = f"{episodes} episodes, {ACTIONS[explore]}, seed {request.seed}"
        view = Table("statistic", "mean", "± s.e.", "least", "greatest", title=f"{_title(checkpoint)}, {what}")
        for name, *numbers in table(statistics):
            view.add_row(name, *(f"{one:,.2f}" for one in numbers))
        console.print(view)
    columns = [{name: values.tolist() for name, values in one.items()} for one in rounds]
    _write_json(request, checkpoint, columns, {})


def _evaluate_realm(
    config: RunConfig, checkpoint: Checkpoint, envs: Any, predict: Predict, episodes: int, request: Request
) -> None:
    """Layouts of the realm, against the oracle."""
    from realm.env import eval_report as report  # late: other environments do without
    from realm.env.commands import CACHE, in_one_sentence

    env = config.env
    with in_one_sentence():
        map_ = report.resolve_map(env)
        if request.which == "all":
            layouts = report.all_layouts(env)
        elif request.which == "sets":
            layouts = report.all_sets(env)
        else:
            layouts = report.sampled_layouts(env, episodes, request.seed)
    if request.executed:
        with counting("the oracle's play", len(layouts), "layouts") as show:
            limits = report.executed_limits(map_, layouts, CACHE, show)
    else:
        with busy("the oracle's bounds (once for a map, a start and an end: about two minutes)"):
            limits = report.bound_limits(map_, layouts, CACHE)
    rounds = list[Outcome]()
    for explore in request.explores:
        with counting(ACTIONS[explore], len(layouts)) as show:
            options = [report.as_option(one) for one in layouts]
            keep = request.out is not None and not rounds
            rounds.append(evaluate_layouts(envs, predict, options, explore, request.seed, show, keep))
    tables = [report.rows(layouts, played, limits) for played in rounds]
    worst = report.worst_layouts(rounds[0], limits, request.worst)

    console = _console()
    console.print(f"{_title(checkpoint)}: {_kind(layouts, request)}")
    console.print(f"map {map_.name}, {_places(layouts)}; {ORACLES[request.executed]}")
    console.print(_table(layouts, request.explores, tables))
    if worst:
        console.print(_worst_table(layouts, request.explores[0], rounds[0], limits, worst))
    for explore, played in zip(request.explores, rounds, strict=True):
        means = ", ".join(f"{name} {played.stats[name].mean():.2f}" for name in MORE_STATS if name in played.stats)
        console.print(f"mean of an episode, {ACTIONS[explore]}: {means}")
    columns = [_columns(layouts, played, limits) for played in rounds]
    _write_json(
        request,
        checkpoint,
        columns,
        {
            "map": map_.name,
            "oracle": "executed" if request.executed else "bound",
            "table": [
                {"explore": explore, **row._asdict()}
                for explore, lines in zip(request.explores, tables, strict=True)
                for row in lines
            ],
        },
    )
    if request.out:
        from realm.env import eval_picture

        with busy("drawing"):
            title = f"{_title(checkpoint)}: {_kind(layouts, request)}"
            curves = [(ACTIONS[e], played) for e, played in zip(request.explores, rounds, strict=True)]
            eval_picture.write(request.out, title, ORACLES[request.executed], map_, layouts, curves, limits, worst)
        console.print(f"drawn in {request.out} ({request.out.stat().st_size / 1e6:.1f} MB)")


# ---- what is printed ----

ORACLES = {
    False: "regret and excess are against the oracle's bound, which no policy can beat and none may reach",
    True: "regret and excess are against the oracle's executed play",
}
MORE_STATS = ("treasures", "flashes", "buffs", "walls")


def _title(checkpoint: Checkpoint) -> str:
    return f"{checkpoint.path} ({checkpoint.env_steps:,} env steps)"


def _kind(layouts: Sequence[Episode], request: Request) -> str:
    how = " and ".join(ACTIONS[one] for one in request.explores)
    if request.which == "all":
        return f"all {len(layouts):,} layouts of {layouts[0].treasure_num} treasures, {how}"
    if request.which == "sets":
        return f"all {len(layouts):,} sets of treasures, {how}"
    return f"{len(layouts):,} episodes as [env] has them, {how}, seed {request.seed}"


def _places(layouts: Sequence[Episode]) -> str:
    pairs = {(one.start, one.end) for one in layouts}
    if len(pairs) > 1:
        return f"{len(pairs)} pairs of start and end"
    ((start, end),) = pairs
    return f"start {start}, end {end}"


def _ids(layout: Episode) -> str:
    return ",".join(map(str, layout.treasure_id or ())) or "none"


def _number(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _add_numbers(view: Table, *names: str) -> None:
    for one in names:
        view.add_column(one, justify="right", no_wrap=True)


def _table(layouts: Sequence[Episode], explores: Sequence[float], tables: Sequence[Sequence[Row]]) -> Table:
    """A line for each number of treasures. All of the first round, beside it less of the second."""
    view = Table(box=box.SIMPLE_HEAD)
    _add_numbers(view, "treasures", "episodes", "end %", "missed", "steps", "score")
    _add_numbers(view, "regret", "worst", "excess %", "worst")
    view.add_column("worst layout")
    for explore in explores[1:]:
        name = ACTIONS[explore].split()[0]
        _add_numbers(view, *(f"{name}:\n{what}" for what in ("end %", "missed", "score", "regret", "worst")))
    for lines in zip(*tables, strict=True):
        row, last = lines[0], lines[0].treasures is None
        cells = ["all" if last else str(row.treasures), f"{row.episodes:,}", _number(100 * row.reached_end)]
        cells += [_number(row.missed, 2), _number(row.steps), _number(row.score, 2), _number(row.regret, 2)]
        cells += [_number(row.worst_regret), _number(row.excess), _number(row.worst_excess), _ids(layouts[row.worst])]
        for other in lines[1:]:
            cells += [_number(100 * other.reached_end), _number(other.missed, 2), _number(other.score, 2)]
            cells += [_number(other.regret, 2), _number(other.worst_regret)]
        if last:
            view.add_section()
        view.add_row(*cells)
    return view


def _worst_table(
    layouts: Sequence[Episode], explore: float, played: Outcome, limits: Limits, worst: Sequence[int]
) -> Table:
    view = Table(title=f"the worst layouts, {ACTIONS[explore]}", title_justify="left", box=box.SIMPLE_HEAD)
    _add_numbers(view, "regret", "score", "oracle", "steps", "oracle", "missed")
    view.add_column("")
    view.add_column("treasures")
    for k in worst:
        score, steps = float(played.score[k]), int(played.steps[k])
        end = "" if played.reached_end[k] else "out of time"
        best = f"{limits.steps[k]}" if limits.steps[k] else "-"
        numbers = [_number(limits.score[k] - score), _number(score), _number(limits.score[k]), str(steps), best]
        view.add_row(*numbers, str(played.missed[k]), end, _ids(layouts[k]))
    return view


def _console() -> Console:
    return Console(width=None if sys.stdout.isatty() else LOG_WIDTH, markup=False, highlight=False)


# ---- files ----


def _columns(layouts: Sequence[Episode], played: Outcome, limits: Limits) -> dict[str, list[Any]]:
    """Column name -> a value for each episode of a round."""
    from realm.env.eval_report import excess, regret

    columns: dict[str, list[Any]] = {
        name: [getattr(one, name) for one in layouts] for name in ("start", "end", "max_step")
    }
    columns["treasure_id"] = [list(one.treasure_id or ()) for one in layouts]
    columns |= {name: values.tolist() for name, values in played.stats.items() if name not in ("layout", "turn")}
    columns["oracle_score"] = limits.score.tolist()
    columns["oracle_steps"] = [int(one) or None for one in limits.steps]
    columns["regret"] = regret(played, limits).tolist()
    columns["excess_percent"] = [None if one != one else float(one) for one in excess(played, limits)]
    return columns


def _write_json(
    request: Request, checkpoint: Checkpoint, columns: Sequence[dict[str, list[Any]]], more: dict[str, Any]
) -> None:
    """Every episode, round after round, by columns; `explore` says of which round it is."""
    if request.json is None:
        return
    episodes: dict[str, list[Any]] = {"explore": []}
    for explore, one in zip(request.explores, columns, strict=True):
        for name, values in one.items():
            episodes.setdefault(name, []).extend(values)
        episodes["explore"] += [explore] * len(next(iter(one.values())))
    content = {
        "checkpoint": str(checkpoint.path),
        "version": list(checkpoint.version),
        "env_steps": checkpoint.env_steps,
        "seed": request.seed,
        **more,
        "episodes": episodes,
    }
    request.json.write_text(json.dumps(content))
