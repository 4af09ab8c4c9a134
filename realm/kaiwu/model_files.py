"""A project's models as files: its own `save_model` writes them, its own `load_model` reads them.

`path` and `id` of the project's calls do not count: files go to the run's folders, numbered by train steps.
"""

from __future__ import annotations

import pickle
import re
import tempfile
import time
from pathlib import Path
from typing import Any

from loguru import logger

from realm.errors import ConfigError, UserCodeError, place_of_function
from realm.kaiwu.code import calling
from realm.kaiwu.methods import plain
from realm.kaiwu.process import current

NEWEST = -1
"""Stands for a model's number: the weights that arrive last."""
_NUMBER = re.compile(r"model\.ckpt-(\d+)(?!\d)")  # anywhere in a name: critic_model.ckpt-5.pth is of model 5, too
_UNTOUCHED_S = 0.5  # a file that was written to since may not be whole
_WAITS = 20


def numbers_in(folder: Path) -> list[int]:
    """The ids of the models in a folder, in order."""
    names = [_NUMBER.search(path.name) for path in folder.iterdir()] if folder.is_dir() else []
    return sorted({int(match[1]) for match in names if match})


def files_of(folder: Path, number: int | str) -> list[Path]:
    """The files of one model."""
    matches = [(path, _NUMBER.search(path.name)) for path in folder.iterdir()] if folder.is_dir() else []
    return sorted(path for path, match in matches if match and match[1] == str(number) and path.is_file())


def required(folder: Path, number: int | str, where: str) -> list[Path]:
    """The files of one model. Raises ConfigError that begins with `where` and names the models that are there."""
    files = files_of(folder, number)
    if not files:
        there = ", ".join(map(str, numbers_in(folder))) or "none"
        raise ConfigError(f"{where}: {folder} has no model {number}; it has: {there}")
    return files


def save(agent: Any, folder: Path, number: int) -> bool:
    """Have the agent save itself as model `number`; False if the disk did not take it, which is one warning.

    Raises UserCodeError for an agent that raises, or that writes no file of that name.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with calling(f"saving model {number}"):
            plain(agent, "save_model", path=str(folder), id=str(number))
    except UserCodeError as error:
        if not isinstance(error.__cause__, OSError) and "PytorchStreamWriter" not in str(error):
            raise
        for torn in files_of(folder, number):
            torn.unlink(missing_ok=True)
        logger.warning("model {} could not be saved, training goes on: {}", number, error)
        return False
    if not files_of(folder, number):
        place = place_of_function(type(agent).save_model)
        raise UserCodeError(
            f"{place}: save_model wrote no file with model.ckpt-{number} in its name into "
            f"the folder {folder} that it was given; it must write one or more, like f'{{path}}/model.ckpt-{{id}}.pkl'"
        )
    return True


def load(agent: Any, folder: Path, number: int | str) -> None:
    """Have the agent load model `number` of a folder. Raises ConfigError if it is not there, UserCodeError if it cannot
    be read."""
    required(folder, number, "load_model")
    _wait_until_written(folder, number)
    _read(agent, folder, number)


def _read(agent: Any, folder: Path, number: int | str) -> None:
    try:
        with calling(f"loading model {number} from {folder}"):
            plain(agent, "load_model", path=str(folder), id=str(number))
    except UserCodeError as error:
        if isinstance(error.__cause__, pickle.UnpicklingError):
            raise UserCodeError(
                f"{files_of(folder, number)[0]}: is damaged, or holds more than tensors and plain data, which torch "
                "does not load (weights_only); save model.state_dict() instead of the model, or, if you trust it, "
                "load it with torch.load(..., weights_only=False) in your load_model"
            ) from error
        raise


def _wait_until_written(folder: Path, number: int | str) -> None:
    """Wait while the learner, another process, may be writing these files."""
    for _ in range(_WAITS):
        written = max((path.stat().st_mtime for path in files_of(folder, number)), default=0.0)
        if abs(time.time() - written) > _UNTOUCHED_S:
            return
        time.sleep(_UNTOUCHED_S / 5)


def as_files(agent: Any, number: int) -> dict[str, bytes]:
    """The files of an agent, by name."""
    with tempfile.TemporaryDirectory(prefix="realm-model-", ignore_cleanup_errors=True) as folder:
        with calling("saving the agent"):
            plain(agent, "save_model", path=folder, id=str(number))
        return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir()) if _NUMBER.search(path.name)}


def load_files(agent: Any, files: dict[str, bytes]) -> None:
    """The reverse of `as_files`."""
    with tempfile.TemporaryDirectory(prefix="realm-model-", ignore_cleanup_errors=True) as folder:
        for name, body in files.items():
            (Path(folder) / Path(name).name).write_bytes(body)
        _read(agent, Path(folder), numbers_in(Path(folder))[-1])


class Saves:
    """The models of one learner: the framework's, and those that the project's code asks for."""

    def __init__(self, agent: Any) -> None:
        self._agent = agent
        self._done: dict[Path, int] = {}  # folder -> the newest step saved there
        self._asked_at: list[float] = []
        self._named = False

    def dump(self, number: int) -> None:
        """Save where the framework's models lie, and remove the oldest of too many."""
        folder = current().restore_dir
        self._save(folder, number)
        for old in numbers_in(folder)[: -current().config.keep_models]:
            for path in files_of(folder, old):
                path.unlink(missing_ok=True)

    def for_user(self, number: int) -> None:
        """Save where the user's models lie, unless there are too many already, which is one warning."""
        config, now = current().config, time.monotonic()
        self._asked_at = [at for at in self._asked_at if now - at < 60.0]
        folder = current().user_dir
        if self._done.get(folder) == number:
            return
        many = config.user_saves and len(numbers_in(folder)) >= config.user_saves
        often = config.user_saves_per_min and len(self._asked_at) >= config.user_saves_per_min
        if many or often:
            if not self._named:
                self._named = True
                bound = f"{config.user_saves} models are there (user_save_mode_max_count)"
                if not many:
                    key = "user_save_model_max_frequency_per_min"
                    bound = f"{config.user_saves_per_min} were saved in the last minute ({key})"
                logger.warning("save_model: not saved, since {}", bound)
            return
        self._asked_at.append(now)
        self._save(folder, number)

    def _save(self, folder: Path, number: int) -> None:
        if self._done.get(folder) != number and save(self._agent, folder, number):
            self._done[folder] = number
