"""Makes a checkpoint of Realm's out of a project's model files, so that `realm` evaluates them as any other model."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from realm.contract import Version
from realm.kaiwu.config import Config
from realm.kaiwu.model_files import numbers_in, required


def as_checkpoint(config: Config, folder: Path, wanted: int | str, place: str) -> Path:
    """Write the files of one model into a checkpoint below a new folder, and return that. `place`: of the key.

    The project's `load_model` reads them when the checkpoint is loaded. Raises ConfigError if there is no such model.
    """
    from realm.kaiwu.feature.definition import spec  # late: these bring the game and torch
    from realm.kaiwu.modules import as_tensors
    from realm.learn.checkpoint import save

    there = numbers_in(folder)
    number = there[-1] if wanted == "latest" and there else wanted
    files = required(folder, number, f"{place}: key 'eval_model_id'")
    made = Path(tempfile.mkdtemp(prefix="realm-eval-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    tensors = as_tensors({file.name: file.read_bytes() for file in files})
    state = {"updates": int(number), "optimizers": {}, "counters": {}}
    stored: Any = SimpleNamespace(model=SimpleNamespace(state_dict=lambda: tensors), save_model=lambda: state)
    save(made / "ckpt", stored, Version(1, int(number)), 0, spec(None, config).schema, 1)
    return made / "ckpt"
