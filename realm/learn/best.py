"""The best model of a run, kept in `best_ckpt/`, where pruning does not reach it.

Called by the evaluator. The folder holds one checkpoint `model.ckpt-<epoch>-<update>`, written and read like any other,
and `model.ckpt-<epoch>-<update>.json` with its scores. The evaluator gets only the weights that act, so the checkpoint
holds no others, and its optimizer is fresh. The JSON is written first, so every checkpoint has one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from loguru import logger

from realm.contract import NO_VERSION, Agent, Evaluation
from realm.files import read_json, replace_file, set_aside
from realm.learn import checkpoint
from realm.learn.results import ranked

_MOST_BYTES = 4 << 20  # the options of an environment may be long


class BestModel:
    """Keeps the model with the greatest score so far.

    by: statistics that decide before the score does, each where those before it are equal.
    setting: describes the evaluation (environment options, seed, episodes). Scores of different settings cannot be
    compared: the first model of a new setting has the folder with that of another one renamed to `best_ckpt.<n>`.
    """

    def __init__(self, folder: Path, setting: dict[str, Any], by: Sequence[str] = ()) -> None:
        self._folder, self._setting, self._by = folder, json.loads(json.dumps(setting, default=str)), by
        self.version, self.score = NO_VERSION, -math.inf
        self._rank = [self.score]  # of its statistics
        self._few = True  # it has played few episodes: any model that has played all takes its place
        known = self._read()
        if known is not None and known["setting"] == self._setting:
            self.version, self._rank, self._few = known["version"], known["rank"], known["few"]
            self.score = self._rank[-1]
            logger.info("the best model so far is {} with {:.2f}", self.version, self.score)
        self._another = known is not None and known["setting"] != self._setting

    def offer(
        self, agent: Agent, evaluation: Evaluation, schema: str, extra: dict[str, Any], few: bool = False
    ) -> bool:
        """Keep the agent's model if its score is the greatest so far and its weights are finite; return whether it is
        kept. Raises OSError.

        extra: more entries for the JSON. few: it has played fewer episodes than the setting says.
        """
        comparable, rank = few == self._few, [*ranked(self._by, evaluation.means), evaluation.score]
        if not (rank > (self._rank if comparable else [-math.inf]) and (comparable or self._few)):
            return False
        if spoiled := checkpoint.not_finite(agent.model.state_dict()):
            logger.warning("{} is not kept as the best model: {} is not finite", evaluation.version, spoiled)
            return False
        if self._another:
            logger.info("the best model so far has another setting: moved to {}", set_aside(self._folder))
            self._another = False
        body = {
            "version": list(evaluation.version), "env_steps": evaluation.env_steps, "statistic": evaluation.statistic,
            "score": evaluation.score, "means": evaluation.means, "setting": self._setting, "few": few, **extra,
        }  # fmt: skip
        self._folder.mkdir(exist_ok=True)
        version = evaluation.version
        path = self._folder / f"model.ckpt-{version.epoch}-{version.update}.json"
        replace_file(path, json.dumps(body, indent=1).encode())
        kept = checkpoint.save(
            self._folder, agent, version, evaluation.env_steps, schema, keep=1, parts=checkpoint.acting(agent)
        )
        self.version, self.score, self._rank, self._few = version, evaluation.score, rank, few
        for left in [*self._folder.glob("model.ckpt-*.json"), *self._folder.glob(".*.json.*")]:
            if left.name != f"{kept.name}.json":
                left.unlink()
        return True

    def _read(self) -> dict[str, Any] | None:
        """Setting, version and rank of the model in the folder; None without a valid one."""
        newest, _ = checkpoint.load_newest(self._folder, "best model")
        if newest is None:
            return None
        path = newest.path.with_name(f"{newest.path.name}.json")
        try:
            body = read_json(path, _MOST_BYTES)
            by = self._by if body["setting"] == self._setting else ()
            rank = [*(float(body["means"][name]) for name in by), float(body["score"])]
            return {"setting": body["setting"], "version": newest.version, "rank": rank, "few": bool(body.get("few"))}
        except (OSError, ValueError, LookupError, TypeError, ArithmeticError) as error:
            logger.warning("cannot read {}, so its model is ignored: {}", path, error)
            return None
