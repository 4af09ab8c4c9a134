"""The model pool: keeps the last K published models and sends the newest to each reader that has an older one.

A request for `latest` stays open until there is a newer model, so readers need not poll and get no backlog.
"""

from __future__ import annotations

from collections import OrderedDict

from realm.contract import NO_VERSION, Array, ModelTag, Version
from realm.roles.job import Job
from realm.wire.codec import Message, WireError
from realm.wire.models import parse_model, tag_meta
from realm.wire.sockets import wait_any


def run(job: Job) -> None:
    """Serve until stopped."""
    link, meters, server = job.link, job.link.meters, job.bound()
    models: OrderedDict[Version, tuple[ModelTag, Array]] = OrderedDict()
    waiting: dict[str, tuple[bytes, int, Version]] = {}  # sender -> peer, sequence number, version that it has
    link.ready([server])
    while True:
        link.tick()
        received = server.receive()
        if received is None:
            wait_any([server], 20)
            continue
        peer, message = received
        try:
            match message.kind:
                case "publish":
                    tag = parse_model(message)
                    models[tag.version] = (tag, message.array("weights"))
                    server.expect(2 * max(weights.nbytes for _, weights in models.values()))
                    while len(models) > job.config.app.modelpool_max_save_model_count:
                        models.pop(min(models))
                    meters.count("published")
                    meters.totals["version_epoch"], meters.totals["version_update"] = max(models)
                    server.send(peer, Message("have", message.seq))
                case "offer":
                    known = max(models, default=NO_VERSION) >= message.version()
                    server.send(peer, Message("have" if known else "want", message.seq))
                case "latest":
                    waiting[message.sender] = (peer, message.seq, message.version("have"))
                case kind:
                    raise WireError(f"the model pool does not answer {kind!r}")
        except WireError as error:
            server.reject(peer, error)
            continue
        newest = max(models, default=NO_VERSION)
        for sender, (asker, seq, have) in list(waiting.items()):
            if newest > have:
                tag, weights = models[newest]
                server.send(asker, Message("model", seq, tag_meta(tag), {"weights": weights}))
                meters.count("served")
                del waiting[sender]
