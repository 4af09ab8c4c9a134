"""The inference server: answers all waiting prediction requests with one forward pass.

There is no timer: a batch holds the requests that have arrived, up to `predict_batch_size` rows. A request for a newer
version waits until the model pool has sent it. `actor` has KaiwuDRL's meaning here; elsewhere the word often names the
process that steps environments.
"""

from __future__ import annotations

import os
import time

import numpy as np

from realm.contract import NO_VERSION, Array, PredictContext, PredictRequest
from realm.errors import ContractError
from realm.learn.checkpoint import acting, load_bytes
from realm.roles.job import Job
from realm.user import load_agent, load_hyper
from realm.wire.codec import Message, WireError
from realm.wire.models import ModelReader
from realm.wire.predict import checked_answer, parse_request, reply_fields, request_fields
from realm.wire.sockets import wait_any

_AWAKE_S = 0.001
"""After an answer the actor looks for requests this long without sleeping: a core that slept answers more slowly."""


def run(job: Job) -> None:
    """Serve until stopped."""
    app, link, meters, server = job.config.app, job.link, job.link.meters, job.bound()
    agent = load_agent(app.algo)(job.spec, load_hyper(app.algo, job.config.hyper), job.plan.device, job.seed)
    to_pool = job.client("model_pool")
    parts = acting(agent)
    models = ModelReader(to_pool, lambda weights: load_bytes(agent.model, weights, parts))
    fields, answer_fields = request_fields(job.spec), reply_fields(job.spec)
    waiting: dict[int, tuple[bytes, PredictRequest]] = {}  # by worker, so that a repeated request counts once

    def answer(batch: list[tuple[bytes, PredictRequest]]) -> None:
        """Run one forward pass over these requests and send each worker its rows."""
        started = time.perf_counter()
        requests = [request for _, request in batch]
        obs = {name: _joined([request.obs[name] for request in requests]) for name in requests[0].obs}
        context = PredictContext(
            slot=_joined([request.slot + (request.worker << 32) for request in requests]),
            first=_joined([request.first for request in requests]),
            explore=_joined([request.explore for request in requests]),
            env_steps=models.env_steps,
            state={name: _joined([request.state[name] for request in requests]) for name in requests[0].state},
            memory_size=models.memory_size,
        )
        predicted = checked_answer(agent.predict(obs, context), answer_fields, len(context.first))
        row = 0
        for peer, request in batch:
            rows = slice(row, row + len(request.first))
            row = rows.stop
            arrays = {name: array[rows] for name, array in predicted.items()}
            known = {"env_steps": models.env_steps, "memory_size": models.memory_size}
            meta = {"version": list(models.version), **known}
            server.send(peer, Message("action", request.seq, meta, arrays))
        meters.count("actions", row)
        meters.count("forwards")
        meters.put("batch_rows", row)
        meters.count(f"batch_rows_to_{1 << (row - 1).bit_length()}")  # histogram over powers of two
        meters.timing("forward", time.perf_counter() - started)
        meters.count("busy_s", time.perf_counter() - started)

    rows = max(app.predict_batch_size, job.plan.envs_per_worker)
    server.expect(rows * sum(field.nbytes for field in fields.values()))
    link.ready([server, to_pool])
    awake_until = 0.0
    while True:
        while (received := server.receive()) is not None:
            peer, message = received
            try:
                request = parse_request(message, fields)
            except (WireError, ContractError) as error:
                server.reject(peer, error)
                continue
            waiting[request.worker] = (peer, request)
        batch = _take_batch(waiting, models, app.predict_batch_size)
        if batch:
            answer(batch)
            awake_until = time.perf_counter() + _AWAKE_S
        link.tick()  # after the answers, which workers wait for
        if models.poll():
            meters.totals["models_loaded"] = models.loaded
            meters.put("publish_to_use_ms", 1e3 * models.delay_s)
            meters.totals["version_epoch"], meters.totals["version_update"] = models.version
        elif not batch:
            if time.perf_counter() < awake_until:
                os.sched_yield()  # give this core to any process that wants it
            else:
                wait_any([server, to_pool], 20)


def _joined(arrays: list[Array]) -> Array:
    """Concatenate [n, ...] each -> [N, ...], read-only like arrays from a socket; no copy if only one worker asks."""
    joined = arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
    joined.setflags(write=False)
    return joined


def _take_batch(
    waiting: dict[int, tuple[bytes, PredictRequest]], models: ModelReader, max_rows: int
) -> list[tuple[bytes, PredictRequest]]:
    """Remove from `waiting` and return the requests of the next forward pass: those that this version may answer."""
    if models.version == NO_VERSION:
        return []
    batch: list[tuple[bytes, PredictRequest]] = []
    rows = 0
    for worker, (peer, request) in list(waiting.items()):
        if request.min_version > models.version:
            continue
        if batch and rows + len(request.first) > max_rows:
            break
        batch.append((peer, request))
        rows += len(request.first)
        del waiting[worker]
    return batch
