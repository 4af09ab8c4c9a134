"""What is done with a run's numbers every two seconds: TensorBoard, `progress.csv` and `callbacks.py` get them, and the
user is told what looks wrong.

Owned by the supervisor and by the one-process run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from loguru import logger

from realm.config.load import RunConfig, to_toml
from realm.config.toml import toml_value
from realm.contract import Evaluation, Progress, Version
from realm.watch.board import Board
from realm.watch.health import Health
from realm.watch.progress import Every
from realm.watch.progress_csv import ProgressCsv
from realm.watch.tensorboard import TensorBoard

_EVERY_S = 2.0

_NOT_TRAINING = ("run_name", "log_dir", "level", "keys_dir", "bind_host", "base_port", "report_interval_s")
"""Keys of [app] that say nothing of what is learnt."""


class Curves:
    """Writes the curves of one run and its configuration."""

    def __init__(self, run_dir: Path, config: RunConfig, tell: Callable[[str, Progress], None] | None = None) -> None:
        """tell: gets the name of a function of `callbacks.py`, and what has happened."""
        self._run_dir, self._tell = run_dir, tell or (lambda name, progress: None)
        self._config = config
        self._warnings = run_dir / "log" / "warnings.log"
        self._tensorboard = TensorBoard(run_dir / "log" / "tensorboard")
        self._csv = ProgressCsv(run_dir / "progress.csv")
        self._every = Every(_EVERY_S)
        self._health = Health()
        self._begun = False

    def begin(self, board: Board, env_steps: int) -> None:
        """A learner begins or goes on here; the curves of what a lost one had trained beyond it are dropped."""
        board.begin(env_steps)
        self._tensorboard.begin(env_steps)
        self._csv.begin(env_steps)
        if not self._begun:
            self._tensorboard.describe(to_toml(self._config), hyper_parameters(self._config), env_steps)
            self._tell("on_start", self._progress(board, {}))
        self._begun = True

    def write_due(self, board: Board) -> None:
        """`write`, every two seconds."""
        if self._every.due():
            self.write(board)

    def write(self, board: Board) -> None:
        """Write the means since the last call, and warn of what is wrong in them; nothing before there is a learner."""
        if not self._begun:
            return
        values = board.curves()
        self._write(values, board.env_steps)
        self._tell("on_update", self._progress(board, values))
        numbers = {name.removeprefix("learner/"): x for name, x in values.items() if name.startswith("learner/")}
        if (score := board.score) is not None:
            numbers["score"] = score
        updates = int(board.total("learner", "updates"))
        for sentence in self._health.check(numbers, updates, board.env_steps):
            self._warn(sentence)

    def take(self, board: Board, result: Evaluation, epoch: int) -> None:
        """Show an evaluation, and write it at the env steps of its model; it may come twice. epoch: the learner's."""
        if board.evaluation is not None and result.version == board.evaluation.version:
            return
        values = board.judged(result)
        # a model that a lost learner made after its last checkpoint has no place on the axis any more
        if result.version.epoch == epoch or result.env_steps <= board.env_steps:
            self._write(values, result.env_steps)
            self._tell("on_evaluation", Progress(self._run_dir, result.env_steps, result.version, values, result))

    def close(self) -> None:
        self._tensorboard.close()
        self._csv.close()

    def _write(self, values: Mapping[str, float], env_steps: int) -> None:
        self._tensorboard.write(values, env_steps)
        self._csv.write(values, env_steps)

    def _progress(self, board: Board, values: Mapping[str, float]) -> Progress:
        version = Version(*(int(board.total("learner", f"version_{part}")) for part in ("epoch", "update")))
        return Progress(self._run_dir, board.env_steps, version, values, board.evaluation)

    def _warn(self, sentence: str) -> None:
        """Say it in the terminal, and keep it in a file."""
        logger.warning("{}", sentence)
        try:
            with open(self._warnings, "a", encoding="utf-8") as file:
                file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {sentence}\n")
        except OSError as error:
            logger.warning("cannot write {}: {}", self._warnings, error)


def hyper_parameters(config: RunConfig) -> dict[str, bool | float | str]:
    """The settings of a run by which it may be compared with others, as `--set` names them; lists as TOML."""
    return {
        key: value if isinstance(value, bool | int | float | str) else toml_value(value)
        for key, value in config.settings().items()
        if key not in _NOT_TRAINING
    }
