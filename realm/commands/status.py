"""Shows living runs from another terminal: `tools/status.sh`, `realm status` and `realm attach`.

Runs are found by their `run.json`; the numbers come from their supervisor, over the control channel.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from realm.commands.control import ask, warn
from realm.commands.parser import terminal_width
from realm.errors import RunError, one_line
from realm.launch.rundir import RunFile, find_runs, read_run
from realm.learn.outcome import newest_model
from realm.watch.display import display, live_lines
from realm.watch.status import Status, lines, say, table

_WATCH_EVERY_S = 1.0
_LEAVES = "Ctrl+C leaves the run alone"
_WIDTH = 120  # columns where no terminal is


@dataclass(frozen=True)
class Seen:
    """A living run. status: None if its supervisor does not answer or cannot be asked, as `trouble` says, or if the run
    is in one process."""

    path: Path
    run: RunFile
    status: Status | None
    roles: dict[str, Any]
    trouble: str = ""


def show_status(log_dir: Path, watch: bool, as_json: bool) -> int:
    """Print every living run, or the newest ended run if none lives. watch: again and again, until none lives."""
    if as_json:
        print(json.dumps([_plain(path, run) for path, run in _chosen(log_dir)], indent=1))
        return 0
    if watch and sys.stderr.isatty():
        _watch(log_dir)
    seen = living(log_dir, warn)
    while watch and seen:  # no terminal
        say(*_lines(seen, _WIDTH))
        time.sleep(10 * _WATCH_EVERY_S)
        seen = living(log_dir)
    if not seen:
        say(f"no living run below {log_dir}")
        for path, run in find_runs(log_dir, warn)[-1:]:
            say(f"the last run was {path}: {state_of(run)}{f', {run.cause}' if run.cause else ''}")
        return 0
    say(*_lines(seen, terminal_width(_WIDTH)))
    return 0


def attach(run_dir: Path) -> int:
    """Show a living run as its own terminal does, until it ends."""
    unreadable: list[str] = []
    run = read_run(run_dir, unreadable.append)
    if unreadable:
        raise RunError(unreadable[0])
    if run is None or not run.lives():
        raise RunError(f"{run_dir}: does not run; `realm runs` lists all runs, and `realm resume` goes on with one")
    if not run.control:
        raise RunError(f"{run_dir}: trains in one process, which answers no questions; {_saved(run_dir)}")
    with contextlib.suppress(KeyboardInterrupt), display(str(run_dir), _LEAVES) as show:
        while run.lives():
            seen = look(run_dir, run)
            if seen.trouble:
                raise RunError(f"{run_dir}: {seen.trouble}")
            if seen.status is not None:
                show(seen.status)
            time.sleep(_WATCH_EVERY_S / 2)
    if run.lives():
        say(f"{run_dir} goes on")
        return 0
    ended = read_run(run_dir) or run
    say(f"{run_dir}: {state_of(ended)}{f', {ended.cause}' if ended.cause else ''}")
    return 0


def living(log_dir: Path, skipped: Callable[[str], None] | None = None) -> list[Seen]:
    """Every living run with its numbers. skipped: as in `find_runs`."""
    return [look(path, run) for path, run in find_runs(log_dir, skipped) if run.lives()]


def look(path: Path, run: RunFile) -> Seen:
    """Ask a living run for its numbers. One that cannot be asked, such as of another version, hides no other run."""
    if not run.control:
        return Seen(path, run, None, {})
    try:
        if (answer := ask(run, "status", {})) is None:
            return Seen(path, run, None, {})
        return Seen(path, run, msgspec.convert(answer.mapping("status"), Status), answer.mapping("roles"))
    except (RunError, ValueError) as error:  # ValueError: of the keys, of a message, or of what is in it
        return Seen(path, run, None, {}, f"its supervisor cannot be asked: {one_line(error)}")


def state_of(run: RunFile) -> str:
    """Its state; a run that has ended without saying so was killed."""
    if run.state in ("starting", "running", "stopping") and not run.lives():
        return "killed"
    return run.state


def _chosen(log_dir: Path) -> list[tuple[Path, RunFile]]:
    runs = find_runs(log_dir, warn)
    return [(path, run) for path, run in runs if run.lives()] or runs[-1:]


def _plain(path: Path, run: RunFile) -> dict[str, Any]:
    """A run as JSON has it."""
    alive = run.lives()
    seen = look(path, run) if alive else Seen(path, run, None, {})
    return {
        "run": str(path), "alive": alive, "state": state_of(run), "cause": run.cause, "pid": run.pid,
        "status": msgspec.to_builtins(seen.status), "roles": seen.roles, "trouble": seen.trouble,
    }  # fmt: skip


def _watch(log_dir: Path) -> None:
    """Show the living runs at the bottom of the terminal until there is none, or until Ctrl+C."""
    with contextlib.suppress(KeyboardInterrupt), live_lines() as show:
        while seen := living(log_dir):
            show(partial(_lines, seen))
            time.sleep(_WATCH_EVERY_S)


def _lines(runs: list[Seen], width: int) -> list[str]:
    return [line for seen in runs for line in ("", *_lines_of(seen, width))][1:]


def _saved(path: Path) -> str:
    """How far a run had come at its newest checkpoint."""
    newest = newest_model(path)
    return f"its newest model has {newest.env_steps:,} env steps" if newest else "it has saved no model yet"


def _lines_of(seen: Seen, width: int) -> list[str]:
    run = seen.run
    head = f"{seen.path}: {run.state}, pid {run.pid}"
    if seen.status is None:
        why = seen.trouble or "its supervisor does not answer"
        return [head, f"  {why if run.control else f'in one process; {_saved(seen.path)}'}"]
    rows = [("role", "state", "pid", "starts", "messages", "memory", "address")]
    for label, role in seen.roles.items():
        totals: dict[str, float] = role["totals"]
        messages, memory = totals.get("wire/messages_in", 0), totals.get("rss_mb", 0)
        used = f"{memory:,.0f} MB" if memory else "-"  # it has sent no report yet
        numbers = str(role["pid"]), str(role["incarnation"]), f"{messages:,.0f}", used
        state = "starting" if role["state"] == "bound" else role["state"]
        rows.append((label, state, *numbers, role["address"].removeprefix("tcp://")))
    roles = [f"  {line}" for line in table(rows, right=frozenset({2, 3, 4, 5}))]
    return [head, *lines(seen.status, width), *roles]
