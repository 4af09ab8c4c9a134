"""The summary of a run: totals of every process, and a check that nothing bypassed its role.

`commands/train.py` calls it after all roles have ended; it writes `summary.json`, and warns of what was
not as it should be. What a person wants to know at the end is in `commands/ending.py`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from loguru import logger

from realm.config.plan import Plan
from realm.files import replace_file, set_aside
from realm.watch.board import Board


def bypasses(board: Board, plan: Plan, ran: Mapping[str, str]) -> dict[str, float | None]:
    """Count data that did not go through its role; all zero in a healthy run.

    None: unknown, because that role was started again, and a killed process does not report its last second. ran: as
    of `shares`; workers of hosts predict for themselves.

    actions      used by workers minus given by the actor (remote prediction)
    samples      trained on minus handed out by the buffer
    checkpoints  loaded by actor, workers and evaluator minus served by the model pool
    """

    def beyond(used: float, role: str, given: str) -> float | None:
        return None if board.restarted(role) else max(0.0, used - board.total(role, given))

    loaded = sum(board.total(role, "models_loaded") for role in ("actor", "aisrv", "evaluator"))
    return {
        "actions": 0.0 if plan.predict_local or ran else beyond(board.total("aisrv", "actions"), "actor", "actions"),
        "samples": beyond(board.total("learner", "items_trained"), "buffer", "sampled"),
        "checkpoints": beyond(loaded, "model_pool", "served"),
    }


def environment_faults(board: Board) -> dict[str, int]:
    """What failures of environments have cost in all workers: restarts, what was thrown away (`rollout/rounds.py`); and
    memories of a policy that were (`policy/state.py`)."""
    names = ("env_restarts", "dropped_episodes", "dropped_chunks", "cleared_memories")
    return {name: int(board.total("aisrv", name)) for name in names}


def shares(board: Board, ran: Mapping[str, str]) -> dict[str, dict[str, float]]:
    """Host -> what its processes have done so far; up and down are bytes on its cable. ran: process, as the board calls
    it, -> its host."""
    found: dict[str, dict[str, float]] = {}
    for process, totals in board.processes().items():
        if host := ran.get(process):
            share = found.setdefault(host, {"env_steps": 0.0, "up": 0.0, "down": 0.0})
            share["env_steps"] += totals.get("env_steps", 0.0)
            # models come to its pool, and from there to its workers without the cable
            way = ("down", "wire/bytes_in") if process.startswith("model_pool") else ("up", "wire/bytes_out")
            share[way[0]] += totals.get(way[1], 0.0)
    return found


def write_summary(run_dir: Path, board: Board, plan: Plan, cause: str, ran: Mapping[str, str]) -> None:
    """Write `summary.json` (an earlier session's is kept as `summary.json.<n>`); a full disk is a warning. ran: as of
    `shares`."""
    bypassed = bypasses(board, plan, ran)
    summary = {
        "cause": cause, "env_steps": board.env_steps, "bypassed": bypassed,
        "environments": environment_faults(board), "processes": board.processes(), "hosts": shares(board, ran),
    }  # fmt: skip
    try:
        if (run_dir / "summary.json").exists():
            set_aside(run_dir / "summary.json")
        replace_file(run_dir / "summary.json", json.dumps(summary, indent=1).encode(), sync=False)
    except OSError as error:
        logger.warning("cannot write {}: {}", run_dir / "summary.json", error)
    for what, amount in bypassed.items():
        if amount:
            logger.warning(
                "{:,.0f} {} did not come from the role that hands them out, which is an error in Realm; see {}",
                amount, what, run_dir / "summary.json",
            )  # fmt: skip
    warn_of_faults(board)


def warn_of_faults(board: Board) -> None:
    """Say what failures of environments have cost, if there were any."""
    faults = environment_faults(board)
    if faults["cleared_memories"]:
        logger.warning("{:,} memories of the policy had NaN or infinity and were cleared", faults["cleared_memories"])
    if any(faults[name] for name in ("env_restarts", "dropped_episodes", "dropped_chunks")):
        logger.warning(
            "environments failed and were made again {:,} times; {:,} episodes and {:,} chunks were thrown away",
            faults["env_restarts"], faults["dropped_episodes"], faults["dropped_chunks"],
        )  # fmt: skip
