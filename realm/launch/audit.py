"""The account of a run at its end: what every role did, and whether anything went past its role.

Called by the supervisor's caller when the roles are gone; writes `summary.json` and logs a table.
"""

from __future__ import annotations

import json
from pathlib import Path

from loguru import logger

from realm.launch.board import Board
from realm.plan import Plan


def bypasses(board: Board, plan: Plan) -> dict[str, float]:
    """What did not go through the role that it belongs to; all zero in a healthy run.

    actions      used by workers beyond those that the actor gave (central prediction)
    samples      trained on beyond those that the buffer handed out
    checkpoints  loaded by actor or workers without a version that the model pool had served
    """
    actions = 0.0
    if not plan.predict_local:
        actions = max(0.0, board.total("aisrv", "actions") - board.total("actor", "actions"))
    samples = max(0.0, board.total("learner", "items_trained") - board.total("buffer", "sampled"))
    loaded = board.total("actor", "models_loaded") + board.total("aisrv", "models_loaded")
    checkpoints = max(0.0, loaded - board.total("model_pool", "served"))
    return {"actions": actions, "samples": samples, "checkpoints": checkpoints}


def write_summary(run_dir: Path, board: Board, plan: Plan, cause: str) -> None:
    """Write `summary.json` and log one line a process."""
    processes = board.processes()
    summary = {"cause": cause, "env_steps": board.env_steps, "bypassed": bypasses(board, plan), "processes": processes}
    (run_dir / "summary.json").write_text(json.dumps(summary, indent=1))
    for name, totals in processes.items():
        logger.info(
            "{:<14} pid {:>7.0f}  messages in {:>9,.0f} out {:>9,.0f}  MB in {:>8,.1f} out {:>8,.1f}  "
            "version {:.0f}.{:.0f}  memory {:,.0f} MB",
            name,
            totals.get("pid", 0),
            totals.get("wire/messages_in", 0),
            totals.get("wire/messages_out", 0),
            totals.get("wire/bytes_in", 0) / 1e6,
            totals.get("wire/bytes_out", 0) / 1e6,
            totals.get("version_epoch", 0),
            totals.get("version_update", 0),
            totals.get("rss_mb", 0),
        )
    peak = sum(board.total(role, "peak_mb") for role in {name.split("-")[0] for name in processes})
    worker = max((mb["peak_mb"] for name, mb in processes.items() if name.startswith("aisrv")), default=0.0)
    logger.info("peak memory: {:,.0f} MB in all processes, {:,.0f} MB of the largest worker", peak, worker)
    past = summary["bypassed"]
    logger.info("went past their role: {}", past)
