"""`realm runs`: every run with how far it came, its best model, its state, size and date."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from realm.commands.control import warn
from realm.commands.files import below
from realm.commands.status import look, state_of
from realm.launch.rundir import RunFile, find_runs
from realm.learn.outcome import best_model, newest_model
from realm.watch.status import named, say, table

HEADING = ("run", "state", "env steps", "updates", "best", "size", "started")
RIGHT = frozenset({2, 3, 4, 5})


def list_runs(log_dir: Path) -> int:
    """Print a line for each run, oldest first."""
    runs = find_runs(log_dir, warn)
    if not runs:
        say(f"{log_dir}: no run is there yet")
        return 0
    say(*table(overview(runs), RIGHT))
    return 0


def overview(runs: Sequence[tuple[Path, RunFile]]) -> list[tuple[str, ...]]:
    """The heading, and a row for each run."""
    return [HEADING, *(_row(path, run) for path, run in runs)]


def _row(path: Path, run: RunFile) -> tuple[str, ...]:
    state, newest, best = state_of(run), newest_model(path), best_model(path)
    env_steps, updates = (newest.env_steps, newest.update) if newest else (0, 0)
    if state == "running" and (status := look(path, run).status):  # its newest checkpoint may be old
        env_steps, updates = status.env_steps, status.updates
    scored = best.scored if best else None
    return (
        path.name,
        state,
        f"{env_steps:,}",
        f"{updates:,}",
        f"{named(scored.statistic)} {scored.score:.1f}" if scored else "-",
        megabytes(path),
        time.strftime("%Y-%m-%d %H:%M", time.localtime(run.started)) if run.started else "-",
    )


def megabytes(folder: Path) -> str:
    """What the files below a folder hold."""
    return f"{sum(file.st_size for file in below(folder)) / 1e6:,.1f} MB"
