"""One update after the other on the real agent: versions, lag, checkpoints. The heart of learner and local mode.

Owned by `roles/learner.py` and `launch/local.py`, which differ only in where batches come from and where weights go.
A version names one set of weights: they get their number when they go out, which is where `learn` yields if it is a
generator and somebody wants them there, else at its end. Only numbered weights are saved. Weights that are not finite
get no number: the trainer goes back to the newest checkpoint.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from loguru import logger

from realm.config.keys import AppConfig
from realm.contract import (
    Agent,
    Array,
    Arrays,
    Learned,
    SampleInfo,
    Spec,
    Version,
    arrays_to_chunk,
    arrays_to_transitions,
)
from realm.errors import CheckpointError, ContractError, DivergedError, UserCodeError, place_of_function
from realm.learn import checkpoint
from realm.learn.results import models_in
from realm.learn.saving import Saver
from realm.watch.meters import Meters

_MAX_RESTORES = 3  # without _GOOD_UPDATES in between; then the run ends
_GOOD_UPDATES = 10
_YIELDED_TWICE = "learn yielded twice in one update; it must yield once at most, where its weights may go out"


class _NotFiniteError(Exception):
    """An update left weights that are not finite; the text names a tensor."""


def begin(agent: Agent, spec: Spec, app: AppConfig, run_dir: Path, epoch: int, meters: Meters) -> Trainer:
    """The trainer of a run: goes on from the newest checkpoint, else begins with `preload_model` or new weights."""
    keep = app.modelpool_max_save_model_count
    trainer = Trainer(agent, spec, run_dir / "ckpt", int(app.dump_model_freq), keep, meters)
    begins = app.preload_model and not models_in(run_dir / "ckpt")
    trainer.start(epoch, checkpoint.find(Path(app.preload_model_dir), app.preload_model_id) if begins else None)
    return trainer


class Trainer:
    """Trains `agent` and knows its version: (epoch, update), where each start of a learner raises the epoch."""

    def __init__(self, agent: Agent, spec: Spec, folder: Path, dump_freq: int, keep: int, meters: Meters) -> None:
        """folder, dump_freq, keep: as `Saver` takes them."""
        self.agent = agent
        self._learns_at = place_of_function(agent.learn)
        self.version = Version(0, 0)
        self.env_steps = 0
        self.memory_size = 0
        """Samples in the buffer when the last batch was drawn."""
        self.origin = ""
        """Where training goes on, or with what it begins: a sentence for the user."""
        self._spec, self._meters = spec, meters
        self._saver = Saver(agent, spec.schema, folder, dump_freq, keep, meters)
        self._acting = checkpoint.acting(agent)
        self._went_out_at: dict[int, float] = {}  # update -> monotonic seconds
        self._midway: Version | None = None  # the last that went out where `learn` yields: its weights have changed
        self._asked: list[tuple[Path, int]] = []  # saves for the user that wait for numbered weights
        self._restores = 0  # without _GOOD_UPDATES in between
        self._good_updates = 0  # since the last restore

    def start(self, epoch: int, preload: checkpoint.Checkpoint | None = None) -> None:
        """Begin an epoch: from the newest good checkpoint of the folder, else with the weights of `preload`, if any.

        Saves at once, so that there is a model before anyone plays, and reads that back, so that a state which cannot
        be loaded is known now and not when it is needed. Raises CheckpointError for it, for a preload that does not
        fit, and for a folder of which no checkpoint can be used: a new start would prune them away.
        """
        newest, skipped = checkpoint.load_newest(self._saver.folder, "checkpoint")
        if newest is None and skipped:
            raise CheckpointError(
                f"{self._saver.folder}: none of its {len(skipped)} checkpoints can be used ({skipped[0]}); move them "
                "away to start from scratch"
            )
        self.version = Version(epoch, newest.version.update if newest else 0)
        if newest is not None:
            if newest.schema != self._spec.schema:
                raise CheckpointError(
                    f"{newest.path}: was trained with other shapes (schema {newest.schema}, now {self._spec.schema}); "
                    "start a new run, or restore the observation, action and network settings"
                )
            checkpoint.restore(self.agent, newest)
            self.env_steps = self._saver.env_steps = newest.env_steps
            damaged = f"; newer ones were damaged and skipped: {len(skipped)}" if skipped else ""
            self.origin = (
                f"training goes on from {newest.path} (update {newest.version.update:,}, "
                f"{newest.env_steps:,} env steps{damaged})"
            )
        elif preload is not None:
            left = checkpoint.load_bytes(self.agent.model, preload.weights, self._acting)
            self.origin = f"training begins at update 0 with the weights of {preload.path}, without its optimizer"
            if left:
                logger.warning(
                    "{}: it has no {}: {} weights stay as they were made", preload.path, ", ".join(left[:3]), len(left)
                )
        else:
            self.origin = "training begins at update 0 with new weights"
        logger.info("{}", self.origin)
        if spoiled := checkpoint.spoiled(self.agent, saves=True):
            raise UserCodeError(
                f"the agent's weights must be finite before the first update, but {spoiled} is not; a buffer that is a "
                "constant, such as a mask, is registered with persistent=False"
            )
        self._note_version()
        if path := self._saver.save(self.version, self.env_steps):
            checkpoint.load(path)

    @property
    def next_version(self) -> Version:
        return Version(self.version.epoch, self.version.update + 1)

    @property
    def _changed(self) -> bool:
        """Whether the weights are no longer those that went out as `version`."""
        return self.version == self._midway

    def weights(self) -> bytes:
        """Safetensors bytes of the part of the model that acts, to publish."""
        return checkpoint.to_bytes(self.agent.model, self._acting)

    def update(
        self, items: Arrays, info: SampleInfo, publish: Callable[[Version, int], None] | None = None
    ) -> Array | None:
        """One `learn` call on a batch (item name -> [B, ...]); returns new priorities f64 [B] or None.

        publish: sends the weights where `learn` yields, as this version after so many env steps; None: nobody may have
        them before the update is over.
        """
        started = time.monotonic()
        self._measure_lag(items["version"])
        steps, self.memory_size = info.new_env_steps, info.size
        made, restored = self.next_version, False
        stale = self._changed or bool((items["version"] != self.version).any())
        info = replace(info, env_steps=self.env_steps + steps, version=self.version, stale=stale)
        self.agent.model.train()
        try:
            learned: Any = self.agent.learn(self._batch(items), info)
            if isinstance(learned, Generator):
                with closing(learned) as parts:
                    try:
                        next(parts)
                        if publish:
                            self._go_out(steps, publish)
                        next(parts)
                        raise ContractError(_YIELDED_TWICE)
                    except StopIteration as end:
                        learned = end.value
            metrics, priorities = _checked(learned, self._learns_at)
            self._check_finite()
            if priorities is not None:
                priorities = _checked_priorities(priorities, len(items["worker"]))
            self._good_updates += 1
        except _NotFiniteError as error:
            metrics, priorities, restored = {}, None, True
            self._go_back(str(error))
        finally:
            self.agent.model.eval()
        update_s = time.monotonic() - started
        early = self.version == made  # these weights have gone out, and keep their number
        if not early or restored:
            self._number_weights(0 if early else steps)
            self._save_due()
        meters = self._meters
        for name, value in metrics.items():
            meters.put(name, value, self._learns_at)
        meters.put("sample_reuse", float(info.times_sampled.mean()))
        version = items["version"].reshape(-1, 2)
        meters.put("versions_in_batch", float(len(np.unique(version[:, 0] << 32 | version[:, 1]))))
        meters.put("update_s", update_s)
        meters.count("busy_s", update_s)
        meters.count("updates")
        meters.count("items_trained", len(items["worker"]))
        meters.count("env_steps_trained", steps)
        return priorities

    def _go_out(self, steps: int, publish: Callable[[Version, int], None]) -> None:
        """Publish the weights as they are in the middle of an update."""
        self._check_finite()
        self._number_weights(steps)
        publish(self.version, self.env_steps)
        self._save_due()
        self._midway = self.version

    def _batch(self, items: Arrays) -> Any:
        """The batch as `Agent.learn` gets it."""
        if self._spec.sample:
            return items
        return arrays_to_transitions(items) if self._spec.draw else arrays_to_chunk(items)

    def _check_finite(self) -> None:
        saves = bool(self._asked) or self._saver.is_due(self.next_version.update)
        if spoiled := checkpoint.spoiled(self.agent, saves):
            raise _NotFiniteError(spoiled)

    def _go_back(self, spoiled: str) -> None:
        """Restore the newest good checkpoint, because the tensor `spoiled` is not finite. Raises DivergedError.

        Its weights get the next version: workers that wait for it go on. `env_steps` does not go back, so that a run
        with a limit ends, however often this happens.
        """
        if self._good_updates >= _GOOD_UPDATES:
            self._restores = 0
        what = f"the update after {self.version} made the weights NaN or infinite ({spoiled})"
        if self._restores == _MAX_RESTORES:
            raise DivergedError(
                f"{what}, and so it was after each of {_MAX_RESTORES} returns to a checkpoint, with fewer than "
                f"{_GOOD_UPDATES} good updates in between; choose a smaller learning rate, and look at the rewards and "
                "observations for very large numbers"
            )
        newest, _ = checkpoint.load_newest(self._saver.folder, "checkpoint")
        if newest is None:
            raise DivergedError(
                f"{what}, and {self._saver.folder} has no good checkpoint to go back to; make sure that checkpoints "
                "can be written there, and choose a smaller learning rate"
            )
        checkpoint.restore(self.agent, newest)
        self._restores, self._good_updates = self._restores + 1, 0
        self._meters.count("restored_updates")
        logger.warning(
            "{}; training goes on as {} with weights and optimizer of {} (return {} of {})",
            what, self.next_version, newest.path, self._restores, _MAX_RESTORES,
        )  # fmt: skip

    def _number_weights(self, steps: int) -> None:
        """Name the weights as they are now: the next version, which was trained on `steps` more env steps."""
        self.version, self.env_steps = self.next_version, self.env_steps + steps
        self._note_version()

    def _note_version(self) -> None:
        self._meters.totals["version_epoch"], self._meters.totals["version_update"] = self.version
        self._went_out_at[self.version.update] = time.monotonic()
        self._went_out_at.pop(self.version.update - 1000, None)

    def _measure_lag(self, version: Array) -> None:
        """Policy lag of a batch, version i64 [B, ..., 2]: updates and seconds between playing and training."""
        epoch, update = version[..., 0], version[..., 1]
        same = epoch == self.version.epoch
        if not same.any():
            return
        updates, counts = np.unique(update[same], return_counts=True)
        lags = self.version.update - updates
        out = [self._went_out_at[int(one)] for one in updates if int(one) in self._went_out_at]
        self._meters.put("policy_lag_updates", float(np.average(lags, weights=counts)))
        self._meters.put("policy_lag_updates_max", float(lags.max()))
        if len(out) == len(updates):  # not with a memory of older ones
            self._meters.put("policy_lag_s", time.monotonic() - float(np.average(out, weights=counts)))

    def save_for_user(self, folder: Path, keep: int) -> None:
        """Write a checkpoint where it is not pruned with the others, as soon as the weights have a number; keep 0:
        without limit."""
        self._asked.append((folder, keep or 1_000_000))
        if not self._changed:
            self._save_asked()

    def save_last(self) -> Path:
        """Write the checkpoint of a run that ends; returns where. Raises RunError if the disk does not take it.

        Weights that have moved on since they went out get the next number: only those of a run's end are saved so.
        """
        if self._changed:
            self._number_weights(0)
            self._save_asked()
        return self._saver.save_last(self.version, self.env_steps)

    def _save_due(self) -> None:
        """Write what is to be written of the weights that have just got their number."""
        self._save_asked()
        if self._saver.is_due(self.version.update):
            self._saver.save(self.version, self.env_steps)

    def _save_asked(self) -> None:
        for folder, keep in self._asked:
            if own := getattr(self.agent, "save_for_user", None):  # an agent may write files of its own instead
                own()
            elif path := self._saver.write(folder, keep, self.version, self.env_steps):
                logger.info("saved for the user: {}", path)
        self._asked.clear()


def _checked(learned: Any, where: str) -> Learned:
    """What `learn` returned. Raises UserCodeError if it is something else than metrics and priorities."""
    if not (isinstance(learned, tuple | list) and len(learned) == 2 and isinstance(learned[0], Mapping)):
        raise UserCodeError(
            f"{where}: Agent.learn returned {type(learned).__name__}; it must be (metrics, priorities), a dict of "
            "numbers and an array or None"
        )
    return cast(Learned, learned)


def _checked_priorities(priorities: Array, count: int) -> Array:
    """As f64 [B]. Raises ContractError for what a buffer cannot draw by."""
    what = "the priorities that learn returned"
    try:
        checked = np.asarray(priorities, np.float64)
    except (TypeError, ValueError, RuntimeError) as error:  # the last for a tensor with a gradient
        raise ContractError(f"{what} must be float64[{count}]: {error}") from error
    if checked.shape != (count,):
        raise ContractError(f"{what} must be float64[{count}], got {checked.dtype}{list(checked.shape)}")
    if not (np.isfinite(checked).all() and (checked >= 0).all()):
        raise ContractError(f"{what} must be finite and not below 0, got {checked.min():g} to {checked.max():g}")
    return checked
