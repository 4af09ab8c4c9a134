"""A run's directory and its `run.json`: living processes and their addresses. Read by stop and status.

`run.json` holds the run id, which is the key to the run's sockets, so only its owner can read it.
"""

from __future__ import annotations

import fcntl
import json
import re
import secrets
import time
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import psutil
from loguru import logger

from realm.config.keys import AppConfig
from realm.errors import ConfigError
from realm.files import replace_file


@dataclass
class RunFile:
    """The content of run.json. state: starting, running, stopping, stopped or failed."""

    run_id: str
    pid: int
    created: float
    control: str = ""
    state: str = "starting"
    cause: str = ""
    epoch: int = 0
    """The last epoch of a learner in this directory; the next learner gets a greater one."""
    roles: dict[str, dict[str, Any]] = field(default_factory=dict)
    """`aisrv-0` -> pid, created, incarnation, address, state"""
    lock: Any = field(default=None, repr=False, compare=False)
    """The open lock file; it keeps other starts out of the directory while this process lives. Not written."""
    warned: bool = field(default=False, repr=False, compare=False)
    """Whether the last write failed. Not written."""

    def write(self, run_dir: Path) -> None:
        content = {
            entry.name: getattr(self, entry.name) for entry in fields(self) if entry.name not in ("lock", "warned")
        }
        replace_file(run_dir / "run.json", json.dumps(content, indent=1).encode(), mode=0o600, sync=False)

    def write_or_warn(self, run_dir: Path) -> None:
        """Write it; a full disk is one warning, until a write succeeds again."""
        try:
            self.write(run_dir)
            self.warned = False
        except OSError as error:
            if not self.warned:
                logger.warning("cannot write {}, so stop and status may fail: {}", run_dir / "run.json", error)
            self.warned = True


def read_run(run_dir: Path) -> RunFile | None:
    """Read the run.json of a directory; None without a readable one."""
    try:
        return RunFile(**json.loads((run_dir / "run.json").read_text()))
    except (OSError, ValueError, TypeError):
        return None


def is_alive(pid: int, created: float) -> bool:
    """Whether exactly this process lives (the system reuses pids; the start time tells processes apart)."""
    try:
        process = psutil.Process(pid)
        return abs(process.create_time() - created) < 2 and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def find_runs(log_dir: Path) -> list[tuple[Path, RunFile]]:
    """Every run below `log_dir`, oldest first."""
    runs = [(path.parent, read_run(path.parent)) for path in log_dir.glob("*/run.json")]
    return sorted([(path, run) for path, run in runs if run], key=lambda pair: pair[1].created)


def claim_run_dir(app: AppConfig) -> tuple[Path, RunFile]:
    """Create or reuse the run's directory. Raises ConfigError if a living run uses it."""
    folder = Path(app.log_dir)
    name = app.run_name or time.strftime("%Y%m%d-%H%M%S")
    folder.mkdir(parents=True, exist_ok=True)
    run_dir = folder / name
    if not app.run_name:
        count = 1
        while not _made(run_dir):  # another start in the same second
            count += 1
            run_dir = folder / f"{name}-{count}"
    run_dir.mkdir(exist_ok=True)
    lock = open(run_dir / ".lock", "ab")  # noqa: SIM115 - held until this process ends in any way
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        earlier = read_run(run_dir)
        owner = f"the run {earlier.run_id[:4]}... (pid {earlier.pid})" if earlier else "a run that is just starting"
        raise ConfigError(
            f"run directory {run_dir}: {owner} uses it; stop it with tools/stop.sh all, or choose another run_name"
        ) from None
    earlier = read_run(run_dir)
    for subfolder in ("log/tensorboard", "ckpt", "user_ckpt"):
        (run_dir / subfolder).mkdir(parents=True, exist_ok=True)
    process = psutil.Process()
    epoch = max(earlier.epoch if earlier else 0, _last_epoch(run_dir / "ckpt"))
    run = RunFile(secrets.token_hex(8), process.pid, process.create_time(), epoch=epoch, lock=lock)
    run.write(run_dir)
    return run_dir, run


def _made(folder: Path) -> bool:
    try:
        folder.mkdir()
    except FileExistsError:
        return False
    return True


def _last_epoch(folder: Path) -> int:
    """The highest epoch in the names of a folder's checkpoints, valid or damaged; 0 without one."""
    names = [re.fullmatch(r"model\.ckpt-(\d+)-\d+", path.name) for path in folder.glob("model.ckpt-*")]
    return max((int(match[1]) for match in names if match), default=0)
