"""What the scripts of tools/bench and tools/study share: errors and Ctrl+C, files of results, runs as processes, and
the curves that a run has written.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
import os
import re
import shlex
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from realm import files
from realm.config.keys import AppConfig
from realm.config.load import RunConfig
from realm.config.plan import Machine, Plan, decide, make_plan, this_machine
from realm.errors import ConfigError, UserError
from realm.user import hyper_of, hyper_table, load_preferences
from realm.watch.tensorboard import without_tensorflow

ROOT = Path(__file__).resolve().parents[1]
CONFIG = ROOT / "conf" / "configure_app.toml"
CLOCK = "system/env_steps_per_s"  # a curve that every run writes every two seconds
TELL_S = 30.0  # between two lines of progress in a log


def effective(config: RunConfig) -> RunConfig:
    """The configuration as a run of it on this machine writes it into its config.toml: every value decided."""
    hyper = hyper_of(config)
    app = decide(config.app, this_machine(), load_preferences(config.app.algo)).app
    return dataclasses.replace(config, app=app, hyper=hyper_table(hyper, config.hyper))


def plan_of(app: AppConfig, machine: Machine | None = None) -> Plan:
    """The plan of a configuration on a machine, this one by default, with every `auto` decided as a start does."""
    machine = machine or this_machine()
    return make_plan(decide(app, machine, load_preferences(app.algo)).app, machine.cores)


# ---- the command line ----

USER_ERRORS = (UserError, OSError)


def command_line(run: Callable[[], None]) -> None:
    """Run a script; a user's error ends it with one sentence and exit code 2, Ctrl+C with exit code 1."""
    try:
        run()
    except KeyboardInterrupt:
        sys.exit("stopped")
    except USER_ERRORS as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


def end_in_order() -> None:
    """Treat SIGTERM as Ctrl+C from now on, and ignore a second one, as `timeout` and a killed process group send it: it
    must not interrupt the end of what was started."""

    def interrupt(number: int, frame: Any) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)


class Progress:
    """Shows how far something is: one line that changes in a terminal, a line every half minute in a log."""

    def __init__(self) -> None:
        self._tty = sys.stderr.isatty()
        self._shown = time.monotonic()

    def show(self, text: str) -> None:
        if time.monotonic() - self._shown >= (1 if self._tty else TELL_S):
            self._shown = time.monotonic()
            print(f"\r\x1b[K{text}" if self._tty else text, end="" if self._tty else "\n", file=sys.stderr, flush=True)

    def clear(self) -> None:
        if self._tty:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def say(self, text: str) -> None:
        """Print a line that stays, on stdout."""
        self.clear()
        print(text, flush=True)


# ---- measuring ----

Figure = TypeVar("Figure")
Say = Callable[[str], None]
"""Shows how far a row is."""


def in_rounds(rows: Mapping[str, Callable[[int, Say], Figure]], rounds: int) -> dict[str, dict[int, Figure]]:
    """Measure each row once a round, every second round in the other order: a neighbour on the machine disturbs all.

    A row gets the number of the round, from 1. Returns name -> round -> its figure.
    """
    began, progress, names = time.monotonic(), Progress(), list(rows)
    figures: dict[str, dict[int, Figure]] = {name: {} for name in names}
    for done in range(rounds * len(names)):
        number, at = divmod(done, len(names))
        name = names[-1 - at if number % 2 else at]
        minutes = (rounds * len(names) - done) * (time.monotonic() - began) / max(1, done) / 60
        left = f"about {minutes:.0f} min left" if done else "time left not known yet"
        where = f"round {number + 1} of {rounds}, {name}"
        progress.show(f"{where}; {left}")
        figures[name][number + 1] = rows[name](
            number + 1,
            lambda text, where=where, left=left: progress.show(f"{where}: {text}; {left}"),  # type: ignore[misc]
        )
    progress.clear()
    return figures


class Spread(NamedTuple):
    median: float
    least: float
    greatest: float


def spread(values: Iterable[float]) -> Spread:
    """Of several rounds, one at least."""
    known = list(values)
    return Spread(statistics.median(known), min(known), max(known))


def beside(figures: Mapping[int, float], first: Mapping[int, float]) -> Spread | None:
    """Round -> figure, as multiples of another row's in the same round; None without a round of both."""
    multiples = [figure / first[number] for number, figure in figures.items() if number in first]
    return spread(multiples) if multiples else None


# ---- files of results ----


def check_out(out: Path) -> None:
    """Refuse a file that cannot be written; make its folder."""
    out.parent.mkdir(parents=True, exist_ok=True)
    if out.is_dir() or not os.access(out if out.exists() else out.parent, os.W_OK):
        raise ConfigError(f"--out {out}: cannot be written; it must be a file")


def read_json(path: Path, key: str) -> dict[str, Any]:
    """Read results of a script, which must have this key."""
    try:
        content = files.read_json(path, 256 << 20)
    except ValueError:
        content = None
    if not isinstance(content, dict) or key not in content:
        raise ConfigError(f"{path}: holds no results of this script")
    return content


