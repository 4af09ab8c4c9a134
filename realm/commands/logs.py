"""`realm logs RUN [ROLE] [-f]`: the last lines of a run's logs, and what comes after them."""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from pathlib import Path

from realm.errors import ConfigError, did_you_mean
from realm.launch.rundir import read_run
from realm.watch.status import say

_LOOK_EVERY_S = 0.25


class _Log:
    """One file of a run, read from where the last call has stopped; a file that was replaced is read from its start."""

    def __init__(self, path: Path) -> None:
        self.path, self._at, self._inode = path, 0, 0

    def last(self, count: int) -> list[str]:
        """The last lines."""
        with open(self.path, errors="replace") as file:
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
