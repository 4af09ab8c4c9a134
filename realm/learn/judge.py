"""Judges one model after the other: plays the same episodes with each, keeps the best one, and writes down the scores.

Used by the evaluator (`roles/evaluator.py`), and in one process between two updates (`launch/local.py`).
"""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from loguru import logger

from realm.config.load import RunConfig
from realm.contract import Agent, Array, Arrays, Evaluation, PredictContext, Spec, Version
from realm.learn.best import BestModel
from realm.learn.evaluation import EXPLORES, MOST_STEPS, evaluate, guarded, predictor, together
from realm.learn.results import BEST_FOLDER, EVALUATIONS, last_evaluation, main_statistic, means_of
from realm.rollout.rounds import RestartingEnvs, close
from realm.user import hyper_of, make_envs
from realm.watch.status import named

_MOST_ENVS = 128
_FEW = 8  # episodes of a run's first evaluation, then twice as many each time; always so few where none ends
_ENDLESS_STEPS = 1_000  # of an episode, where in the evaluation before none has ended
_SEED = 1_000_000  # differs from the workers' seeds and from `realm eval`'s, which judges the best model


class Judge:
    """Plays `eval_episodes` episodes of the configured environment with whatever weights the agent has."""

    def __init__(self, config: RunConfig, agent: Agent, spec: Spec, run_dir: Path, tick: Callable[[], None]) -> None:
        """config: as evaluated (`RunConfig.evaluated`). tick: called before each prediction; raises to give up."""
        app = config.app
        self._config, self._agent, self._spec, self._tick = config, agent, spec, tick
        self._results = run_dir / EVALUATIONS
        line = last_evaluation(run_dir)
        last, self._endless = line.get("env_steps"), line.get("ended") == 0
        self._played = int(line["episodes"]) if isinstance(line.get("episodes"), int) else 0
        self.last = last if isinstance(last, int) else None
        """Env steps of the model that this run has judged last, also in an earlier process; None: none yet."""
        self._due: int | None = None
        self._seed, num_envs = app.seed + _SEED, together(config, min(app.eval_episodes, _MOST_ENVS))
        self._envs: RestartingEnvs | None = None
        self._cut, self._thrown_away = "", 0
        self._ready(self._episodes())
        # all models play the same episodes, as far as the environment's seed fixes them
        setting = {"env": config.env, "episodes": app.eval_episodes, "environments": num_envs, "seed": self._seed}
        if app.eval_actions != "greedy":
            setting["actions"] = app.eval_actions
        by = getattr(hyper_of(config), "best_by", ())  # a package may say what comes before the score
        self._best = BestModel(run_dir / BEST_FOLDER, {**setting, **({"by": by} if by else {})}, by)

    def close(self) -> None:
        """Close the environments."""
        if self._envs is not None:
            close(self._envs)
            self._envs = None

    def _episodes(self) -> int:
        """How many the next evaluation plays: few at first, so that a short run has a curve, too."""
        app = self._config.app
        if self.last is None or self._endless:
            return min(_FEW, app.eval_episodes)
        return app.eval_episodes if app.eval_every_steps else min(max(_FEW, 2 * self._played), app.eval_episodes)

    def _ready(self, episodes: int) -> RestartingEnvs:
        """Environments for so many episodes, behind the guard of training."""
        num_envs = together(self._config, min(episodes, _MOST_ENVS))
        if self._envs is None or self._envs.num_envs != num_envs:
            self.close()
            made = make_envs(self._config, num_envs, self._seed)
            self._envs = guarded(self._config, made, self._spec, self._seed, self._count)
        return self._envs

    def _count(self, name: str, amount: float) -> None:
        if name == "dropped_episodes":
            self._thrown_away += int(amount)

    def is_due(self, env_steps: int) -> bool:
        """Whether to judge the model of these env steps: the first one, and with `eval_every_steps` then one of each
        stretch of them. A process that goes on with a run keeps to that, also where a stop has taken steps back."""
        if self._due is None:
            every = self._config.app.eval_every_steps
            self._due = 0 if self.last is None else min(next_due(self.last, every), next_due(env_steps, every))
        return env_steps >= self._due

    def judge(self, version: Version, env_steps: int, memory_size: int) -> Evaluation:
        """Play with the agent as it is, and add a line to `evaluations.jsonl`. A full disk costs only the line.

        env_steps, memory_size: of these weights, as in PredictContext.
        """
        app, started, cpu = self._config.app, time.monotonic(), time.process_time()
        act = predictor(self._agent, self._spec, env_steps, memory_size)

        def predict(obs: Arrays, context: PredictContext) -> tuple[Array, Arrays]:
            self._tick()
            return act(obs, context)

        statistics: dict[str, Array] = {}
        episodes, ended, self._thrown_away = self._episodes(), 0, 0
        envs, most_steps = self._ready(episodes), _ENDLESS_STEPS if self._endless else MOST_STEPS
        for explore in EXPLORES[app.eval_actions]:
            played = evaluate(self._config, envs, predict, episodes, explore, self._seed, None, most_steps)
            mark = "_sampled" if explore and app.eval_actions == "both" else ""
            statistics |= {f"{name}{mark}": values for name, values in played.statistics.items()}
            ended += played.ended
            if played.cut and not self._cut and (ended or self._endless):
                self._cut = played.cut
                logger.warning("{}", played.cut)
        if ended == 0 and not self._endless:  # again, as short as those that follow: scores of other lengths are others
            self._endless = True
            return self.judge(version, env_steps, memory_size)
        few = ended > 0 and episodes < app.eval_episodes  # scores are compared with those of as many episodes
        self._endless, self._played = ended == 0, episodes
        name, means = main_statistic(statistics), means_of(statistics)
        self.last, self._due = env_steps, next_due(env_steps, app.eval_every_steps)
        best = self._best
        evaluation = Evaluation(version, env_steps, name, means[name], best.score, best.version, means)
        took = {"seconds": time.monotonic() - started, "cpu_s": time.process_time() - cpu, "time": time.time()}
        took |= {"episodes": episodes, "ended": ended, "thrown_away": self._thrown_away}
        try:
            best.offer(self._agent, evaluation, self._spec.schema, took, few)
        except OSError as error:
            logger.warning("cannot write the best model, of {}, the run goes on: {}", version, error)
        evaluation = dataclasses.replace(evaluation, best=best.score, best_version=best.version)
        try:
            add_line(self._results, {**dataclasses.asdict(evaluation), **took})
        except OSError as error:
            logger.warning("cannot write the evaluation of {}, the run goes on: {}", version, error)
        logger.info(
            "{} ({:,} env steps): {} {:.2f}, best {:.2f} of {}; {} episodes in {:.1f} s{}",
            version, evaluation.env_steps, named(name), evaluation.score, evaluation.best,
            evaluation.best_version, episodes, took["seconds"],
            f"; {self._thrown_away} more were thrown away, as the environment failed" if self._thrown_away else "",
        )  # fmt: skip
        return evaluation


def next_due(env_steps: int, every: int) -> int:
    """The env steps from which on the next model is judged, after one at `env_steps`; every 0: at once."""
    return (env_steps // every + 1) * every if every else 0


def add_line(path: Path, record: dict[str, Any]) -> None:
    """Append a line of JSON; first end a line that a full disk or a kill left unfinished."""
    with open(path, "a+b") as file:
        torn = file.tell() > 0 and file.seek(-1, os.SEEK_END) >= 0 and file.read(1) != b"\n"
        file.write(b"\n" * torn + json.dumps(record).encode() + b"\n")
