"""Limits how far workers run ahead of the learner: the version that the next prediction must wait for.

Used by a policy, which waits for that version, and by the sender of rounds (`wire/samples.py`). No I/O.
"""

from __future__ import annotations

from realm.contract import NO_VERSION, Version


class VersionGate:
    """Bounds policy lag at the source: a worker waits for a minimum version before it collects another round.

    A bucket of credits, counted in samples. A round (one chunk of every environment of all workers) costs N * E, each
    new version that this worker sees adds one batch, and the bucket holds (max_version_lag + 1) batches. So production
    keeps pace with training and is at most the lag ahead. Strict on-policy is a bucket of exactly one round.
    Workers share no counter: a restarted worker starts with a full bucket, a new epoch or a lost buffer fills it
    (`refill`), a round that the buffer refused is paid back (`refund`), and credits above the bucket's size are lost.
    It cannot stall: a batch is whole rounds, preload is at most (max_version_lag + 1) batches, and the buffer has room
    for a batch and a round more (`flow.check_flow`). So all workers together may play what the first update needs, and
    each update gives them the credits for one batch more. Refusals and lost rounds are paid back, so a worker never
    waits for a version that needs its own missing rounds.
    A formula, such as "round r needs version floor(r * N * E / batch) - lag", would need an r that agrees with the
    learner's count. There is none after a restart, a resume or a lost buffer; credits refer to what was seen since.
    """

    def __init__(self, max_version_lag: int | None, batch: int, round_size: int) -> None:
        """batch: samples of an update; round_size: N * E. max_version_lag None: no bound, nothing is counted."""
        self._bounded = max_version_lag is not None
        self._batch, self._cost = batch, round_size
        self._bucket = ((max_version_lag or 0) + 1) * batch
        self._credits = self._bucket
        self._unpaid = True
        self._seen = NO_VERSION
        self._floor = NO_VERSION

    def minimum(self) -> Version:
        """The oldest version that may answer the next prediction."""
        if not self._bounded or not self._unpaid:
            return NO_VERSION
        missing = max(0, self._cost - self._credits)
        earned = Version(self._seen.epoch, self._seen.update + -(-missing // self._batch)) if missing else NO_VERSION
        return max(earned, self._floor)

    def see(self, version: Version) -> None:
        """Note the version of a prediction; the first prediction of a round pays for the round."""
        if version.epoch > self._seen.epoch:
            self._credits = self._bucket
        elif version > self._seen:
            self._credits = min(self._bucket, self._credits + (version.update - self._seen.update) * self._batch)
        self._seen = max(self._seen, version)
        if self._unpaid:
            self._credits -= self._cost
            self._unpaid = False

    def begin_round(self) -> None:
        self._unpaid = True

    def refund(self, wanted: Version) -> None:
        """Pay back a round that the buffer refused because it was older than `wanted`."""
        self._credits = min(self._bucket, self._credits + self._cost)
        self._floor = max(self._floor, wanted)

    def refill(self) -> None:
        """Fill the bucket after a restart of the buffer: workers must collect its lost items again."""
        self._credits = self._bucket
        # the items before a refused round are gone, so the version it asked for may need this worker's next round
        self._floor = NO_VERSION
