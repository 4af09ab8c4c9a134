"""When a run's checkpoints are written, and what is said where the disk does not take one.

Owned by the trainer, which says under which version. `checkpoint.py` reads and writes one.
"""

from __future__ import annotations

import time
from pathlib import Path

from loguru import logger

from realm.contract import NO_VERSION, Agent, Version
from realm.errors import RunError
from realm.learn import checkpoint
from realm.watch.meters import Meters
from realm.watch.progress import Every

_WARN_EVERY_S = 60.0
_SAVE_WITHIN_S = 600.0  # slow updates: no more than this is lost, whatever dump_model_freq says
_SAVE_EVERY_S = 60.0  # without a dump_model_freq


class Saver:
    """Writes checkpoints of `agent` into `folder`. version, env_steps: of the newest good one."""

    def __init__(self, agent: Agent, schema: str, folder: Path, dump_freq: int, keep: int, meters: Meters) -> None:
        """dump_freq: updates between two, 0 is one a minute; keep: how many stay."""
        self.folder = folder
        self.version, self.env_steps = NO_VERSION, 0
        self._agent, self._schema, self._dump_freq, self._keep, self._meters = agent, schema, dump_freq, keep, meters
        self._unwritten = self._advice = ""  # why the newest checkpoint could not be written, and what to do
        self._saved_at = time.monotonic()
        self._may_warn = Every(_WARN_EVERY_S, at_once=True)  # a disk may be full for long

    def is_due(self, update: int) -> bool:
        """Whether a checkpoint is due after this update."""
        if self._dump_freq and update % self._dump_freq == 0:
            return True
        return time.monotonic() - self._saved_at > (_SAVE_WITHIN_S if self._dump_freq else _SAVE_EVERY_S)

    def save(self, version: Version, env_steps: int) -> Path | None:
        """Write this version's checkpoint, unless it has one or is not finite; returns where, or None."""
        if self.version == version:
            return None
        if spoiled := checkpoint.spoiled(self._agent, saves=True):  # an update that was cut short
            self._unwritten, self._advice = f"{spoiled} is not finite", "choose a smaller learning rate"
            logger.warning("the checkpoint of {} is not written: {}", version, self._unwritten)
            return None
        path = self.write(self.folder, self._keep, version, env_steps)
        self._saved_at = time.monotonic()
        if path is not None:
            self.version, self.env_steps = version, env_steps
            self._meters.count("checkpoints")
        return path

    def save_last(self, version: Version, env_steps: int) -> Path:
        """Write the checkpoint of a run that ends; returns where. Raises RunError if the disk does not take it."""
        self.save(version, env_steps)
        if self.version != version:
            raise RunError(
                f"{self.folder}: the last checkpoint, of {version}, could not be written ({self._unwritten}), so "
                f"{env_steps - self.env_steps} env steps of training since the newest good checkpoint are lost; "
                f"{self._advice}"
            )
        path = self.folder / f"model.ckpt-{version.epoch}-{version.update}"
        self._let_agent_write("saved_last", path)
        return path

    def write(self, folder: Path, keep: int, version: Version, env_steps: int) -> Path | None:
        """A checkpoint's path; None if the disk did not take it, which is a warning and not an end."""
        started, path = time.monotonic(), None
        try:
            path = checkpoint.save(folder, self._agent, version, env_steps, self._schema, keep)
            self._let_agent_write("saved", path)
        except OSError as error:
            self._unwritten, self._advice = str(error), "make room there or mend the folder before the next start"
            self._warn(f"the checkpoint of {version} could not be written, training goes on: {error}")
        self._meters.count("save_s", time.monotonic() - started)
        return path

    def _let_agent_write(self, method: str, path: Path) -> None:
        """An agent may write files of its own next to a checkpoint: after each (`saved`), and of a run that ends
        (`saved_last`)."""
        if write := getattr(self._agent, method, None):
            try:
                write(path)
            except OSError as error:
                self._warn(f"{path}: is written, but the agent's own files next to it are not: {error}")

    def _warn(self, sentence: str) -> None:
        if self._may_warn.due():
            logger.warning("{}", sentence)
