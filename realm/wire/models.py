"""The verb `latest`: published weights go from the learner to the model pool, and from there to each reader.

ModelWriter     the learner's side
ModelReader     the side of the actor and of workers that predict locally
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

import numpy as np

from realm.contract import NO_VERSION, ModelTag, Version
from realm.watch.progress import Every
from realm.wire.codec import parsed
from realm.wire.sockets import Client, wait_any

OFFER_EVERY_S = 1.0


class ModelReader:
    """`latest`: keeps one question open at the pool, which answers as soon as it has a newer model.

    load: puts safetensors bytes into the agent's model.
    """

    def __init__(self, client: Client, load: Callable[[bytes], object]) -> None:
        self._client, self._load = client, load
        self.version = NO_VERSION
        self.env_steps = self.memory_size = 0
        """Played before the loaded model was published, and samples in the buffer at that time."""
        self.loaded = 0
        self._client.ask("latest", {"have": list(NO_VERSION)})

    def poll(self) -> bool:
        """Load a model if one has arrived; return whether the version changed."""
        message = self._client.collect()
        if message is None:
            return False
        tag = parsed(message, ModelTag)
        changed = tag.version > self.version
        if changed:
            self._load(message.array("weights").tobytes())
            self.version, self.env_steps, self.memory_size = tag.version, tag.env_steps, tag.memory_size
            self.loaded += 1
        self._client.ask("latest", {"have": list(self.version)})
        return changed

    def wait(self, minimum: Callable[[], Version], tick: Callable[[], None]) -> Version:
        """Load a model if one has arrived; wait until `minimum()` or newer is loaded. tick: called while waiting."""
        self.poll()
        while self.version < minimum() or self.version == NO_VERSION:
            tick()
            wait_any([self._client], 50)
            self.poll()
        return self.version


class ModelWriter:
    """The other side of `latest`: from the learner to the pool. Only the newest model waits to be sent."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._tag = ModelTag(NO_VERSION, 0)
        self._weights = np.empty(0, np.uint8)
        self._seq = 0
        self._may_offer = Every(OFFER_EVERY_S)

    @property
    def newest(self) -> Version:
        return self._tag.version

    def publish(self, version: Version, env_steps: int, weights: bytes, memory_size: int = 0) -> None:
        self._tag = ModelTag(version, env_steps, memory_size)
        self._weights = np.frombuffer(weights, np.uint8)
        self._send()

    def tick(self) -> None:
        """Take the pool's answers; once a second offer the newest model, so that a restarted pool can ask for it."""
        while (answer := self._client.collect()) is not None:
            if answer.kind == "want":
                self._send()
        if self._client.unanswered == 0 and self._may_offer.due():
            self._client.ask("offer", {"version": list(self._tag.version)})

    def _send(self) -> None:
        self._client.forget(self._seq)
        self._seq = self._client.ask("publish", asdict(self._tag), {"weights": self._weights}, checksum=True)
