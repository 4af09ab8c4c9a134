"""Controls living runs from another terminal: `tools/stop.sh` and `realm save`.

It finds runs by their `run.json` and asks their supervisor over the control channel. If a supervisor does not answer or
is gone, it ends exactly the processes in that file (by pid and start time) and no others.
"""

from __future__ import annotations

import contextlib
import shlex
import time
from pathlib import Path
from typing import Any

import psutil

from realm.commands.ending import called, stopping
from realm.launch.rundir import RunFile, find_runs, living_pids
from realm.watch.status import say
from realm.wire.codec import Codec, Message
from realm.wire.control import CONTROL_MAX_BYTES
from realm.wire.keys import load_keys
from realm.wire.sockets import Client

_ANSWER_WITHIN_S = 3.0
_STOP_WITHIN_S = 20.0


def stop_all(log_dir: Path) -> int:
    """End every living run below `log_dir`; returns 0 even if there is none, and 1 if one is another user's."""
    code = 0
    living = [(path, run) for path, run in find_runs(log_dir, warn) if living_pids(run)]
    if not living:
        say(f"no living run below {log_dir}")
    for path, run in living:
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
            if run.state != "stopping":  # a second signal would end it at once
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
    runs = 0
    for path, run in find_runs(log_dir, warn):
        if not run.lives():
            continue
        if not run.control:
            say(f"{path}: has no roles to stop, it is one process or still starts; {stopping(log_dir)} ends it")
            continue
        answer = ask(run, "stop_role", {"role": role})
        if answer is None:
            say(f"error: the supervisor of {path} does not answer")
            return 1
        runs += 1
        say(
            f"{path}: {role} was asked to stop, and is not started again; it comes back with the whole run: "
            f"{stopping(log_dir)}, then {called()} resume {shlex.quote(str(path))}"
        )
    if not runs:
        say(f"no living run below {log_dir}")
    return 0


def save_models(log_dir: Path) -> int:
    """Ask the learner of every living run to save a checkpoint in `user_ckpt/`, where it is not pruned."""
    living = [(path, run) for path, run in find_runs(log_dir, warn) if run.lives() and run.control]
    if not living:
        say(f"no living cluster below {log_dir}")
    code = 0
    for path, run in living:
        answer = ask(run, "save", {})
        state = answer.mapping("roles")["learner-0"]["state"] if answer else ""
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
