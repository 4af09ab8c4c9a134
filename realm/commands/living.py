"""The commands for living runs, from any terminal: `realm status`, `attach`, `logs`, `stop` and `save`.

Runs are found by their `run.json`, and their supervisor answers over the control channel. If one does not answer or is
gone, `stop` ends exactly the processes in that file (by pid and start time) and no others.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import psutil

from realm.commands.ending import called, stopping
from realm.commands.locate import LOG_DIR_HELP, RUN_HELP, run_folder, runs_folder
from realm.commands.parser import Commands, terminal_width
from realm.commands.spawn import ask_series_to_stop
from realm.errors import ConfigError, RunError, did_you_mean, one_line
from realm.launch.rundir import RunFile, find_runs, living_pids, read_run
from realm.learn.results import newest_model
from realm.roles.table import ROLES
from realm.watch.progress import has_screen
from realm.watch.status import Status, lines, say, table

if TYPE_CHECKING:
    from realm.wire.codec import Message

_ANSWER_WITHIN_S = 3.0
_STOP_WITHIN_S = 20.0
_WATCH_EVERY_S = 1.0
_LEAVES = "Ctrl+C leaves the run alone"
_WIDTH = 120  # columns where no terminal is
_LOOK_EVERY_S = 0.25


def add_commands(commands: Commands) -> None:
    """Add them."""
    status = commands.add_parser("status", help="show the living runs and their roles", example="realm status --watch")
    how = status.add_mutually_exclusive_group()
    how.add_argument("--watch", action="store_true", help="again and again, until no run lives or Ctrl+C")
    how.add_argument("--json", action="store_true", help="as JSON, with all totals")
    status.add_argument("--log-dir", help=LOG_DIR_HELP)
    status.set_defaults(run=lambda given: show_status(runs_folder(given.log_dir), given.watch, given.json))

    text = "show a living run as its own terminal does"
    attaching = commands.add_parser("attach", help=text, example="realm attach my-run")
    attaching.add_argument("name", nargs="?", default="", metavar="RUN", help=RUN_HELP)
    attaching.add_argument("--log-dir", help=LOG_DIR_HELP)
    attaching.set_defaults(run=lambda given: attach(run_folder(given.name, given.log_dir)))

    logs = commands.add_parser("logs", help="show the logs of a run", example="realm logs my-run learner -f")
    logs.add_argument("name", nargs="?", default="", metavar="RUN", help=RUN_HELP)
    logs.add_argument("role", nargs="?", default="", metavar="ROLE", help="like learner or aisrv-1 (default: all)")
    logs.add_argument("-n", dest="lines", type=int, default=20, metavar="N", help="last lines of each (default 20)")
    logs.add_argument("-f", "--follow", action="store_true", help="go on until the run ends or Ctrl+C")
    logs.add_argument("--log-dir", help=LOG_DIR_HELP)
    logs.set_defaults(run=_logs)

    stop = commands.add_parser("stop", help="end all runs, or one role of them", example="realm stop all")
    stop.add_argument("what", choices=("all", *ROLES), metavar="all|ROLE", help=f"ROLE is {', '.join(ROLES)}")
    stop.add_argument("--log-dir", help=LOG_DIR_HELP)
    stop.set_defaults(run=_stop)

    text = "keep the current model of each living run in its user_ckpt/"
    save = commands.add_parser("save", help=text, example="realm save")
    save.add_argument("--log-dir", help=LOG_DIR_HELP)
    save.set_defaults(run=lambda given: save_models(runs_folder(given.log_dir)))


def _logs(given: argparse.Namespace) -> int:
    if given.lines < 0:
        raise ConfigError(f"-n {given.lines}: must be a number from 0")
    return show_logs(run_folder(given.name, given.log_dir), given.role, given.lines, given.follow)


def _stop(given: argparse.Namespace) -> int:
    folder = runs_folder(given.log_dir)
    return stop_all(folder) if given.what == "all" else stop_role(folder, given.what)


# --- status and attach


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
        runs = find_runs(log_dir, warn)
        chosen = [(path, run) for path, run in runs if run.lives()] or runs[-1:]
        print(json.dumps([_plain(path, run) for path, run in chosen], indent=1))
        return 0
    if watch and has_screen():
        _watch(log_dir)
    seen = living(log_dir, warn)
    while watch and seen:  # no terminal
        say(*_lines(seen, _WIDTH))
        time.sleep(10 * _WATCH_EVERY_S)
        seen = living(log_dir)
    if not seen:
        say(f"no living run below {log_dir}")
        for path, run in find_runs(log_dir)[-1:]:
            say(f"the last run was {path}: {state_of(run)}{f', {run.cause}' if run.cause else ''}")
        return 0
    say(*_lines(seen, terminal_width(_WIDTH)))
    return 0


def attach(run_dir: Path) -> int:
    """Show a living run as its own terminal does, until it ends."""
    from realm.watch.display import display  # late: rich

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
        return Seen(path, run, answer.value("status", Status), answer.value("roles", dict[str, Any]))
    except (RunError, ValueError) as error:  # ValueError: of the keys, of a message, or of what is in it
        return Seen(path, run, None, {}, f"its supervisor cannot be asked: {one_line(error)}")


def state_of(run: RunFile) -> str:
    """Its state; a run that has ended without saying so was killed."""
    if run.state in ("starting", "running", "judging", "stopping") and not run.lives():
        return "killed"
    return run.state


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
    from realm.watch.display import live_lines  # late: rich

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
        numbers = str(role["pid"] or "-"), str(role["incarnation"]), f"{messages:,.0f}", used
        state = "starting" if role["state"] == "bound" else role["state"]
        where = f"on {role['host']}" if role.get("host") else role["address"].removeprefix("tcp://")
        rows.append((label, state, *numbers, where))
    roles = [f"  {line}" for line in table(rows, right=frozenset({2, 3, 4, 5}))]
    return [head, *lines(seen.status, width), *roles]


# --- logs


class _Log:
    """One file of a run, read from where the last call has stopped; a file that was replaced is read from its start."""

    def __init__(self, path: Path) -> None:
        self.path, self._at, self._inode = path, 0, 0

    def last(self, count: int) -> list[str]:
        """The last lines."""
        with open(self.path, encoding="utf-8", errors="replace") as file:
            found = list(deque(file, maxlen=count))
            self._at, self._inode = file.tell(), os.fstat(file.fileno()).st_ino
        return [line.rstrip("\n") for line in found]

    def new(self) -> list[str]:
        """The whole lines that came since."""
        with contextlib.suppress(FileNotFoundError), open(self.path, "rb") as file:
            state = os.fstat(file.fileno())
            if state.st_ino != self._inode or state.st_size < self._at:
                self._at, self._inode = 0, state.st_ino
            file.seek(self._at)
            whole, newline, _ = file.read().rpartition(b"\n")
            self._at += len(whole) + len(newline)
            return whole.decode(errors="replace").split("\n") if newline else []
        return []


def show_logs(run_dir: Path, role: str, count: int, follow: bool) -> int:
    """Print the last `count` lines of each log; follow: and every new one, until the run ends or Ctrl+C."""
    logs = {path: _Log(path) for path in _paths(run_dir, role)}
    for path, log in logs.items():
        say(f"==> {path}")
        say(*log.last(count))
    last = next(reversed(logs))
    with contextlib.suppress(KeyboardInterrupt):
        while follow:
            run = read_run(run_dir)
            lives = run is not None and run.lives()
            for path in _paths(run_dir, role):
                if lines := logs.setdefault(path, _Log(path)).new():
                    if path != last:
                        say(f"==> {path}")
                    last = path
                    say(*lines)
            if not lives:
                break
            time.sleep(_LOOK_EVERY_S)
    return 0


def _paths(run_dir: Path, role: str) -> list[Path]:
    """The logs of a role like `learner` or `aisrv-1`, or of all. Raises ConfigError if there are none."""
    every = sorted(path for path in (run_dir / "log").glob("*.log") if path.is_file())  # a pipe would be waited for
    found = [path for path in every if role in ("", path.stem, path.stem.rpartition("-")[0])]
    if not found and not every:
        raise ConfigError(f"{run_dir}: has no logs; a run in one process writes to its terminal only")
    if not found:
        stems = [path.stem for path in every]
        near = did_you_mean(role, [*stems, *(stem.rpartition("-")[0] for stem in stems)])
        raise ConfigError(f"{role}: no log of that name; must be one of {', '.join(stems)}{near}")
    return found


# --- stop and save


def stop_all(log_dir: Path) -> int:
    """End every living run below `log_dir`; returns 0 even if there is none, and 1 if one is another user's."""
    code = 0
    ask_series_to_stop(log_dir)
    living = [(path, run) for path, run in find_runs(log_dir, warn) if living_pids(run)]
    if not living:
        say(f"no living run below {log_dir}")
    for path, run in living:
        run = read_run(path) or run  # it may be stopping by now: a second signal would end it at once
        say(f"stopping {path} ...")
        try:
            _ask_to_stop(run)
        except psutil.AccessDenied:
            say(f"error: {path}: is a run of another user, who alone can stop it")
            code = 1
            continue
        _wait_for_supervisor(run)
        _, alive = psutil.wait_procs(_processes(run), timeout=_STOP_WITHIN_S)
        for process in alive:
            say(f"killing pid {process.pid}, which did not stop in {_STOP_WITHIN_S:g} s")
            process.kill()
        psutil.wait_procs(alive, timeout=5)
        say(f"stopped {path}")
    return code


