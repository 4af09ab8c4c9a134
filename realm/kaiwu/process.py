"""The state of a process that runs a project's code: where its folders are, and who calls the five methods.

There is one `Process` in such a process, made by `begin` before the first import of the project's code, because that
code expects one configuration, one working directory and one set of modules. Other modules of this folder get it with
`current()`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from realm.errors import ConfigError, UserCodeError
from realm.kaiwu import surface
from realm.kaiwu.finder import install

if TYPE_CHECKING:
    from realm.kaiwu.config import Config  # whose `enter` begins a process

LEARNS = ("learner", "local")
"""Roles whose agent is made with agent_type "learner"."""


@dataclass(frozen=True)
class Process:
    """config: of the project. role: "learner", "aisrv", "actor", "evaluator", "local", "eval" or "check"."""

    config: Config
    role: str
    run_dir: Path

    @property
    def restore_dir(self) -> Path:
        """Where the framework's models lie."""
        return self.run_dir / "models" / self.config.model_folder

    @property
    def user_dir(self) -> Path:
        """Where the models lie that the project's code saved."""
        return self.run_dir / "user_models" / self.config.model_folder

    @property
    def agent_type(self) -> str:
        return "learner" if self.role in LEARNS else {"aisrv": "aisrv", "actor": "actor"}.get(self.role, "player")


_process: Process | None = None


def current() -> Process:
    """This process's state. Raises RuntimeError before `begin`."""
    if _process is None:
        raise RuntimeError("realm.kaiwu: enter was not called in this process")
    return _process


def begin(config: Config, role: str, run_dir: Path) -> None:
    """Get ready for the project's code: folders, import path, modules, working directory. A second call does nothing.

    Raises ConfigError if the folder is gone, or lies inside a run, from which no code is taken, and UserCodeError if
    this process runs the code of another project.
    """
    global _process
    root = config.root
    if _process is not None:
        before = _process.config.root / _process.config.package
        if before != root / config.package:
            raise UserCodeError(
                f"{root / config.package}: this process runs the code of {before} already, and cannot run both; use "
                "another process"
            )
        return
    refuse_project_in_a_run(root, run_dir)
    if not (root / config.package).is_dir():
        raise ConfigError(f"{root / config.package}: no such folder; the project of this run must be where it was")
    sys.dont_write_bytecode = True  # nothing of ours goes into their folder
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"  # nor of a process that they start
    # TensorBoard's writer would import TensorFlow where it is installed: 400 MB in each process
    sys.modules.setdefault("tensorboard.compat.notf", types.ModuleType("tensorboard.compat.notf"))
    _process = Process(config, role, run_dir)
    for folder in (_process.restore_dir, _process.user_dir, run_dir / "user_log"):
        folder.mkdir(parents=True, exist_ok=True)
    surface.set_config(_keys(_process))
    install(root, config.package)
    if role != "eval":  # there the command's own files are relative to where the user stands
        os.chdir(root)


@contextmanager
def in_project() -> Iterator[None]:
    """The project's folder as the working directory, where it is not that already."""
    if current().role != "eval":
        yield
        return
    before = os.getcwd()
    os.chdir(current().config.root)
    try:
        yield
    finally:
        os.chdir(before)


def refuse_project_in_a_run(root: Path, run_dir: Path | None = None) -> None:
    """Raise ConfigError for a project inside a run, which somebody else may have made."""
    for folder in (root, *root.parents):
        if folder == run_dir or (folder / "run.json").is_file() or (folder / "manifest.json").is_file():
            raise ConfigError(
                f"{root}: is inside {folder}, which holds a run or a model, so no code is taken from there; move the "
                "project elsewhere if you trust it"
            )


def run_apart(module: str, arguments: Sequence[str], within_s: float, late: str, failed: str) -> None:
    """Run `python -m module arguments` in a process of its own, which leaves nothing in the project's folder.

    Raises UserCodeError: `late` after `within_s`, and for another exit code than 0 `failed` with the last line that it
    said of errors.
    """
    path = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-B", "-m", module, *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=within_s, env=environment)
    except subprocess.TimeoutExpired as error:
        raise UserCodeError(late) from error
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise UserCodeError(f"{failed}: {last.removeprefix('error: ')[:400]}")


def _keys(process: Process) -> dict[str, object]:
    """What `CONFIG` shows: the project's keys, with the folders that are there."""
    folders = {"restore_dir": "models", "user_ckpt_dir": "user_models", "log_dir": "user_log"}
    return {
        **process.config.app,
        **{key: str(process.run_dir / name) for key, name in folders.items()},
        "algo": process.config.package,
        "svr_name": process.role,
    }
