"""The summary of a run: totals of every process, and a check that nothing bypassed its role.

`commands/train.py` calls it after all roles have ended; it writes `summary.json` and logs a table.
"""

from __future__ import annotations

import json
from pathlib import Path

from loguru import logger

from realm.config.plan import Plan
from realm.files import replace_file, set_aside
from realm.watch.board import Board


def bypasses(board: Board, plan: Plan) -> dict[str, float | None]:
    """Count data that did not go through its role; all zero in a healthy run.

    None: unknown, because that role was started again, and a killed process does not report its last second.

    actions      used by workers minus given by the actor (remote prediction)
    samples      trained on minus handed out by the buffer
    checkpoints  loaded by actor, workers and evaluator minus served by the model pool
    """

    def beyond(used: float, role: str, given: str) -> float | None:
        return None if board.restarted(role) else max(0.0, used - board.total(role, given))

    loaded = sum(board.total(role, "models_loaded") for role in ("actor", "aisrv", "evaluator"))
    return {
        "actions": 0.0 if plan.predict_local else beyond(board.total("aisrv", "actions"), "actor", "actions"),
        "samples": beyond(board.total("learner", "items_trained"), "buffer", "sampled"),
        "checkpoints": beyond(loaded, "model_pool", "served"),
    }


def environment_faults(board: Board) -> dict[str, int]:
    """What failures of environments have cost in all workers: restarts, and what was thrown away (`rollout.py`)."""
    return {name: int(board.total("aisrv", name)) for name in ("env_restarts", "dropped_episodes", "dropped_chunks")}


def write_summary(run_dir: Path, board: Board, plan: Plan, cause: str) -> None:
    """Write `summary.json` (an earlier session's is kept as `summary.json.<n>`) and log one line per process.

    A full disk is a warning.
    """
    processes = board.processes()
    faults = environment_faults(board)
    summary = {
        "cause": cause, "env_steps": board.env_steps, "bypassed": bypasses(board, plan), "environments": faults,
        "processes": processes,
    }  # fmt: skip
    try:
        if (run_dir / "summary.json").exists():
            set_aside(run_dir / "summary.json")
        replace_file(run_dir / "summary.json", json.dumps(summary, indent=1).encode(), sync=False)
    except OSError as error:
        logger.warning("cannot write {}: {}", run_dir / "summary.json", error)
    for name, totals in processes.items():
        logger.info(
            "{:<14} pid {:>7.0f}  messages in {:>9,.0f} out {:>9,.0f}  MB in {:>8,.1f} out {:>8,.1f}  "
            "{:<16}  memory {:,.0f} MB",
            name,
            totals.get("pid", 0),
            totals.get("wire/messages_in", 0),
            totals.get("wire/messages_out", 0),
            totals.get("wire/bytes_in", 0) / 1e6,
            totals.get("wire/bytes_out", 0) / 1e6,
            _models(name, totals),
            totals.get("rss_mb", 0),
        )
    peak = sum(board.total(role, "peak_mb") for role in {name.split("-")[0] for name in processes})
    worker = max((mb["peak_mb"] for name, mb in processes.items() if name.startswith("aisrv")), default=0.0)
    logger.info("peak memory: {:,.0f} MB in all processes, {:,.0f} MB of the largest worker", peak, worker)
    past = {
        name: "unknown: a role was started again" if amount is None else amount
        for name, amount in bypasses(board, plan).items()
    }
    logger.info("bypassed their role: {}", past)
    if any(faults.values()):
        logger.warning("environments that failed: {}", faults)


def _models(name: str, totals: dict[str, float]) -> str:
    """The models column: the number served by the pool, the version of any other process that has one."""
    if name.startswith("model_pool"):
        return f"served {totals.get('served', 0):,.0f}"
    if "version_update" not in totals:
        return "version -"
    return f"version {totals['version_epoch']:.0f}.{totals['version_update']:.0f}"
