"""`realm start --seeds 1 2 3`: a run for each seed, one after the other, and what they came to.

Each run is a `realm start` in a process of its own, as are the trials of `realm sweep`. A run that has come to its end
is left alone, so the same command goes on where an earlier one was stopped.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from realm.commands.train import set_options, start_realm
from realm.config.keys import AppConfig
from realm.config.load import RunConfig
from realm.errors import ConfigError, UserError
from realm.launch.rundir import read_run
from realm.launch.signals import ends
from realm.learn.outcome import evaluated, is_judged, newest_model
from realm.watch.status import named, say, table

_USER = UserError.exit_code


def train_seeds(config: RunConfig, path: str, overrides: Sequence[str], seeds: Sequence[int]) -> int:
    """Train with each seed that has not come to its end, and print the table; returns the worst exit code."""
    app = config.app
    check_series(app, "--seeds")
    if len(set(seeds)) < len(seeds):
        raise ConfigError(f"--seeds {' '.join(map(str, seeds))}: each seed must be given once")
    folders, worst = [Path(app.log_dir) / f"{app.run_name}-seed{seed}" for seed in seeds], 0
    for seed, folder in zip(seeds, folders, strict=True):
        if has_ended(folder, app):
            say(f"{folder}: has come to its end")
            continue
        say(f"{folder}: seed {seed}")
        code = start_run(path, [*overrides, f"seed={seed}", f"run_name={folder.name}"])
        if code == _USER:
            return code  # it would be the same with every seed
        worst = max(worst, code if code >= 0 else 128 - code)  # a shell's code for a process that a signal has ended
    say(*seed_table(folders))
    return worst


def check_series(app: AppConfig, command: str) -> None:
    """Refuse a configuration whose runs would have no names or no end."""
    if not app.run_name:
        raise ConfigError(f"{command}: needs a name for its runs: --set run_name=NAME")
    if app.run_mode == "eval":
        raise ConfigError(f"{command}: trains, so run_mode must be train")
    if not (app.max_env_steps or app.max_seconds):
        raise ConfigError(f"{command}: each of its runs must come to an end: set max_env_steps or max_seconds")


def has_ended(run_dir: Path, app: AppConfig) -> bool:
    """Whether a run has come to its limit, or its workflow to its end; not one that was stopped, or has failed."""
    run, newest = read_run(run_dir), newest_model(run_dir)
    if run is None or newest is None or run.state != "stopped":
        return False
    if run.cause.startswith("max_env_steps"):  # the limit may have been raised since
        judged = not app.eval_every_steps or is_judged(run_dir)
        return judged and 0 < app.max_env_steps <= newest.env_steps
    if run.cause.startswith("max_seconds"):
        return run.cause.startswith(f"max_seconds = {app.max_seconds:g} ")
    return "workflow" in run.cause


def start_run(config: str, settings: Sequence[str]) -> int:
    """`realm start` in a process and a session of its own; returns its exit code.

    Signals go on to it, once each: in one session Ctrl+C would reach it twice, and a second one ends a run at once.
    Raises KeyboardInterrupt after its end if one came.
    """
    received: list[int] = []
    process: subprocess.Popen[bytes] | None = None

    def pass_on(number: int, frame: Any) -> None:
        received.append(number)
        if process is not None:
            with suppress(ProcessLookupError):
                process.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in ends()}
    try:
        process = start_realm(["start", "--config", config, *set_options(settings)])
        if received:  # while it was being started
            process.send_signal(received[0])
        code = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if received:
        say("stopped; the same command goes on", to_stderr=True)
        raise KeyboardInterrupt
    return code


@dataclass(frozen=True)
class Result:
    """final: mean score of the last episodes. best: of the best model, None where none was evaluated."""

    best: float | None
    final: float

    @property
    def score(self) -> float:
        """By which runs are compared."""
        return self.final if self.best is None else self.best


def results(folders: Sequence[Path]) -> tuple[str, list[Result | None]]:
    """What was measured, and what each run came to, None if that is not known.

    All runs are measured in the same way: by evaluations, or if there are none by the last training episodes.
    """
    by_evaluations = [evaluated(folder) for folder in folders]
    if names := {one[0] for one in by_evaluations if one}:
        return f"{named(min(names))} of evaluations", [Result(*one[1:]) if one else None for one in by_evaluations]
    runs = [read_run(folder) for folder in folders]
    what = next((run.statistic for run in runs if run and run.statistic), "score")
    found = [None if run is None or run.score is None else Result(None, run.score) for run in runs]
    return f"{what} of the last training episodes", found


def seed_table(folders: Sequence[Path]) -> list[str]:
    """What each run scored, then the mean, the least and the greatest of them."""
    what, found = results(folders)
    there = [result for result in found if result]
    with_best = any(result.best is not None for result in there)

    def texts(best: float | None, final: float) -> list[str]:
        return [f"{x:.1f}" for x in ((best, final) if with_best else (final,)) if x is not None]

    rows = [["", "env steps", *(["best"] if with_best else []), "final"]]
    for folder, result in zip(folders, found, strict=True):
        newest = newest_model(folder)
        scores = texts(result.best, result.final) if result else ["-"] * (1 + with_best)
        rows.append([folder.name, f"{newest.env_steps:,}" if newest else "-", *scores])
    for name, of in (("mean", _mean), ("least", min), ("greatest", max)) if there else ():
        rows.append([name, "", *texts(of([one.score for one in there]), of([one.final for one in there]))])
    return ["", f"{what}:", *table(rows, frozenset({1, 2, 3}))]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
