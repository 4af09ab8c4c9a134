"""The model pool: keeps the newest published model and sends it to each reader that has an older one.

A request for `latest` stays open until there is a newer model, so readers need not poll and get no backlog. The pool
keeps the first model, too: the evaluator judges the untrained policy, and asks for it when training is under way.

Each host has a pool for its workers (`index` is not 0), a reader of the first one: so weights cross the cable once.
"""

from __future__ import annotations

import time
from dataclasses import asdict

from realm.contract import NO_VERSION, Array, ModelTag, Version
from realm.roles.job import Job
from realm.wire.codec import Message, WireError, parsed
from realm.wire.sockets import Socket, wait_any


def run(job: Job) -> None:
    """Serve until stopped."""
    link, meters, server = job.link, job.link.meters, job.bound()
    first: tuple[ModelTag, Array] | None = None
    newest: tuple[ModelTag, Array] | None = None
    waiting: dict[str, tuple[bytes, Message, Version]] = {}  # sender -> peer, its question, version that it has
    loading: dict[str, Version] = {}  # sender -> the version that it was sent
    arrived_at = 0.0
    received: tuple[bytes, Message] | None
    sockets: list[Socket] = [server]
    if job.index:
        sockets.append(upstream := job.client("model_pool"))
        upstream.ask("latest", {"have": list(NO_VERSION)})
    link.ready(sockets)
    while True:
        link.tick()
        if job.index and (model := upstream.collect()) is not None:
            received = b"", model
            upstream.ask("latest", {"have": list(model.version())})
        else:
            received = server.receive()
        if received is None:
            wait_any(sockets, 20)
            continue
        peer, message = received
        try:
            match message.kind:
                case "publish" | "model":
                    tagged = parsed(message, ModelTag), message.array("weights")
                    first = first or tagged
                    if newest is None or tagged[0].version > newest[0].version:
                        newest, arrived_at = tagged, time.monotonic()
                    server.expect(2 * newest[1].nbytes)
                    if not job.index:
                        meters.count("published")
                        meters.totals["model_bytes"] = newest[1].nbytes
                        meters.totals["version_epoch"], meters.totals["version_update"] = newest[0].version
                        server.send(peer, Message("have", message.seq))
                case "offer":
                    offered = message.version()
                    known = newest is not None and newest[0].version >= offered
                    server.send(peer, Message("have" if known else "want", message.seq))
                case "latest":
                    have = message.version("have")
                    waiting[message.sender] = (peer, message, have)
                    # whoever asks for the next one has loaded this one
                    if newest and loading.pop(message.sender, None) == have == newest[0].version:
                        meters.put("publish_to_use_ms", 1e3 * (time.monotonic() - arrived_at))
                case "first":
                    waiting[message.sender] = (peer, message, NO_VERSION)
                case kind:
                    raise WireError(f"the model pool does not answer {kind!r}")
        except WireError as error:
            server.reject(peer, error)
            continue
        if first is None or newest is None:
            continue
        for sender, (asker, question, have) in list(waiting.items()):
            if newest[0].version > have:
                tag, weights = first if question.kind == "first" else newest
                server.send(asker, Message("model", question.seq, asdict(tag), {"weights": weights}), checksum=True)
                meters.count("served")
                loading[sender] = tag.version
                del waiting[sender]
