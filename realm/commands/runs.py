"""Speaks to living runs from another terminal: `tools/stop.sh` and `tools/status.sh`.

Finds runs by their `run.json`, asks their supervisor over the control channel, and, when a supervisor does not
answer or is gone, ends exactly the processes that the file names (by pid and start time), and no others.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

import psutil

from realm.launch.rundir import RunFile, find_runs, is_alive
from realm.wire.codec import Codec, Message
from realm.wire.control import CONTROL_MAX_BYTES
from realm.wire.sockets import Client

_ANSWER_WITHIN_S = 3.0
_STOP_WITHIN_S = 20.0


def stop_all(log_dir: Path) -> int:
    """End every living run below `log_dir`; 0 also when there is none."""
    living = [(path, run) for path, run in find_runs(log_dir) if _processes(run)]
    if not living:
        print(f"no run is alive below {log_dir}")
    for path, run in living:
        print(f"stopping {path} ...", flush=True)
        if is_alive(run.pid, run.created):
            with contextlib.suppress(psutil.NoSuchProcess):  # it may end in this very moment
                psutil.Process(run.pid).terminate()  # the supervisor ends its roles one after the other
        _wait_for_supervisor(run)
        _, alive = psutil.wait_procs(_processes(run), timeout=_STOP_WITHIN_S)
        for process in alive:
            print(f"killing pid {process.pid}, which did not stop in {_STOP_WITHIN_S:g} s")
            process.kill()
        psutil.wait_procs(alive, timeout=5)
        print(f"stopped {path}")
    return 0


def _wait_for_supervisor(run: RunFile) -> None:
    """As long as it lives it ends its roles in its own time: a learner finishes its update before it saves."""
    shown_at = time.monotonic()
    while is_alive(run.pid, run.created):
        if time.monotonic() - shown_at > 10:
            shown_at = time.monotonic()
            print("  still stopping: the learner saves when its update is done", flush=True)
        time.sleep(0.1)


def stop_role(log_dir: Path, role: str) -> int:
    """End one role of every living run; it is not started again."""
    found = 0
    for path, run in find_runs(log_dir):
        if not is_alive(run.pid, run.created):
            continue
        answer = _ask(run, "stop_role", {"role": role})
        if answer is None:
            print(f"error: the supervisor of {path} does not answer")
            return 1
        found += 1
        print(f"{path}: {role} is told to stop; the others wait for it until tools/stop.sh all")
    if not found:
        print(f"no run is alive below {log_dir}")
    return 0


def save_models(log_dir: Path) -> int:
    """Have the learner of every living run save a checkpoint into `user_ckpt/`, where it is not pruned."""
    living = [(path, run) for path, run in find_runs(log_dir) if is_alive(run.pid, run.created) and run.control]
    if not living:
        print(f"no cluster is alive below {log_dir}")
    for path, run in living:
        if _ask(run, "save", {}) is None:
            print(f"error: the supervisor of {path} does not answer")
            return 1
        print(f"{path / 'user_ckpt'}: the learner saves after the update it is at")
    return 0


def show_status(log_dir: Path) -> int:
    """Print every living run, and the newest one that has ended."""
    runs = find_runs(log_dir)
    living = [(path, run) for path, run in runs if is_alive(run.pid, run.created)]
    if not living:
        print(f"no run is alive below {log_dir}")
        for path, run in runs[-1:]:
            print(f"the last one was {path}: {run.state}{f', {run.cause}' if run.cause else ''}")
        return 0
    for path, run in living:
        print(f"{path}  {run.state}  supervisor pid {run.pid}")
        answer = _ask(run, "status", {}) if run.control else None
        if answer is None:
            print("  (one process)" if not run.control else "  the supervisor does not answer")
            continue
        print("  " + "  ".join(f"{name} {text}" for name, text in answer.mapping("line").items()))
        for label, role in answer.mapping("roles").items():
            totals: dict[str, float] = role["totals"]
            print(
                f"  {label:<14} {role['state']:<9} pid {role['pid']:<8} incarnation {role['incarnation']}  "
                f"{role['address']:<24} messages {totals.get('wire/messages_in', 0):,.0f}  "
                f"memory {totals.get('rss_mb', 0):,.0f} MB"
            )
    return 0


def _processes(run: RunFile) -> list[psutil.Process]:
    """The living processes of a run, the supervisor first."""
    named: list[tuple[int, float]] = [(run.pid, run.created)]
    named += [(int(role["pid"]), float(role["created"])) for role in run.roles.values() if role["pid"]]
    found = []
    for pid, created in named:
        with contextlib.suppress(psutil.NoSuchProcess):
            if is_alive(pid, created):
                found.append(psutil.Process(pid))
    return found


def _ask(run: RunFile, kind: str, meta: dict[str, Any]) -> Message | None:
    """One question to a supervisor; None if it does not answer in time."""
    client = Client(Codec(run.run_id, "", "cli", 1, CONTROL_MAX_BYTES), run.control)
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
