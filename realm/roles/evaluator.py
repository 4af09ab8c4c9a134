"""The evaluator: plays the newest model, again and again, and keeps the best one (`learn/judge.py`).

It gets its own copy of the weights from the model pool and is independent of workers, actor and buffer: nothing trains
on its episodes, and no statistic of training counts them. It uses at most `eval_cpu_share` of the run's CPU time, and
the supervisor gives its process a low priority. Every result goes to the supervisor (live line, TensorBoard), and as
one line into `evaluations.jsonl` of the run. With `eval_every_steps`, a run that has reached `max_env_steps` ends with
an evaluation of its last model.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from contextlib import closing

from realm.contract import NO_VERSION, Agent, ModelTag, Version
from realm.learn.checkpoint import acting, load_bytes, load_newest
from realm.learn.judge import Judge
from realm.learn.results import is_judged, newest_model
from realm.roles import WAITS
from realm.roles.job import Job
from realm.user import make_agent
from realm.wire.codec import parsed

_PERIOD_S = 2.0  # even if an evaluation is quicker: the run's curves are no finer
_LONG_S = 60.0  # of an evaluation


class _Ends(Exception):
    """The learner has saved its last model."""


def run(job: Job) -> None:
    """Evaluate until stopped."""
    evaluator = _Evaluator(job)
    with closing(evaluator.judge):
        try:
            evaluator.follow()
        except _Ends:
            evaluator.judge_last()


class _Evaluator:
    """The newest models, one after the other, and at the end the last one."""

    def __init__(self, job: Job) -> None:
        config = job.config.evaluated()
        self._every, self._link, self._run_dir = config.app.eval_every_steps, job.link, job.run_dir
        self._budget = Budget(config.app.eval_cpu_share * job.plan.cores, _PERIOD_S)
        self._agent: Agent = make_agent(config, job.spec, "cpu", job.seed)
        self.judge = Judge(config, self._agent, job.spec, job.run_dir, self._tick)
        self._parts, self._to_pool = acting(self._agent), job.client("model_pool")
        self._untrained = self._every > 0 and self.judge.last is None  # that model is asked for, and judged, first
        self._judging, self._long_at = NO_VERSION, math.inf
        self._last: Version | None = None  # of the run, once it is saved
        self._memory_size = 0
        job.link.ready([self._to_pool])

    def follow(self) -> None:
        """Judge the newest model again and again; raises _Ends, or Stopped."""
        version, meters = NO_VERSION, self._link.meters
        while True:
            # asked only now: a question that stayed open, as ModelReader's does, would bring an old model
            question = self._to_pool.ask("first" if self._untrained else "latest", {"have": list(version)})
            model = self._to_pool.wait(question, self._link.waiting(WAITS["evaluator"], self._tick))
            self._link.goes_on()
            tag = parsed(model, ModelTag)
            version, self._memory_size = tag.version, tag.memory_size
            if not self.judge.is_due(tag.env_steps):
                time.sleep(0.05)  # the pool answers as soon as it has a newer one
                continue
            meters.count("models_loaded")
            self._judge(version, tag.env_steps, model.array("weights").tobytes())
            self._untrained = False
            until = time.monotonic() + (0.0 if self._every else self._budget.rest_s())
            while time.monotonic() < until:
                self._tick()
                time.sleep(0.1)

    def judge_last(self) -> None:
        """Judge the newest checkpoint, unless that has been done: the pool may have no such model (`publish_every`)."""
        newest, _ = load_newest(self._run_dir / "ckpt", "checkpoint")
        if newest and not is_judged(self._run_dir):
            self._last = newest.version
            self._judge(newest.version, newest.env_steps, newest.weights)

    def _judge(self, version: Version, env_steps: int, weights: bytes) -> None:
        meters, self._judging, self._long_at = self._link.meters, version, time.monotonic() + _LONG_S
        load_bytes(self._agent.model, weights, self._parts)
        meters.totals["version_epoch"], meters.totals["version_update"] = version
        evaluation = self.judge.judge(version, env_steps, self._memory_size)
        meters.count("evaluations")
        self._link.say("evaluated", dataclasses.asdict(evaluation))
        self._judging, self._long_at = NO_VERSION, math.inf

    def _tick(self) -> None:
        """Take commands. Raises Stopped; and _Ends, unless it is the first or the last model that is judged."""
        self._link.tick()
        if time.monotonic() > self._long_at:
            self._link.warn(
                f"an evaluation takes more than {_LONG_S:.0f} s, since training has the cores first; fewer "
                "eval_episodes, a step limit in [eval_env] or a core less for training makes the curve finer"
            )
        if "judge_last" in self._link.commands() and self._last is None:
            newest = newest_model(self._run_dir)
            self._last = newest.version if newest else NO_VERSION
        if self._last is not None and self._judging != self._last and not self._untrained:
            raise _Ends


class Budget:
    """Limits this process to `rate` CPU seconds per second: it says how long to rest after each piece of work.

    A rest pays for all CPU time since the start of the rest before. The first rest pays for nothing: the start of the
    process and the first piece of work, which compiles, would take the evaluations of a short run. Time saved by
    waiting for a model is not carried over. Work and rest together take at least `period_s`.
    """

    def __init__(
        self, rate: float, period_s: float, cpu: Callable[[], float] = time.process_time,
        wall: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._rate, self._period_s, self._cpu, self._wall = rate, period_s, cpu, wall
        self._cpu_from, self._wall_from = math.inf, wall()

    def rest_s(self) -> float:
        """Seconds to rest now. Call it once after each piece of work: it starts a new account at the rest's end."""
        cpu, wall = self._cpu(), self._wall()
        rest = max(0.0, max((cpu - self._cpu_from) / self._rate, self._period_s) - (wall - self._wall_from))
        self._cpu_from, self._wall_from = cpu, wall + rest
        return rest
