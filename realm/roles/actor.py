"""The inference server: answers the predictions of all workers with one forward pass over whatever waits.

No timer: a batch is what has arrived, up to `predict_batch_size` rows. A request that asks for a version which is
not here yet is parked until the model pool has brought it. Here `actor` has KaiwuDRL's meaning; elsewhere the
word often names the process that steps environments.
"""

from __future__ import annotations

import os
import time

import numpy as np

from realm.contract import NO_VERSION, Array, PredictContext, PredictRequest
from realm.errors import ContractError
from realm.learn.checkpoint import load_bytes
from realm.roles.job import Job
from realm.user import load_agent, load_hyper
from realm.wire.codec import Message, WireError
from realm.wire.models import ModelReader
from realm.wire.predict import checked_answer, parse_request, reply_fields, request_fields
from realm.wire.sockets import wait_any

_AWAKE_S = 0.001
"""For so long after an answer the actor looks for questions without sleep: a core that slept takes longer to answer."""


def run(job: Job) -> None:
    """Serve until stopped."""
    app, link, meters, server = job.config.app, job.link, job.link.meters, job.bound()
    agent = load_agent(app.algo)(job.spec, load_hyper(app.algo, job.config.hyper), job.plan.device, job.seed)
    to_pool = job.client("model_pool")
    models = ModelReader(to_pool, lambda weights: load_bytes(agent.model, weights))
    fields, answer_fields = request_fields(job.spec), reply_fields(job.spec)
    waiting: dict[int, tuple[bytes, PredictRequest]] = {}  # by worker: a question sent twice counts once

    def answer(batch: list[tuple[bytes, PredictRequest]]) -> None:
        """One forward pass over these questions, and its part to each who asked."""
        started = time.perf_counter()
        requests = [request for _, request in batch]
        obs = {name: _joined([one.obs[name] for one in requests]) for name in requests[0].obs}
        context = PredictContext(
            slot=_joined([one.slot + (one.worker << 32) for one in requests]),
            first=_joined([one.first for one in requests]),
            explore=_joined([one.explore for one in requests]),
        )
        predicted = checked_answer(agent.predict(obs, context), answer_fields, len(context.first))
        row = 0
        for peer, request in batch:
            rows = slice(row, row + len(request.first))
            row = rows.stop
            arrays = {name: array[rows] for name, array in predicted.items()}
            server.send(peer, Message("action", request.seq, {"version": list(models.version)}, arrays))
        meters.count("actions", row)
        meters.count("forwards")
        meters.put("batch_rows", row)
        meters.count(f"batch_rows_to_{1 << (row - 1).bit_length()}")  # a histogram over powers of two
        meters.timing("forward", time.perf_counter() - started)
        meters.count("busy_s", time.perf_counter() - started)

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
        link.tick()  # what nobody waits for comes after the answers
        if models.poll():
            meters.totals["models_loaded"] = models.loaded
            meters.put("publish_to_use_ms", 1e3 * models.delay_s)
            meters.totals["version_epoch"], meters.totals["version_update"] = models.version
        elif not batch:
            if time.perf_counter() < awake_until:
                os.sched_yield()  # to whoever wants this core
            else:
                wait_any([server, to_pool], 20)


def _joined(arrays: list[Array]) -> Array:
    """[n, ...] each -> [N, ...], read-only as what came over a socket; not copied where only one worker asks."""
    joined = arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
    joined.setflags(write=False)
    return joined


def _take_batch(
    waiting: dict[int, tuple[bytes, PredictRequest]], models: ModelReader, max_rows: int
) -> list[tuple[bytes, PredictRequest]]:
    """Remove from `waiting` the requests of the next forward pass: those that this version may answer."""
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
