"""Makes a checkpoint of Realm's out of a project's model files, so that `realm` evaluates them as any other model."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from pathlib import Path
from typing import Any

from realm.contract import Version
from realm.kaiwu.config import Config
from realm.kaiwu.models import numbers_in, required


def as_checkpoint(config: Config, folder: Path, wanted: int | str, place: str) -> Path:
    """Write the files of one model into a checkpoint below a new folder, and return that. `place`: of the key.

    The project's `load_model` reads them when the checkpoint is loaded. Raises ConfigError if there is no such model.
    """
    from realm.kaiwu.feature.definition import spec  # late: these bring the game and torch
    from realm.learn.checkpoint import save

    there = numbers_in(folder)
    number = there[-1] if wanted == "latest" and there else wanted
    files = required(folder, number, f"{place}: key 'eval_model_id'")
    made = Path(tempfile.mkdtemp(prefix="realm-eval-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    stored: Any = _Stored({file.name: file.read_bytes() for file in files}, int(number))
    save(made / "ckpt", stored, Version(1, int(number)), 0, spec(None, config).schema, 1)
    return made / "ckpt"


class _Stored:
    """What `checkpoint.save` asks an agent for."""

    def __init__(self, files: dict[str, bytes], number: int) -> None:
        self.model, self._number = _StoredFiles(files), number

    def save_model(self) -> dict[str, Any]:
        return {"updates": self._number, "optimizers": {}, "counters": {}}


class _StoredFiles:
    def __init__(self, files: dict[str, bytes]) -> None:
        self._files = files

    def state_dict(self) -> dict[str, Any]:
        from realm.kaiwu.modules import as_tensors  # late: torch

        return as_tensors(self._files)
