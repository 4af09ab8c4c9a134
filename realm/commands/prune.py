"""`realm runs --prune`: deletes old runs of a folder.

Nothing is deleted without a yes. A run that lives, a link to another place, models that `realm save` kept, and the
newest best model always stay.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from realm.commands.control import warn
from realm.commands.files import below
from realm.commands.status import state_of
from realm.errors import ConfigError
from realm.launch.rundir import RunFile, find_runs, living_pids
from realm.learn.outcome import BEST_FOLDER, models_in
from realm.watch.resources import in_words
from realm.watch.status import say

_DAY_S = 86_400.0


@dataclass(frozen=True)
class Found:
    """One run of a folder.

    used_at          when its run.json was written last, in seconds of the wall clock
    link             it is a link to another place
    best, ckpt, kept whether it has a best model, checkpoints, models that `realm save` kept
    size             bytes on the disk
    """

    path: Path
    state: str
    used_at: float
    lives: bool = False
    link: bool = False
    best: bool = False
    ckpt: bool = False
    kept: bool = False
    size: int = 0


def why_they_stay(runs: Sequence[Found], keep: int | None, older_than: float | None, now: float) -> list[str]:
    """For each run, newest last, why it stays; "" if it is to be deleted.

    keep: that many of the newest stay. older_than: days; younger ones stay. now: seconds of the wall clock.
    """
    with_best = [run for run in runs if run.best] or [run for run in runs if run.ckpt]
    reasons = []
    for number, run in enumerate(runs):
        rules = (
            (run.lives, "it lives"),
            (run.link, "it is a link to another place"),
            (run.kept, "it has models that `realm save` kept"),
            (run in with_best[-1:], "it has the newest best model"),
            (keep is not None and len(runs) - number <= keep, f"among the newest {keep}"),
            (older_than is not None and now - run.used_at < older_than * _DAY_S, "too young"),
        )
        reasons.append(next((reason for holds, reason in rules if holds), ""))
    return reasons


def prune(log_dir: Path, keep: int | None, older_than: float | None, yes: bool) -> int:
    """Show which runs go and which stay, and delete those that go after a yes. Raises ConfigError."""
    if keep is None and older_than is None:
        raise ConfigError("--prune needs --keep N, --older-than DAYS, or both")
    if (keep or 0) < 0 or not 0 <= (older_than or 0.0) < 1e9:
        raise ConfigError("--keep and --older-than must be numbers from 0 on")
    runs = _look(log_dir)
    reasons = why_they_stay(runs, keep, older_than, time.time())
    go = [run for run, reason in zip(runs, reasons, strict=True) if not reason]
    for run, reason in zip(runs, reasons, strict=True):
        say(_row(run, f"stays: {reason}" if reason else "goes"))
    size = in_words(sum(run.size for run in go))
    if not go:
        say(f"nothing to delete below {log_dir}")
        return 0
    if not yes and not _asked(f"delete {len(go)} of {len(runs)} runs, {size}?"):
        say(f"nothing was deleted; with --yes, {len(go)} of {len(runs)} runs go, {size}")
        return 0
    for run in go:
        _delete(run.path)
    return 0


def _look(log_dir: Path) -> list[Found]:
    """The runs of a folder, oldest first."""
    return [_found(path, run) for path, run in find_runs(log_dir, warn)]


def _found(path: Path, run: RunFile) -> Found:
    return Found(
        path,
        state_of(run),
        (path / "run.json").stat().st_mtime,
        lives=bool(living_pids(run)),
        link=path.is_symlink(),
        best=bool(models_in(path / BEST_FOLDER)),
        ckpt=bool(models_in(path / "ckpt")),
        kept=bool(models_in(path / "user_ckpt")),
        size=0 if path.is_symlink() else sum(file.st_blocks * 512 for file in below(path)),
    )


def _row(run: Found, words: str) -> str:
    days = max(0.0, time.time() - run.used_at) / _DAY_S
    state = "living" if run.lives else run.state
    return f"{run.path.name:<24} {state:<9} {days:6.1f} days {in_words(run.size):>10}  {words}".rstrip()


def _asked(question: str) -> bool:
    """Whether the user says yes; without a terminal nobody does."""
    if not sys.stdin.isatty():
        return False
    try:
        return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        return False


def _delete(path: Path) -> None:
    """Delete a run, unless one has just started there. Raises ConfigError."""
    try:
        lock = os.open(path / ".lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # a run that is half deleted must not look like one
            aside = path.with_name(f".removing-{path.name}")
            os.rename(path, aside)
            shutil.rmtree(aside)
        finally:
            os.close(lock)
        say(f"deleted {path}")
    except BlockingIOError:
        say(f"{path}: stays, a run has just started in it")
    except OSError as error:
        raise ConfigError(f"cannot delete {error.filename or path}: {error.strerror}") from None