def write_json(path: Path, content: Any) -> None:
    """Write in one go, so that a script that is stopped leaves a whole file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    files.replace_file(path, json.dumps(content, indent=1, default=str).encode())


def open_results(out: Path, setup: dict[str, Any], key: str) -> dict[str, Any]:
    """Read the results to go on with, {about, setup, key: {}}; refuse those of another setup."""
    if not out.exists():
        return {"about": about(), "setup": setup, key: {}}
    results = read_json(out, key)
    if results["setup"] != setup:
        raise ConfigError(f"{out} was made with {results['setup']}, now {setup}; take another --out")
    return results


def about() -> dict[str, Any]:
    """Say where and when, for the JSON and the line below a table."""
    model = None
    if Path("/proc/cpuinfo").exists():
        model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return {
        "date": datetime.date.today().isoformat(),
        "machine": f"{len(os.sched_getaffinity(0))} of {os.cpu_count()} cores, {model[1] if model else 'unknown'}",
        "command": shlex.join([Path(sys.executable).name, *sys.argv]),
        "commit": commit(),
    }


def made_by(about: dict[str, Any]) -> str:
    """The line below a table."""
    return f"`{about['command']}`, {about['date']}, {about['machine']}, commit {about['commit']}"


def commit() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    asked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return asked.stdout.strip() or "unknown"


def number(value: float | None, form: str, none: str = "-") -> str:
    """Format a cell of a table."""
    return none if value is None else format(value, form)


# ---- runs as processes ----


def start_command(config: Path, overrides: Iterable[str]) -> list[str]:
    words = [sys.executable, "-m", "realm", "start", "--config", str(config)]
    return words + [word for one in overrides for word in ("--set", one)]


def run_process(command: Sequence[str]) -> int:
    """Run to the end and return the exit code. Ctrl+C here ends it in order and raises KeyboardInterrupt."""
    return run_processes([command], 1)[0]


def run_processes(commands: Sequence[Sequence[str]], jobs: int) -> list[int]:
    """Run all to the end, `jobs` of them side by side, and return their exit codes. Ctrl+C as in `run_process`."""
    environment = {"NUMBA_CACHE_DIR": str(ROOT / ".cache" / "numba"), **os.environ}
    begun: list[subprocess.Popen[bytes]] = []
    try:
        while True:
            running = [process for process in begun if process.poll() is None]
            for command in commands[len(begun) : len(begun) + jobs - len(running)]:
                # a session of its own: Ctrl+C reaches it once, from here, since a second one kills a run
                process = subprocess.Popen(
                    command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, start_new_session=True
                )
                begun.append(process)
                running.append(process)
            if not running:
                return [process.returncode for process in begun]
            with contextlib.suppress(subprocess.TimeoutExpired):
                running[0].wait(1.0)
    finally:
        left = [process for process in begun if process.poll() is None]
        for process in left:
            process.terminate()
        for process in left:
            process.wait()


# ---- curves ----


class Curve(NamedTuple):
    env_steps: np.ndarray
    minutes: np.ndarray  # of training: pauses between the starts of a run do not count
    value: np.ndarray


NO_CURVE = Curve(np.empty(0), np.empty(0), np.empty(0))


class Event(NamedTuple):
    start: int  # of the run: 0 is the first
    time: float  # seconds since 1970
    env_steps: int
    values: dict[str, float]


def read_events(run: Path) -> Iterator[Event]:
    """Read what a run has written for TensorBoard, in order; each start of the run has a file."""
    without_tensorflow()
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    for start, path in enumerate(sorted((run / "log" / "tensorboard").glob("events.out.tfevents.*"))):
        for event in LegacyEventFileLoader(str(path)).Load():
            values = {one.tag: one.simple_value for one in event.summary.value if one.HasField("simple_value")}
            yield Event(start, event.wall_time, int(event.step), values)


def read_curves(run: Path) -> dict[str, Curve]:
    """Tag -> curve."""
    rows: dict[str, list[tuple[float, float, float]]] = {}
    begin = before = minutes = 0.0
    start, reached = -1, 0
    for event in read_events(run):
        if event.start != start:
            start, begin, before = event.start, event.time, before + minutes
        minutes = (event.time - begin) / 60
        if event.env_steps == 0 and reached:
            continue  # a run that goes on says 0 until its learner has reported
        reached = max(reached, event.env_steps)
        for tag, value in event.values.items():
            rows.setdefault(tag, []).append((event.env_steps, before + minutes, value))
    return {tag: Curve(*np.array(points, float).T) for tag, points in rows.items()}


def minutes_at(clock: Curve, env_steps: float) -> float:
    """When the run had trained on that many steps for good: after a crash it makes some again. Each start of the run
    counts, some seconds without a step."""
    if not len(clock.minutes):
        return 0.0
    last_time = np.minimum.accumulate(clock.env_steps[::-1])[::-1]
    steps, first = np.unique(last_time, return_index=True)
    return float(np.interp(env_steps, steps, clock.minutes[first]))