def _ask_to_stop(run: RunFile) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):  # it may end at this moment
        if run.lives():
            supervisor = psutil.Process(run.pid)
            if run.state != "stopping":
                supervisor.terminate()  # it then ends its roles
            supervisor.resume()  # if it was stopped with Ctrl+Z, it can notice now


def _wait_for_supervisor(run: RunFile) -> None:
    """Wait without a limit: the learner finishes its update before it saves, which may take long."""
    shown_at = time.monotonic()
    while run.lives():
        if time.monotonic() - shown_at > 10:
            shown_at = time.monotonic()
            late = f"`kill -9 {run.pid}` ends it without that"
            say(f"  still stopping: the learner saves after its update; {late}")
        time.sleep(0.1)


def stop_role(log_dir: Path, role: str) -> int:
    """End one role of every living run; it is not started again."""
    runs = code = 0
    for path, run in find_runs(log_dir, warn):
        if not run.lives():
            continue
        if not run.control:
            say(f"{path}: has no roles to stop, it is one process or still starts; {stopping(log_dir)} ends it")
            continue
        runs += 1
        answer = ask(run, "stop_role", {"role": role})
        if answer is None or not any(label.startswith(f"{role}-") for label in answer.value("roles", dict[str, Any])):
            say(f"error: {path}: {f'has no {role}' if answer else 'its supervisor does not answer'}")
            code = 1
            continue
        say(
            f"{path}: {role} was asked to stop, and is not started again; it comes back with the whole run: "
            f"{stopping(log_dir)}, then {called()} resume {shlex.quote(str(path))}"
        )
    if not runs:
        say(f"no living run below {log_dir}")
    return code


