"""The commands for all runs of a folder: `realm runs` lists them or deletes old ones, `realm compare` tells them apart.

Nothing is deleted without a yes. A run that lives, a link to another place, models that `realm save` kept, and the
newest best model always stay.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import shutil
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from realm.commands.living import look, state_of, warn
from realm.commands.locate import LOG_DIR_HELP, run_folder, runs_folder
from realm.commands.parser import Commands, check_file, terminal_width
from realm.commands.plot import PICTURES, draw
from realm.config.load import load_config, settings_of
from realm.errors import ConfigError
from realm.launch.rundir import RunFile, find_runs, living_pids, read_run
from realm.learn.results import BEST_FOLDER, best_model, models_in, newest_model
from realm.watch.status import named, say, table

_HEADING = ("run", "state", "env steps", "updates", "best", "size", "started")
_RIGHT = frozenset({2, 3, 4, 5})


def add_commands(commands: Commands) -> None:
    """Add them."""
    text = "list all runs, or delete old ones"
    runs = commands.add_parser("runs", help=text, example="realm runs --prune --keep 10")
    runs.add_argument("--log-dir", help=LOG_DIR_HELP)
    runs.add_argument("--prune", action="store_true", help="show which runs would be deleted, and delete after a yes")
    runs.add_argument("--keep", type=int, metavar="N", help="with --prune: the newest N runs stay")
    runs.add_argument("--yes", action="store_true", help="with --prune: do not ask")
    runs.set_defaults(run=_runs)

    text = "show in which settings runs differ, and what they came to"
    comparing = commands.add_parser("compare", help=text, example="realm compare my-run other-run --out curves.png")
    comparing.add_argument("names", nargs="*", metavar="RUN", help="name or path of a run (default: the newest two)")
    comparing.add_argument("--out", type=Path, help="draw their curves to this .png, .svg or .pdf")
    comparing.add_argument("--log-dir", help=LOG_DIR_HELP)
    comparing.set_defaults(run=_compare)


def _runs(given: argparse.Namespace) -> int:
    folder = runs_folder(given.log_dir)
    if given.prune != (given.keep is not None) or (given.yes and not given.prune):
        raise ConfigError("--prune needs --keep N, and --keep and --yes need --prune")
    if given.prune:
        return prune(folder, given.keep, given.yes)
    runs = find_runs(folder, warn)
    say(*(table(overview(runs), _RIGHT) if runs else [f"{folder}: no run is there yet"]))
    return 0


def _compare(given: argparse.Namespace) -> int:
    folders = [run_folder(name, given.log_dir).resolve() for name in given.names]
    newest = [path for path, _ in reversed(find_runs(runs_folder(given.log_dir))) if path.resolve() not in folders]
    return compare([*folders, *newest[: max(0, 2 - len(folders))]], given.out)


# --- runs


def overview(runs: Sequence[tuple[Path, RunFile]]) -> list[tuple[str, ...]]:
    """The heading, and a row for each run, oldest first."""
    return [_HEADING, *(_row(path, run) for path, run in runs)]


def _row(path: Path, run: RunFile) -> tuple[str, ...]:
    state, newest, best = state_of(run), newest_model(path), best_model(path)
    env_steps, updates = (newest.env_steps, newest.version.update) if newest else (0, 0)
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
    """What the files below a folder hold; what is behind a link does not count."""
    size = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):  # a living run has just deleted it
                size += os.lstat(os.path.join(parent, name)).st_size
    return f"{size / 1e6:,.1f} MB"


# --- compare


def compare(folders: Sequence[Path], out: Path | None) -> int:
    """Print what differs; draw the curves to `out`, if it is given."""
    check_file("--out", out, PICTURES)
    if len(set(folders)) < 2:
        raise ConfigError("realm compare: must be given at least two runs that are not the same")
    names = [path.name for path in folders]
    if len(set(names)) < len(names):
        names = [str(path) for path in folders]
    settings = [settings_of(load_config(path / "config.toml")) for path in folders]
    runs = [(path, run) for path in folders if (run := read_run(path))]
    say(*table(overview(runs), _RIGHT))
    lines = differences(names, settings, terminal_width(120) - 2) or ["none"]
    say("", "settings that differ:", *(f"  {line}" for line in lines))
    if out is None:
        say("", "--out FILE.png draws their curves")
        return 0
    draw({name: [path] for name, path in zip(names, folders, strict=True)}, out)
    say("", f"their curves: {out}")
    return 0


def differences(names: Sequence[str], settings: Sequence[dict[str, str]], width: int) -> list[str]:
    """A line for each key in which the runs differ, as `--set` names keys; below each other if that is too wide."""
    keys = dict.fromkeys(key for one in settings for key in one if key != "run_name")
    rows = [(key, *(one.get(key, "not set") for one in settings)) for key in keys]
    rows = [row for row in rows if len(set(row[1:])) > 1]
    if not rows:
        return []
    lines = table([("", *names), *rows])
    if max(map(len, lines)) <= width:
        return lines
    left = max(map(len, names))
    return [
        line
        for key, *values in rows
        for line in (key, *(f"  {name:<{left}} {value}" for name, value in zip(names, values, strict=True)))
    ]


# --- prune


def why_they_stay(runs: Sequence[tuple[Path, RunFile]], keep: int) -> list[str]:
    """For each run, newest last, why it stays; "" if it is to be deleted. keep: that many of the newest stay."""
    with_best: list[Path] = []
    for name in ("ckpt", BEST_FOLDER):  # best models count, where there are any
        with_best = [path for path, _ in runs if any(one.update for one, _ in models_in(path / name))] or with_best
    reasons = []
    for number, (path, run) in enumerate(runs):
        rules = (
            (bool(living_pids(run)), "it lives"),
            (path.is_symlink(), "it is a link to another place"),
            (bool(models_in(path / "user_ckpt")), "it has models that `realm save` kept"),
            (path in with_best[-1:], "it has the newest best model"),
            (len(runs) - number <= keep, f"among the newest {keep}"),
        )
        reasons.append(next((reason for holds, reason in rules if holds), ""))
    return reasons


def prune(log_dir: Path, keep: int, yes: bool) -> int:
    """Show which runs go and which stay, and delete those that go after a yes. Raises ConfigError."""
    if keep < 0:
        raise ConfigError(f"--keep {keep}: must be a number from 0 on")
    runs = find_runs(log_dir, warn)  # the oldest first
    reasons = why_they_stay(runs, keep)
    heading, *rows = overview(runs)
    words = [f"stays: {reason}" if reason else "goes" for reason in reasons]
    if runs:
        say(*table([(*heading, ""), *((*row, word) for row, word in zip(rows, words, strict=True))], _RIGHT))
    go = [path for (path, _), reason in zip(runs, reasons, strict=True) if not reason]
    if not go:
        say(f"nothing to delete below {log_dir}")
    elif yes or _asked(f"delete {len(go)} of {len(runs)} runs?"):
        for path in go:
            _delete(path)
    else:
        say(f"nothing was deleted; with --yes, {len(go)} of {len(runs)} runs go")
    return 0


def _asked(question: str) -> bool:
    """Whether the user says yes; without a terminal nobody does."""
    with suppress(EOFError):
        return sys.stdin.isatty() and input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
    return False


def _delete(path: Path) -> None:
    """Delete a run, unless one has just started there. Raises ConfigError."""
    try:
        lock = os.open(path / ".lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # a run that is half deleted must not look like one
            aside = path.with_name(f".removing-{path.name}")
            shutil.rmtree(aside, ignore_errors=True)  # of an interrupted one
            os.rename(path, aside)
            shutil.rmtree(aside)
        finally:
            os.close(lock)
        say(f"deleted {path}")
    except BlockingIOError:
        say(f"{path}: stays, a run has just started in it")
    except OSError as error:
        raise ConfigError(f"cannot delete {error.filename or path}: {error.strerror}") from None
