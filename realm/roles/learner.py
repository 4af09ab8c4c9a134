"""Trains: takes batches from the buffer, runs the agent's `learn`, publishes weights, keeps checkpoints.

With `learner_count` W above 1 it is rank 0 of W processes that train as one. It alone talks to other roles, and starts
the other ranks, which end with it. `Ranked` hands out the parts of a batch; `follow` is the loop that takes them.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import multiprocessing
import os
import signal
import time
from collections.abc import Generator
from contextlib import closing, suppress
from multiprocessing.connection import Connection
from typing import Any, cast

import setproctitle
from loguru import logger

from realm.algorithms.group import Ranks
from realm.contract import Agent, Arrays, Chunk, Learned, SampleInfo, Version, arrays_to_chunk, chunk_to_arrays
from realm.errors import RunError, Stopped, UserCodeError
from realm.learn.checkpoint import load_newest, restore
from realm.learn.trainer import begin
from realm.roles import WAITS
from realm.roles.job import Job
from realm.user import enter, make_agent
from realm.wire.codec import Message
from realm.wire.models import ModelWriter
from realm.wire.samples import BatchReader


def run(job: Job) -> None:
    """Train until stopped, then save."""
    app, plan, link = job.config.app, job.plan, job.link
    agent: Any = make_agent(job.config, job.spec, device_of(job, 0), app.seed)
    if plan.publish_early:
        check_yields(agent)
    ranked = agent = Ranked(agent, job) if plan.learners > 1 else agent
    trainer = begin(agent, job.spec, app, job.run_dir, job.epoch, link.meters)
    to_pool, to_buffer = job.client("model_pool"), job.client("buffer")
    models = ModelWriter(to_pool)

    def tick() -> None:
        models.tick()
        link.tick()
        if plan.learners > 1:
            ranked.check()
        if "save" in link.commands():
            trainer.save_for_user(job.run_dir / "user_ckpt", app.user_save_mode_max_count)

    def publish(version: Version, env_steps: int) -> None:
        started = time.monotonic()
        models.publish(version, env_steps, trainer.weights(), trainer.memory_size)
        link.meters.count("published")
        link.meters.count("publish_s", time.monotonic() - started)

    batches = BatchReader(to_buffer, plan.batch, link.waiting(WAITS["batch"], tick), plan.on_policy)
    publish(trainer.version, trainer.env_steps)
    link.env_steps = trainer.env_steps
    link.ready([to_pool, to_buffer], trainer.origin)
    logger.info("training from {}", trainer.version)
    try:
        batches.request(trainer.version)
        while True:
            started = time.monotonic()
            items, info = batches.receive()
            link.goes_on()
            link.meters.count("wait_s", time.monotonic() - started)
            if not plan.rest_s:
                # the batch after this one is asked for now, and will be trained on the version after this one
                batches.request(trainer.next_version)
            priorities = trainer.update(items, info, publish if plan.publish_early else None)
            if priorities is not None:
                batches.set_priorities(info, priorities)
            # unless they went out where `learn` yielded
            if models.newest != trainer.version and trainer.version.update % app.publish_every == 0:
                publish(trainer.version, trainer.env_steps)
            link.env_steps = trainer.env_steps
            tick()
            if plan.rest_s:
                until = time.monotonic() + plan.rest_s
                while (left := until - time.monotonic()) > 0:
                    time.sleep(min(left, 0.05))
                    tick()
                batches.request(trainer.version)
    except Stopped:
        trainer.save_last()  # not after an error: an update that failed halfway may have left anything in the weights
        raise


def check_yields(agent: Agent) -> None:
    """Raise UserCodeError unless weights can go out before an update is over."""
    if not inspect.isgeneratorfunction(agent.learn):
        raise UserCodeError(
            f'{inspect.getsourcefile(type(agent))}: max_version_lag is "part", but Agent.learn is no generator, so '
            "its weights cannot go out before an update is over; yield once in learn, or set max_version_lag to a "
            'number or "free"'
        )


class Ranked:
    """Rank 0's agent, and the processes of the other ranks, which it has learn what it learns.

    It sends them a `part` of each batch, and `on` where `learn` yields; anything else there ends that update. Before
    that, and where this one has gone back to it, they `restore` the newest checkpoint.
    """

    def __init__(self, agent: Any, job: Job) -> None:
        self._file = inspect.getsourcefile(type(agent))
        if not callable(getattr(agent, "join", None)):
            raise UserCodeError(
                f"{self._file}: Agent has no join(group), by which it trains as one of several learners; learner_count "
                f"is {job.plan.learners}, it must be 1"
            )
        self._agent, self._codec, self.model = agent, job.codec, agent.model
        self.learn = functools.wraps(agent.learn)(lambda *of: self._learn(*of))  # messages name the user's function
        self._restored = True  # from a checkpoint, from which the others have yet to begin
        self._others: list[tuple[Any, Connection]] = []
        (job.run_dir / _MEETING).unlink(missing_ok=True)
        spawn = multiprocessing.get_context("spawn")
        os.environ["PYTHONSAFEPATH"] = "realm"  # a new Python must not take a module of the user's for one of its own
        for rank in range(1, job.plan.learners):
            ours, theirs = spawn.Pipe()
            of = dataclasses.replace(job, link=cast(Any, None), server=None)  # what no other process can have
            self._others.append((spawn.Process(target=follow, args=(rank, theirs, of), daemon=True), ours))
            self._others[-1][0].start()
            theirs.close()
        del os.environ["PYTHONSAFEPATH"]
        try:
            for _, line in self._others:
                line.recv_bytes()  # it is there
        except EOFError:
            self.check(5.0)
            raise
        self._group = join(agent, job, 0)
        (job.run_dir / _MEETING).unlink(missing_ok=True)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._agent, name)

    def load_model(self, state: dict[str, Any]) -> None:
        self._agent.load_model(state)
        self._restored = True

    def check(self, wait_s: float = 0.0) -> None:
        """Raise RunError if another rank has ended."""
        for rank, (process, _) in enumerate(self._others, 1):
            process.join(wait_s)
            if process.exitcode is not None:
                raise RunError(
                    f"rank {rank} of {len(self._others) + 1} learners ended with exit code {process.exitcode}"
                )

    def _learn(self, batch: Chunk, info: SampleInfo) -> Generator[None, None, Learned]:
        try:
            if self._restored:
                self._tell("restore")
                self._restored = False
            items = chunk_to_arrays(batch) | {name: getattr(info, name) for name in _EACH}
            meta = {name: value for name, value in vars(info).items() if name not in _EACH}
            size = len(batch.worker) // self._group.size
            self._tell("part", meta, items, size)
            learned = self._agent.learn(*batch_of({name: array[:size] for name, array in items.items()}, meta))
            if isinstance(learned, Generator):
                learned = yield from self._in_step(learned)
            differs = self._group.differs(self.model.state_dict().values())
        except (RuntimeError, OSError):  # torch's where a connection ends
            self.check(0.5)
            raise
        if differs:
            raise UserCodeError(
                f"{self._file}: the weights of the learners differ after update {info.version.update + 1}, since learn "
                "depends on more than what all have; learner_count must be 1"
            )
        return cast(Learned, learned)

    def _in_step(self, learning: Generator[None, None, Learned]) -> Generator[None, None, Learned]:
        """Yield where it does; the others go on if this one does."""
        with closing(learning):
            try:
                while True:
                    next(learning)
                    goes_on = False
                    try:
                        yield
                        goes_on = True
                    finally:
                        self._tell("on" if goes_on else "off")
            except StopIteration as end:
                return cast(Learned, end.value)

    def _tell(self, kind: str, meta: dict[str, Any] | None = None, arrays: Arrays | None = None, size: int = 0) -> None:
        """size: rows of the arrays that each rank gets."""
        for rank, (_, line) in enumerate(self._others, 1):
            part = {name: array[rank * size :][:size] for name, array in (arrays or {}).items()}
            frames = self._codec.encode(Message(kind, 0, meta or {}, part))
            for frame in (str(len(frames)).encode(), *frames):
                line.send_bytes(frame)


def follow(rank: int, line: Connection, job: Job) -> None:
    """Be another rank: learn from the parts that rank 0 sends, until it is gone."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # rank 0 hears them, and ends in order
    setproctitle.setproctitle(f"realm learner-0 rank {rank} {job.run_dir}")
    enter(job.config, "learner", job.run_dir)
    agent = make_agent(job.config, job.spec, device_of(job, rank), job.config.app.seed)
    line.send_bytes(b"")
    group = join(agent, job, rank)

    def receive() -> Message:
        return job.codec.decode([line.recv_bytes() for _ in range(int(line.recv_bytes()))])

    with suppress(EOFError):  # rank 0 has ended
        while True:
            message = receive()
            if message.kind == "restore" and (newest := load_newest(job.run_dir / "ckpt")[0]):
                restore(agent, newest)
            elif message.kind == "part":
                agent.model.train()
                learning, goes_on = agent.learn(*batch_of(message.arrays, message.meta)), True
                if isinstance(learning, Generator):
                    with closing(learning):
                        goes_on = all(receive().kind == "on" for _ in learning)
                agent.model.eval()
                if goes_on:
                    group.differs(agent.model.state_dict().values())  # rank 0 says so


_MEETING = ".learners"  # in a run's folder, while ranks start
_EACH = ("key", "probability", "times_sampled")  # fields of SampleInfo with a number of each sample


def batch_of(arrays: Arrays, meta: dict[str, Any]) -> tuple[Chunk, SampleInfo]:
    chunk = arrays_to_chunk({name: array for name, array in arrays.items() if name not in _EACH})
    each = {name: arrays[name] for name in _EACH}
    return chunk, SampleInfo(**{**each, **meta, "version": Version(*meta["version"])})


def join(agent: Any, job: Job, rank: int) -> Ranks:
    group = Ranks(rank, job.plan.learners, job.run_dir / _MEETING, device_of(job, rank), job.config.app.start_timeout_s)
    agent.join(group)
    return group


def device_of(job: Job, rank: int) -> str:
    return f"cuda:{rank}" if job.plan.learners > 1 and job.plan.device == "cuda" else job.plan.device
