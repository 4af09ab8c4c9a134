"""One update after the other on the real agent: counting, lag, checkpoints. The heart of learner and local mode.

Owned by `roles/learner.py` and `launch/local.py`, which differ only in where batches come from and where
weights go.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
from loguru import logger

from realm.contract import Agent, Array, Arrays, Early, EarlyAgent, SampleInfo, Spec, Version, arrays_to_chunk
from realm.errors import CheckpointError, ContractError
from realm.learn import checkpoint
from realm.watch.meters import Meters

_WARN_EVERY_S = 60.0
WAIT = 0.03  # of the learner's time, for rounds that are played with weights which lack as little as that allows
_SAVE_WITHIN_S = 600.0  # slow updates: no more than this is lost, whatever dump_model_freq says


class WentOut(NamedTuple):
    """When the weights of an update could be had, and which part of the update's time came after that."""

    at: float  # monotonic seconds
    lacking: float  # 0 to 1


class Trainer:
    """Trains `agent` and knows its version: (epoch, update), where each start of a learner raises the epoch."""

    def __init__(self, agent: Agent, spec: Spec, folder: Path, dump_freq: int, keep: int, meters: Meters) -> None:
        """folder: where checkpoints lie (`ckpt/`); dump_freq: updates between two; keep: how many stay."""
        self.agent = agent
        self.version = Version(0, 0)
        self.env_steps = 0
        self._spec, self._folder, self._dump_freq, self._keep, self._meters = spec, folder, dump_freq, keep, meters
        self._saved = Version(0, 0)
        self._saved_at = time.monotonic()
        self._warned_at = -_WARN_EVERY_S
        self._went_out: dict[int, WentOut] = {}  # by update
        self._after = 0.5  # the part of an update after which its weights go out, if before its end
        self._update_s = 0.0  # how long the newest update took

    def start(self, epoch: int, preload: checkpoint.Checkpoint | None = None) -> None:
        """Begin an epoch: from the newest good checkpoint of the folder, else with the weights of `preload`, if any.

        Saves at once, so that there is a model before anyone plays, and reads that back, so that a state which cannot
        be loaded is known now and not when it is needed. Raises CheckpointError for it, for a preload that does not
        fit, and for a folder of which no checkpoint can be used: starting anew beside them would prune them away.
        """
        newest, skipped = checkpoint.load_newest(self._folder)
        for sentence in skipped:
            logger.warning("checkpoint skipped: {}", sentence)
        if newest is None and skipped:
            raise CheckpointError(
                f"{self._folder}: none of its {len(skipped)} checkpoints can be used ({skipped[0]}); move them away to "
                "start anew"
            )
        self.version = Version(epoch, 0)
        if newest is not None:
            if newest.schema != self._spec.schema:
                raise CheckpointError(
                    f"{newest.path}: was trained with other shapes (schema {newest.schema}, now {self._spec.schema}); "
                    "start a new run, or restore the observation, action and network settings"
                )
            checkpoint.restore(self.agent, newest)
            self.version = Version(epoch, newest.version.update)
            self.env_steps = newest.env_steps
            logger.info("resumed from {} at {} env steps", newest.path, newest.env_steps)
        elif preload is not None:
            checkpoint.load_bytes(self.agent.model, preload.weights)
            logger.info("weights preloaded from {}", preload.path)
        self._went_out[self.version.update] = WentOut(time.monotonic(), 0.0)
        path = self.save()
        if path is not None:
            checkpoint.load(path)

    @property
    def next_version(self) -> Version:
        return Version(self.version.epoch, self.version.update + 1)

    def weights(self) -> bytes:
        """Safetensors bytes of the model, to publish."""
        return checkpoint.to_bytes(self.agent.model)

    def update(
        self,
        items: Arrays,
        info: SampleInfo,
        waited_s: float = 0.0,
        publish: Callable[[Version, int], None] | None = None,
    ) -> Array | None:
        """One `learn` call on a batch (item name -> [B, ...]); returns new priorities f64 [B] or None.

        waited_s: how long somebody waited for the batch. publish: where weights may go out before the update is over:
        sends them, as this version after so many env steps, when `learn` says so.
        """
        started = time.monotonic()
        self._measure_lag(items["version"])
        batch = items if self._spec.sample else arrays_to_chunk(items)
        steps = int(items["valid"].sum()) if "valid" in items else len(items["worker"])
        made, env_steps = self.next_version, self.env_steps + steps
        if publish is None:
            metrics, priorities = self.agent.learn(batch, info)
        else:
            if self._update_s:
                self._after = moment(self._after, waited_s / self._update_s)
            early = Early(self._after, partial(self._go_out, publish, made, env_steps))
            metrics, priorities = cast(EarlyAgent, self.agent).learn(batch, info, early=early)
            self._meters.put("published_after", self._after)
        if priorities is not None:
            priorities = _checked_priorities(priorities, len(items["worker"]))
        self.version, self.env_steps = made, env_steps
        now = time.monotonic()
        self._update_s = now - started
        at = self._went_out.get(made.update, WentOut(now, 0.0)).at
        self._went_out[made.update] = WentOut(at, (now - at) / max(self._update_s, 1e-9))
        self._went_out.pop(made.update - 1000, None)
        meters = self._meters
        meters.put_all(metrics)
        meters.put("sample_reuse", float(info.times_sampled.mean()))
        version = items["version"].reshape(-1, 2)
        meters.put("versions_in_batch", float(len(np.unique(version[:, 0] << 32 | version[:, 1]))))
        meters.put("update_s", self._update_s)
        meters.count("busy_s", self._update_s)
        meters.count("updates")
        meters.count("items_trained", len(items["worker"]))
        meters.count("env_steps_trained", steps)
        meters.totals["version_epoch"], meters.totals["version_update"] = self.version
        if self.version.update % self._dump_freq == 0 or now - self._saved_at > _SAVE_WITHIN_S:
            self.save()
        return priorities

    def _go_out(self, publish: Callable[[Version, int], None], version: Version, env_steps: int) -> None:
        """What `learn` calls as `early.publish`."""
        if version.update in self._went_out:
            raise ContractError("learn called early.publish twice; allowed is one call in an update, or none")
        self._went_out[version.update] = WentOut(time.monotonic(), 0.0)
        publish(version, env_steps)

    def _measure_lag(self, version: Array) -> None:
        """Policy lag of a batch, version i64 [B, ..., 2]: updates and seconds between playing and training."""
        epoch, update = version[..., 0], version[..., 1]
        same = epoch == self.version.epoch
        if not same.any():
            return
        updates, counts = np.unique(update[same], return_counts=True)
        now = time.monotonic()
        went_out = [self._went_out.get(int(one), WentOut(now, 0.0)) for one in updates]
        lags = self.version.update - updates + [one.lacking for one in went_out]
        self._meters.put("policy_lag_updates", float(np.average(lags, weights=counts)))
        self._meters.put("policy_lag_updates_max", float(lags.max()))
        self._meters.put("policy_lag_s", float(np.average([now - one.at for one in went_out], weights=counts)))

    def save_for_user(self, folder: Path, keep: int) -> None:
        """Write a checkpoint where it is not pruned with the others; keep 0: without limit."""
        path = self._write(folder, keep or 1_000_000)
        if path is not None:
            logger.info("saved for the user: {}", path)

    def save(self) -> Path | None:
        """Write a checkpoint, unless this version has one; returns where, or None."""
        if self._saved == self.version:
            return None
        path = self._write(self._folder, self._keep)
        self._saved_at = time.monotonic()
        if path is not None:
            self._saved = self.version
            self._meters.count("checkpoints")
        return path

    def _write(self, folder: Path, keep: int) -> Path | None:
        """A checkpoint's path; None if the disk did not take it, which is a warning and not an end."""
        started = time.monotonic()
        try:
            return checkpoint.save(folder, self.agent, self.version, self.env_steps, self._spec.schema, keep)
        except OSError as error:
            if time.monotonic() - self._warned_at > _WARN_EVERY_S:
                self._warned_at = time.monotonic()
                logger.warning("checkpoint {} could not be written, training goes on: {}", self.version, error)
            return None
        finally:
            self._meters.count("save_s", time.monotonic() - started)


def moment(after: float, waited: float) -> float:
    """After which part of the next update weights should go out, 0 to 1: as late as can be, since the sooner they do,
    the more they lack; but so early that the round which is then played is there when the update is over.

    after: of the last update; waited: for the batch that was played meanwhile, of an update's time. In the long run
    WAIT of the time is waited. Slowly, since on a busy machine some rounds take longer than others.
    """
    return min(1.0, max(0.0, after + 0.1 * (WAIT - min(waited, 0.3))))


def _checked_priorities(priorities: Array, count: int) -> Array:
    """As f64 [B]. Raises ContractError for what a buffer cannot draw by."""
    what = "the priorities that learn returned"
    try:
        checked = np.asarray(priorities, np.float64)
    except (TypeError, ValueError) as error:
        raise ContractError(f"{what} must be float64[{count}]: {error}") from error
    if checked.shape != (count,):
        raise ContractError(f"{what} must be float64[{count}], got {checked.dtype}{list(checked.shape)}")
    if not (np.isfinite(checked).all() and (checked >= 0).all()):
        raise ContractError(f"{what} must be finite and not below 0, got {checked.min():g} to {checked.max():g}")
    return checked
