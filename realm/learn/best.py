"""The best model of a run, kept in `best_ckpt/`, where pruning does not reach it.

Called by the evaluator. The folder holds one checkpoint `model.ckpt-<epoch>-<update>`, written and read like any other,
and `model.ckpt-<epoch>-<update>.json` with its scores. The evaluator gets only the weights that act, so the checkpoint
holds no others, and its optimizer is fresh. The JSON is written first, so every checkpoint has one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loguru import logger

from realm.contract import NO_VERSION, Agent, Array, Evaluation, Version
from realm.errors import UserCodeError
from realm.files import read_json, replace_file, set_aside
from realm.learn import checkpoint

_MOST_BYTES = 4 << 20  # the options of an environment may be long


def main_statistic(statistics: Mapping[str, Array]) -> str:
    """The statistic that compares models: `score`, else `r` (gymnasium's name of the return), else the first."""
    if not statistics:
        raise UserCodeError("info['episode'] of the environment holds no statistic, so there is nothing to evaluate")
    return next((name for name in ("score", "r") if name in statistics), next(iter(statistics)))


class BestModel:
    """Keeps the model with the greatest score so far.

    setting: describes the evaluation (environment options, seed, episodes). Scores of different settings cannot be
    compared: a folder with a model of another setting is renamed to `best_ckpt.<n>`.
    """

    def __init__(self, folder: Path, setting: dict[str, Any]) -> None:
        self._folder, self._setting = folder, json.loads(json.dumps(setting, default=str))
        self.version, self.score = NO_VERSION, -math.inf
        known = self._read()
        if known is not None and known["setting"] == self._setting:
            self.version, self.score = Version(*known["version"]), float(known["score"])
            logger.info("the best model so far is {} with {:.2f}", self.version, self.score)
        elif known is not None:
            aside = set_aside(folder)
            logger.info("the best model so far, {}, has another setting: moved to {}", known["version"], aside)

    def offer(self, agent: Agent, evaluation: Evaluation, schema: str, extra: dict[str, Any]) -> bool:
        """Keep the agent's model if its score is the greatest so far and its weights are finite; return whether it is
        kept. Raises OSError.

        extra: more entries for the JSON.
        """
        if not evaluation.score > self.score:
            return False
        if spoiled := checkpoint.not_finite(agent.model.state_dict()):
            logger.warning("version {} is not kept as the best model: {} is not finite", evaluation.version, spoiled)
            return False
        body = {
            "version": list(evaluation.version), "env_steps": evaluation.env_steps, "statistic": evaluation.statistic,
            "score": evaluation.score, "means": evaluation.means, "setting": self._setting, **extra,
        }  # fmt: skip
        self._folder.mkdir(parents=True, exist_ok=True)
        version = evaluation.version
        path = self._folder / f"model.ckpt-{version.epoch}-{version.update}.json"
        replace_file(path, json.dumps(body, indent=1).encode())
        kept = checkpoint.save(
            self._folder, agent, version, evaluation.env_steps, schema, keep=1, parts=checkpoint.acting(agent)
        )
        self.version, self.score = version, evaluation.score
        for left in [*self._folder.glob("model.ckpt-*.json"), *self._folder.glob(".*.json.*")]:
            if left.name != f"{kept.name}.json":
                left.unlink()
        return True

    def _read(self) -> dict[str, Any] | None:
        """Setting, version and score of the model in the folder; None without a valid one."""
        newest, skipped = checkpoint.load_newest(self._folder)
        for sentence in skipped:
            logger.warning("best model skipped: {}", sentence)
        if newest is None:
            return None
        path = newest.path.with_name(f"{newest.path.name}.json")
        try:
            body = read_json(path, _MOST_BYTES)
            return {"setting": body["setting"], "version": list(newest.version), "score": float(body["score"])}
        except (OSError, ValueError, LookupError, TypeError, ArithmeticError) as error:
            logger.warning("cannot read {}, so its model is ignored: {}", path, error)
            return None
