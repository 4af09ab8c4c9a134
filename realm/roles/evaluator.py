"""The evaluator: plays the newest model with greedy actions, again and again, and keeps the best model.

It gets its own copy of the weights from the model pool and is independent of workers, actor and buffer: nothing trains
on its episodes, and no statistic of training counts them. It uses at most `eval_cpu_share` of the run's CPU time, and
the supervisor gives its process a low priority. Every result goes to the supervisor (live line, TensorBoard), and as
one line into `evaluations.jsonl` of the run.
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

from realm.contract import NO_VERSION, Agent, Array, Arrays, Evaluation, PredictContext
from realm.learn.best import FOLDER, BestModel, main_statistic
from realm.learn.checkpoint import acting, load_bytes
from realm.learn.evaluate import evaluate
from realm.roles.job import Job
from realm.user import calling, load_agent, load_definition, load_hyper
from realm.wire.models import parse_model

_MOST_ENVS = 128
_PERIOD_S = 2.0  # even if an evaluation is quicker: the run's curves are no finer
_SEED = 1_000_000  # differs from the workers' seeds and from `realm eval`'s, which judges the best model


def run(job: Job) -> None:
    """Evaluate until stopped."""
    config, link, meters = job.config.evaluated(), job.link, job.link.meters
    app = config.app
    budget = Budget(app.eval_cpu_share * job.plan.cores, _PERIOD_S)
    hyper, seed, num_envs = load_hyper(app.algo, config.hyper), app.seed + _SEED, min(app.eval_episodes, _MOST_ENVS)
    with calling(config, "make_envs"):
        envs = load_definition(app.algo).make_envs(num_envs, seed, hyper, config.env)
    agent: Agent = load_agent(app.algo)(job.spec, hyper, "cpu", job.seed)
    # all models play the same episodes, as far as the environment's seed fixes them
    setting = {"env": config.env, "episodes": app.eval_episodes, "environments": num_envs, "seed": seed}
    best = BestModel(job.run_dir / FOLDER, setting)
    to_pool = job.client("model_pool")

    def predict(obs: Arrays, context: PredictContext) -> tuple[Array, Arrays]:
        link.tick()  # raises Stopped
        return agent.predict(obs, context)

    link.ready([to_pool])
    version = NO_VERSION
    while True:
        # asked only now: a question that stayed open, as ModelReader's does, would bring an old model
        model = to_pool.wait(to_pool.ask("latest", {"have": list(version)}), link.tick)
        tag = parse_model(model)
        load_bytes(agent.model, model.array("weights").tobytes(), acting(agent))
        version = tag.version
        meters.count("models_loaded")
        meters.totals["version_epoch"], meters.totals["version_update"] = version
        started, cpu = time.monotonic(), time.process_time()
        statistics = evaluate(config, envs, predict, app.eval_episodes, 0.0, seed)
        means, name = {key: float(values.mean()) for key, values in statistics.items()}, main_statistic(statistics)
        evaluation = Evaluation(version, tag.env_steps, name, means[name], best.score, best.version, means)
        took = {"seconds": time.monotonic() - started, "cpu_s": time.process_time() - cpu, "time": time.time()}
        try:
            best.offer(agent, evaluation, job.spec.schema, took)
            evaluation = dataclasses.replace(evaluation, best=best.score, best_version=best.version)
            add_line(job.run_dir / "evaluations.jsonl", {**dataclasses.asdict(evaluation), **took})
        except OSError as error:
            logger.warning("cannot write the evaluation of {}, the evaluator goes on: {}", version, error)
        meters.count("evaluations")
        link.say("evaluated", dataclasses.asdict(evaluation))
        logger.info(
            "version {} ({:,} env steps): {} {:.2f}, best {:.2f} ({}); {:.1f} s",
            version, evaluation.env_steps, name, evaluation.score, evaluation.best, evaluation.best_version,
            took["seconds"],
        )  # fmt: skip
        until = time.monotonic() + budget.rest_s()
        while time.monotonic() < until:
            link.tick()
            time.sleep(0.1)


class Budget:
    """Limits this process to `rate` CPU seconds per second: it says how long to rest after each piece of work.

    A rest pays for all CPU time since the start of the rest before, and the first rest for all since the process
    started. Time saved by waiting for a model is not carried over. Work and rest together take at least `period_s`.
    """

    def __init__(
        self,
        rate: float,
        period_s: float,
        cpu: Callable[[], float] = time.process_time,
        wall: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rate, self._period_s, self._cpu, self._wall = rate, period_s, cpu, wall
        self._cpu_from, self._wall_from = 0.0, wall()

    def rest_s(self) -> float:
        """Seconds to rest now. Call it once after each piece of work: it starts a new account at the rest's end."""
        cpu, wall = self._cpu(), self._wall()
        rest = max(0.0, max((cpu - self._cpu_from) / self._rate, self._period_s) - (wall - self._wall_from))
        self._cpu_from, self._wall_from = cpu, wall + rest
        return rest


def add_line(path: Path, record: dict[str, Any]) -> None:
    """Append a line of JSON; first end a line that a full disk or a kill left unfinished."""
    with open(path, "a+b") as file:
        torn = file.tell() > 0 and file.seek(-1, os.SEEK_END) >= 0 and file.read(1) != b"\n"
        file.write(b"\n" * torn + json.dumps(record).encode() + b"\n")
