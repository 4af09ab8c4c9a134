"""The whole pipeline in one process: the same workflow, buffer rules and trainer, with plain calls between them.

Called by the command line when `wrapper_type` is local, and by `train_test.py`. No sockets, no reverb, no TensorFlow.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from realm.config.load import RunConfig
from realm.config.plan import Plan
from realm.contract import Chunk, Report, Spec, Version, WorkflowContext, chunk_to_arrays
from realm.data.buffer import make_replay_buffer
from realm.data.gate import VersionGate
from realm.learn.checkpoint import find
from realm.learn.trainer import Trainer
from realm.user import load_agent, load_definition, load_hyper, load_workflow
from realm.watch.board import Board
from realm.watch.meters import Meters
from realm.watch.progress import Every
from realm.watch.tensorboard import TensorBoard
from realm.wire.predict import LocalPolicy
from realm.wire.samples import LocalBuffer

_CURVES_EVERY_S = 2.0


@dataclass(frozen=True)
class End:
    """How a one-process run ended. metrics: the agent's own, smoothed over the last updates."""

    cause: str
    version: Version
    env_steps: int
    updates: int
    metrics: dict[str, float]


def run(
    config: RunConfig, plan: Plan, spec: Spec, run_dir: Path, epoch: int, show: Callable[[Board, str], None]
) -> End:
    """Train until a limit or a signal."""
    app = config.app
    hyper = load_hyper(app.algo, config.hyper)
    envs = load_definition(app.algo).make_envs(plan.envs_per_worker, app.seed, hyper, config.env)
    agent = load_agent(app.algo)(spec, hyper, plan.device, app.seed)
    board, played, trained = Board(), Meters(), Meters()
    trainer = Trainer(agent, spec, run_dir / "ckpt", app.dump_model_freq, app.modelpool_max_save_model_count, trained)
    trainer.start(epoch, find(Path(app.preload_model_dir), app.preload_model_id) if app.preload_model else None)
    buffer = make_replay_buffer(plan, spec, "local", app.seed)

    def train() -> bool:
        """One update, if the buffer has a batch."""
        drawn = buffer.draw(plan.batch, trainer.version)
        if drawn is None:
            return False
        priorities = trainer.update(*drawn)
        if priorities is not None:
            buffer.storage.update_priorities(drawn[1].key, priorities)
        return True

    def make_room() -> None:
        if not train():
            raise RuntimeError(f"the buffer is full ({buffer.size} samples) and yet holds no batch of {plan.batch}")

    def report() -> None:
        board.take(Report("aisrv", 0, trainer.env_steps, *played.snapshot()), 1)
        board.take(Report("learner", 0, trainer.env_steps, *trained.snapshot()), 1)
        board.take(Report("buffer", 0, trainer.env_steps, buffer.totals(), {}), 1)

    # no gate: a batch is trained on as soon as it is there, so the newest weights always play
    policy = LocalPolicy(
        agent, spec, plan.envs_per_worker, VersionGate(None, plan.batch, plan.round_size), lambda: trainer.version
    )
    sender = LocalBuffer(buffer, make_room)
    context = WorkflowContext(spec, hyper, app.seed, 0, 1, played)
    tensorboard = TensorBoard(run_dir / "log" / "tensorboard")
    causes: list[str] = []

    def on_signal(number: int, frame: Any) -> None:
        causes.append(f"{signal.Signals(number).name} received")

    before = {one: signal.signal(one, on_signal) for one in (signal.SIGINT, signal.SIGTERM)}
    shown_at = 0.0
    curves = Every(_CURVES_EVERY_S)
    try:
        for chunk in load_workflow(app.algo)(envs, policy, context):
            items = chunk_to_arrays(chunk) if isinstance(chunk, Chunk) else chunk
            played.count("env_steps", int(items["valid"].sum()) if "valid" in items else len(items["worker"]))
            played.totals["actions"] = policy.actions
            sender.add(items)
            while train():
                pass
            now = time.monotonic()
            if now - shown_at > 0.2:
                shown_at = now
                report()
                show(board, "running")
            if curves.due():
                tensorboard.write(board.curves(), trainer.env_steps)
            if app.max_env_steps and trainer.env_steps >= app.max_env_steps:
                causes.append(f"max_env_steps = {app.max_env_steps} reached")
            if app.max_seconds and now - board.started_at >= app.max_seconds:
                causes.append(f"max_seconds = {app.max_seconds:g} reached")
            if causes:
                break
        else:
            causes.append("the workflow ended by itself")
        trainer.save()  # not after an error: weights that a failed update left half-way would be resumed
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
        report()
        tensorboard.write(board.curves(), trainer.env_steps)
        tensorboard.close()
        envs.close()
    return End(
        cause=causes[0],
        version=trainer.version,
        env_steps=trainer.env_steps,
        updates=int(board.total("learner", "updates")),
        metrics=board.recent_of("learner"),
    )
