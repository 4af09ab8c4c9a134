"""The summary of a run: `commands/train.py` calls it after all roles have ended, and it writes `summary.json`.

What a person wants to know at the end is in `commands/ending.py`.
"""

from __future__ import annotations

import json
from pathlib import Path

from loguru import logger

from realm.files import replace_file, set_aside
from realm.watch.board import Board


def environment_faults(board: Board) -> dict[str, int]:
    """What failures of environments have cost in all workers: restarts, what was thrown away (`rollout/rounds.py`)."""
    return {name: int(board.total("aisrv", name)) for name in ("env_restarts", "dropped_episodes", "dropped_chunks")}


def write_summary(run_dir: Path, board: Board, cause: str) -> None:
    """Write `summary.json` (an earlier session's is kept as `summary.json.<n>`); a full disk is a warning."""
    summary = {
        "cause": cause, "env_steps": board.env_steps,
        "environments": environment_faults(board), "processes": board.processes(),
    }  # fmt: skip
    try:
        if (run_dir / "summary.json").exists():
            set_aside(run_dir / "summary.json")
        replace_file(run_dir / "summary.json", json.dumps(summary, indent=1).encode(), sync=False)
    except OSError as error:
        logger.warning("cannot write {}: {}", run_dir / "summary.json", error)
    warn_of_faults(board)


def warn_of_faults(board: Board) -> None:
    """Say what failures of environments have cost, if there were any."""
    faults = environment_faults(board)
    if any(faults.values()):
        logger.warning(
            "environments failed and were made again {:,} times; {:,} episodes and {:,} chunks were thrown away",
            faults["env_restarts"], faults["dropped_episodes"], faults["dropped_chunks"],
        )  # fmt: skip
