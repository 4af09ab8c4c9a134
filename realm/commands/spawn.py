"""Starts the command line again in a process and a session of its own: a run in the background, or one of a series."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, Any

from realm.commands.ending import called, stopping
from realm.config.load import RunConfig
from realm.errors import ConfigError
from realm.files import set_aside
from realm.launch import signals
from realm.launch.environment import for_python
from realm.launch.guard import when_parent_ends
from realm.launch.rundir import find_runs, read_run
from realm.watch.status import say

_POLL_S = 0.1
_STOP = ".stop"  # below log_dir; `realm stop all` touches it


def set_options(settings: Sequence[str]) -> list[str]:
    """`key=value` overrides as words of a command line."""
    return [word for text in settings for word in ("--set", text)]


def start_realm(words: Sequence[str], log: IO[bytes] | None = None, **options: Any) -> subprocess.Popen[bytes]:
    """Start the command `realm WORDS` in a session of its own. It prints to `log`, or where this process does."""
    return subprocess.Popen(
        [sys.executable, "-m", "realm", *words], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        start_new_session=True, env=for_python(os.environ), **options,
    )  # fmt: skip


def start_detached(words: Sequence[str], config: RunConfig) -> int:
    """Start the command `realm WORDS` in a new session, and wait until its run is ready or has ended."""
    folder, timeout_s = Path(config.app.log_dir), config.app.start_timeout_s
    log_path = folder / f"start-{os.getpid()}.log"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        log_path.unlink(missing_ok=True)
        # appending, because it is emptied in place when it is large (`watch/logs.py`)
        log = open(log_path, "ab")  # noqa: SIM115 - closed by the `with log` below
    except OSError as error:
        place = config.places.get("app.log_dir", "[app]")
        reason = f"{error.filename}: {error.strerror}"
        raise ConfigError(f"{place}: key 'log_dir': {reason}; it must be a writable folder") from error
    with log:
        process = start_realm(words, log)
    deadline, why = time.monotonic() + timeout_s, f"was not ready after start_timeout_s = {timeout_s:g} s"
    try:
        while process.poll() is None and time.monotonic() < deadline:
            for run_dir, run in find_runs(folder):
                if run.pid != process.pid or not run.lives():  # a pid comes again
                    continue
                if (moved := _moved(log_path, run_dir / "log" / "supervisor.log")) != log_path:
                    log_path, deadline = moved, time.monotonic() + timeout_s  # other machines have come until then
                if run.state == "running":
                    say(*run.beginning)
                    say(f"running in the background: {run_dir} (pid {run.pid}), log {log_path}")
                    watch = "attach {}" if run.control else "logs {} -f"  # one process answers no questions
                    say(f"watch it: {called()} {watch.format(shlex.quote(str(run_dir)))}")
                    say(f"end it:   {stopping(folder)}")
                    return 0
                if run.state in ("judging", "stopping"):  # it began at its limit
                    deadline = time.monotonic() + timeout_s
            time.sleep(0.1)
    except KeyboardInterrupt:  # the run has a session of its own, and would go on
        why = "was interrupted before it was ready"
    say(*log_path.read_text(errors="replace").splitlines(), to_stderr=True)
    code = process.poll()
    if code is None:
        process.terminate()  # the supervisor ends its roles first
        try:
            process.wait(2 * config.app.stop_timeout_s + 3 * timeout_s + 10)  # a first update is waited for
        except subprocess.TimeoutExpired:
            process.kill()  # its roles notice and end
            process.wait()
        say(f"error: the run {why} and was stopped; see {log_path}", to_stderr=True)
        return 1
    if log_path.parent == folder:
        log_path.unlink()  # the run has no directory, and its output has been printed
    return code


def _moved(log: Path, to: Path) -> Path:
    """The log of a run that is starting, in its folder; an earlier session's there is set aside."""
    with suppress(OSError):  # the folder is a link to another disk
        if log != to and to.exists():
            set_aside(to)
        return log.rename(to)
    return log


def start_run(config: str, settings: Sequence[str], run_dir: Path) -> int:
    """`realm start` of the run in this folder, in a process and a session of its own; returns its exit code.

    Signals go on to it, once each: in one session Ctrl+C would reach it twice, and a second one ends a run at once.
    Raises KeyboardInterrupt after its end if one came, or somebody called `realm stop all`.
    """
    received: list[int] = []
    process: subprocess.Popen[bytes] | None = None
    stopped_before = stopped_at(run_dir.parent)

    def pass_on(number: int, frame: Any = None) -> None:
        received.append(number)
        if process is not None:
            with suppress(ProcessLookupError):
                process.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in signals.ends()}
    try:
        words = ["start", "--config", config, *set_options([*settings, f"run_name={run_dir.name}"])]
        process = start_realm(words, preexec_fn=partial(when_parent_ends, signal.SIGTERM))  # also by kill -9
        if received:  # while it was being started
            process.send_signal(received[0])
        while process.poll() is None:
            if not received and stopped_at(run_dir.parent) != stopped_before:
                ended = (run := read_run(run_dir)) and run.pid == process.pid  # by `realm stop`, which sees it
                (received.append if ended else pass_on)(signal.SIGTERM)
            time.sleep(_POLL_S)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    run, code = read_run(run_dir), process.returncode
    signalled = code == 0 and run and run.cause.startswith(tuple(map(signals.called, signals.ends())))
    if received or signalled or stopped_at(run_dir.parent) != stopped_before:
        say("stopped; the same command goes on", to_stderr=True)
        raise KeyboardInterrupt
    return code


def ask_series_to_stop(log_dir: Path) -> None:
    """Have each series of runs below `log_dir` end, also one whose run is only starting, or ends by itself."""
    with suppress(OSError):
        (log_dir / _STOP).touch()
        time.sleep(2 * _POLL_S)  # a run that a series does not see yet is seen by who calls this


def stopped_at(log_dir: Path) -> int:
    """When somebody has last asked for that, in ns; 0: never."""
    with suppress(OSError):
        return (log_dir / _STOP).stat().st_mtime_ns
    return 0
