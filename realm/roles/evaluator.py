"""The evaluator: plays the newest model, again and again, and keeps the best one (`learn/judge.py`).

It gets its own copy of the weights from the model pool and is independent of workers, actor and buffer: nothing trains
on its episodes, and no statistic of training counts them. It uses at most `eval_cpu_share` of the run's CPU time, and
the supervisor gives its process a low priority. Every result goes to the supervisor (live line, TensorBoard), and as
one line into `evaluations.jsonl` of the run. With `eval_every_steps`, a run that has reached `max_env_steps` ends with
an evaluation of its last model.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from contextlib import closing

from loguru import logger

from realm.contract import NO_VERSION, Agent, Version
from realm.learn.checkpoint import acting, load_bytes, load_newest
from realm.learn.judge import Judge
from realm.learn.outcome import is_judged, newest_model
from realm.roles.job import Job
from realm.user import hyper_of, load_agent
from realm.wire.models import parse_model

_PERIOD_S = 2.0  # even if an evaluation is quicker: the run's curves are no finer


class _Ends(Exception):
    """The learner has saved its last model."""


def run(job: Job) -> None:
    """Evaluate until stopped."""
    config, link, meters = job.config.evaluated(), job.link, job.link.meters
    app = config.app
    budget = Budget(app.eval_cpu_share * job.plan.cores, _PERIOD_S)
    agent: Agent = load_agent(app.algo)(job.spec, hyper_of(config), "cpu", job.seed)
    last: Version | None = None  # of the run, once it is saved
    judging = NO_VERSION

    def tick() -> None:
        nonlocal last
        link.tick()  # raises Stopped
        if any(command.kind == "judge_last" for command in link.commands()) and last is None:
            newest = newest_model(job.run_dir)
            last = Version(newest.epoch, newest.update) if newest else NO_VERSION
        if last is not None and judging != last and not untrained:
            raise _Ends

    judge = Judge(config, agent, job.spec, job.run_dir, tick)
    parts, to_pool = acting(agent), job.client("model_pool")
    memory_size = 0

    def judge_model(version: Version, env_steps: int, weights: bytes) -> None:
        nonlocal judging
        judging = version
        load_bytes(agent.model, weights, parts)
        meters.totals["version_epoch"], meters.totals["version_update"] = version
        evaluation = judge.judge(version, env_steps, memory_size)
        meters.count("evaluations")
        link.say("evaluated", dataclasses.asdict(evaluation))
        judging = NO_VERSION

    link.ready([to_pool])
    version = NO_VERSION
    untrained = app.eval_every_steps > 0 and judge.last is None
    with closing(judge):
        try:
            while True:
                # asked only now: a question that stayed open, as ModelReader's does, would bring an old model
                model = to_pool.wait(to_pool.ask("first" if untrained else "latest", {"have": list(version)}), tick)
                tag = parse_model(model)
                version, memory_size = tag.version, tag.memory_size
                if not judge.is_due(tag.env_steps):
                    time.sleep(0.05)  # the pool answers as soon as it has a newer one
                    continue
                meters.count("models_loaded")
                judge_model(version, tag.env_steps, model.array("weights").tobytes())
                untrained = False
                until = time.monotonic() + (0.0 if app.eval_every_steps else budget.rest_s())
                while time.monotonic() < until:
                    tick()
                    time.sleep(0.1)
        except _Ends:
            newest, skipped = load_newest(job.run_dir / "ckpt")  # publish_every may have kept it from the pool
            for sentence in skipped:
                logger.warning("{}", sentence)
            if newest and not is_judged(job.run_dir):
                last = newest.version
                judge_model(newest.version, newest.env_steps, newest.weights)


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
