"""The best model of a run, kept in `best_ckpt/`, where it is not pruned with the others.

Called by the evaluator. The folder holds one checkpoint `model.ckpt-<epoch>-<update>`, written and found like any
other, and `model.ckpt-<epoch>-<update>.json` with what it scored. Only weights are published, so its optimizer is a
fresh one. The JSON is written first: there is no checkpoint without one.
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
from realm.files import replace_file
from realm.learn import checkpoint

FOLDER = "best_ckpt"


def main_statistic(statistics: Mapping[str, Array]) -> str:
    """By which statistic models are compared: `score`, else `r` (gymnasium's name of the return), else the first."""
    if not statistics:
        raise UserCodeError("info['episode'] of the environment holds no statistic, so there is nothing to evaluate")
    return next((name for name in ("score", "r") if name in statistics), next(iter(statistics)))


class BestModel:
    """Knows the greatest score so far and keeps its model.

    setting: what was played. Scores of another setting cannot be compared: if the folder holds a model with such a one,
    the folder is set aside as `best_ckpt.<n>`.
    """

    def __init__(self, folder: Path, setting: dict[str, Any]) -> None:
        self._folder, self._setting = folder, json.loads(json.dumps(setting, default=str))
        self.version, self.score = NO_VERSION, -math.inf
        known = self._read()
        if known is not None and known["setting"] == self._setting:
            self.version, self.score = Version(*known["version"]), float(known["score"])
            logger.info("the best model so far is {} with {:.2f}", self.version, self.score)
        elif known is not None:
            number = 1
            while (aside := folder.with_name(f"{folder.name}.{number}")).exists():
                number += 1
            folder.rename(aside)
            logger.info("the best model so far, {}, played something else: kept in {}", known["version"], aside)

    def offer(self, agent: Agent, one: Evaluation, schema: str, more: dict[str, Any]) -> bool:
        """Keep the agent's model if it has scored more than every other; whether it did. Raises OSError.

        more: goes into the JSON, too.
        """
        if not one.score > self.score:
            return False
        body = {
            "version": list(one.version), "env_steps": one.env_steps, "statistic": one.statistic, "score": one.score,
            "means": one.means, "setting": self._setting, **more,
        }  # fmt: skip
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"model.ckpt-{one.version.epoch}-{one.version.update}.json"
        replace_file(path, json.dumps(body, indent=1).encode())
        kept = checkpoint.save(self._folder, agent, one.version, one.env_steps, schema, keep=1)
        self.version, self.score = one.version, one.score
        for left in [*self._folder.glob("model.ckpt-*.json"), *self._folder.glob(".*.json.*")]:
            if left.name != f"{kept.name}.json":
                left.unlink()
        return True

    def _read(self) -> dict[str, Any] | None:
        """What is known of the model in the folder; None if there is no good one."""
        newest, skipped = checkpoint.load_newest(self._folder)
        for sentence in skipped:
            logger.warning("best model skipped: {}", sentence)
        if newest is None:
            return None
        path = newest.path.with_name(f"{newest.path.name}.json")
        try:
            body = json.loads(path.read_bytes())
            return {"setting": body["setting"], "version": list(newest.version), "score": float(body["score"])}
        except (OSError, ValueError, LookupError, TypeError) as error:
            logger.warning("{} cannot be read, its model counts as unknown: {}", path, error)
            return None
