"""A run's directory and its `run.json`: who is alive, where it listens, how to reach it. Read by stop and status.

`run.json` holds the run id, which is the key to the run's sockets: it is readable by its owner only.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

from realm.config import AppConfig, ConfigError


@dataclass
class RunFile:
    """The content of run.json. state: starting, running, stopping, stopped or failed."""

    run_id: str
    pid: int
    created: float
    control: str = ""
    state: str = "starting"
    cause: str = ""
    roles: dict[str, dict[str, Any]] = field(default_factory=dict)
    """`aisrv-0` -> pid, created, incarnation, address, state"""

    def write(self, run_dir: Path) -> None:
        draft = run_dir / ".run.json"
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump(asdict(self), file, indent=1)
        os.replace(draft, run_dir / "run.json")


def read_run(run_dir: Path) -> RunFile | None:
    """The run.json of a directory, or None if there is none that can be read."""
    try:
        return RunFile(**json.loads((run_dir / "run.json").read_text()))
    except (OSError, ValueError, TypeError):
        return None


def is_alive(pid: int, created: float) -> bool:
    """Whether this very process lives (a pid is used again; its start time is not)."""
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
    """Make or take the run's directory. Raises ConfigError if a living run has it."""
    name = app.run_name or time.strftime("%Y%m%d-%H%M%S")
    run_dir = Path(app.log_dir) / name
    if not app.run_name and run_dir.exists():
        run_dir = run_dir.with_name(f"{name}-{os.getpid()}")
    earlier = read_run(run_dir)
    if earlier and is_alive(earlier.pid, earlier.created):
        raise ConfigError(
            f"run directory {run_dir}: the run {earlier.run_id} (pid {earlier.pid}) lives in it; "
            "stop it with tools/stop.sh all, or choose another run_name"
        )
    for part in ("log/tensorboard", "ckpt", "user_ckpt", "replays"):
        (run_dir / part).mkdir(parents=True, exist_ok=True)
    process = psutil.Process()
    run = RunFile(secrets.token_hex(8), process.pid, process.create_time())
    run.write(run_dir)
    return run_dir, run