def save_models(log_dir: Path) -> int:
    """Ask the learner of every living run to save a checkpoint in `user_ckpt/`, where it is not pruned."""
    living = [(path, run) for path, run in find_runs(log_dir, warn) if run.lives() and run.control]
    if not living:
        say(f"no living cluster below {log_dir}")
    code = 0
    for path, run in living:
        answer = ask(run, "save", {})
        state = answer.value("roles", dict[str, Any])["learner-0"]["state"] if answer else ""
        if state == "ready":
            say(f"{path / 'user_ckpt'}: the learner saves after its current update")
            continue
        why = f"its learner is {state}; try again when it is ready" if state else "its supervisor does not answer"
        say(f"error: {path}: cannot be saved, {why}")
        code = 1
    return code


def warn(sentence: str) -> None:
    """Name a file that is passed over."""
    say(f"warning: {sentence}", to_stderr=True)


def _processes(run: RunFile) -> list[psutil.Process]:
    """The living processes of a run, the supervisor first."""
    alive = []
    for pid in living_pids(run):
        with contextlib.suppress(psutil.NoSuchProcess):
            alive.append(psutil.Process(pid))
    return alive


def ask(run: RunFile, kind: str, meta: dict[str, Any]) -> Message | None:
    """Ask a supervisor one question; None if it does not answer in time."""
    from realm.wire.codec import Codec  # late: ZeroMQ, which most commands do not need
    from realm.wire.control import CONTROL_MAX_BYTES
    from realm.wire.curve_keys import load_keys
    from realm.wire.sockets import Client

    client = Client(Codec(run.run_id, "", "cli", 1, CONTROL_MAX_BYTES), run.control, load_keys(run.keys_dir))
    deadline = time.monotonic() + _ANSWER_WITHIN_S
    try:
        seq = client.ask(kind, meta)

        def check() -> None:
            if time.monotonic() > deadline:
                raise TimeoutError

        return client.wait(seq, check)
    except TimeoutError:
        return None
    finally:
        client.close()
