"""The inference server: answers all waiting prediction requests with one forward pass.

There is no timer: a batch holds the requests that have arrived, up to `predict_batch_size` rows. A request for a newer
version waits until the model pool has sent it. `actor` has KaiwuDRL's meaning here; elsewhere the word often names the
process that steps environments.
"""

from __future__ import annotations

import time
from functools import lru_cache

import numpy as np

from realm.contract import NO_VERSION, Array, Arrays, PredictContext, Version
from realm.learn.checkpoint import acting, load_bytes
from realm.policy.local_policy import answer_checker, reply_fields, request_fields
from realm.roles import WAITS
from realm.roles.job import Job
from realm.user import make_agent
from realm.wire.codec import Message, WireError
from realm.wire.line import Frame, Lines, Question
from realm.wire.models import ModelReader

_LOOK_S = 0.02
"""So often, and whenever something has arrived there, the actor looks beyond its lines."""


def run(job: Job) -> None:
    """Serve until stopped."""
    app, link, meters, server = job.config.app, job.link, job.link.meters, job.bound()
    agent = make_agent(job.config, job.spec, job.plan.device, job.seed)
    to_pool = job.client("model_pool")
    parts = acting(agent)
    models = ModelReader(to_pool, lambda weights: load_bytes(agent.model, weights, parts))
    checked = answer_checker(agent, job.spec)

    def answer(batch: list[Question]) -> None:
        """Run one forward pass over these questions and send each worker its rows."""
        started = time.perf_counter()
        served = models.version, models.env_steps, models.memory_size
        given, context = joined(batch, models.env_steps, models.memory_size)
        predicted = checked(agent.predict(given, context), len(context.first))
        row = 0
        for question in batch:
            lines.answer(question, served, predicted, row)
            row += question.head.rows
        meters.count("actions", row)
        meters.count("forwards")
        meters.put("batch_rows", row)
        meters.count(f"batch_rows_to_{1 << (row - 1).bit_length()}")  # histogram over powers of two
        meters.timing("forward", time.perf_counter() - started)
        meters.count("busy_s", time.perf_counter() - started)

    def invite(peer: bytes, message: Message) -> None:
        """Answer a worker that asks for a line."""
        worker = message.integer("worker")
        if not 0 <= worker < 1 << 31:  # `joined` shifts it into the upper half of a slot
            raise WireError(f"line for {message.sender}: worker must be from 0 to 2**31 - 1, got {worker}")
        server.send(peer, Message("line", message.seq, lines.invite(worker)))

    lines = Lines(server, [server, to_pool], request_fields(job.spec), reply_fields(job.spec))
    server.expect(0)  # who asks for a line sends little
    try:
        link.ready([server, to_pool])
        looked_at, again = 0.0, True
        while True:
            others = lines.receive(0.0 if again else _LOOK_S)
            batch = take_batch(lines.waiting, models.version, app.predict_batch_size)
            if batch:
                answer(batch)
            again = bool(batch and lines.waiting)  # more than a batch was there
            now = time.perf_counter()
            if not others and now - looked_at < _LOOK_S:
                continue
            looked_at = now
            link.tick()
            if any(question.head.version > models.version for question in lines.waiting.values()):
                link.waits(WAITS["parked"])
            else:
                link.goes_on()
            server.serve(invite)
            if models.poll():
                again = True  # what waited for these weights
                link.goes_on()
                meters.totals["models_loaded"] = models.loaded
                meters.totals["version_epoch"], meters.totals["version_update"] = models.version
    finally:
        lines.close()


def joined(batch: list[Question], env_steps: int, memory_size: int) -> tuple[Arrays, PredictContext]:
    """Observations name -> [N, ...] and context of these questions, one after the other. No copy if only one worker
    asks."""
    frames = [question.frame for question in batch]
    context = PredictContext(
        slot=_together([_slots(question.caller, question.head.rows) for question in batch]),
        first=_together([frame.arrays["first"] for frame in frames]),
        explore=_together([frame.arrays["explore"] for frame in frames]),
        env_steps=env_steps,
        state=_group(frames, "state"),
        memory_size=memory_size,
    )
    return _group(frames, "obs"), context


def _group(frames: list[Frame], name: str) -> Arrays:
    return {inner: _together([frame.group(name)[inner] for frame in frames]) for inner in frames[0].group(name)}


def _together(arrays: list[Array]) -> Array:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


@lru_cache(maxsize=256)
def _slots(worker: int, rows: int) -> Array:
    return np.arange(rows) + (worker << 32)


def take_batch(waiting: dict[int, Question], version: Version, max_rows: int) -> list[Question]:
    """Remove from `waiting` and return the questions of the next forward pass: those that this version may answer."""
    batch: list[Question] = []
    rows = 0
    for worker, question in list(waiting.items()) if version != NO_VERSION else ():
        if question.head.version > version:
            continue
        if batch and rows + question.head.rows > max_rows:
            break
        batch.append(question)
        rows += question.head.rows
        del waiting[worker]
    return batch
