"""Trains: takes batches from the buffer, runs the agent's `learn`, publishes weights, keeps checkpoints."""

from __future__ import annotations

import inspect
import time

from loguru import logger

from realm.contract import Agent, Version
from realm.errors import Stopped, UserCodeError
from realm.learn.trainer import begin
from realm.roles import WAITS
from realm.roles.job import Job
from realm.user import make_agent
from realm.wire.models import ModelWriter
from realm.wire.samples import BatchReader


def run(job: Job) -> None:
    """Train until stopped, then save."""
    app, plan, link = job.config.app, job.plan, job.link
    agent = make_agent(job.config, job.spec, plan.device, app.seed)
    if plan.publish_early:
        check_yields(agent)
    trainer = begin(agent, job.spec, app, job.run_dir, job.epoch, link.meters)
    to_pool, to_buffer = job.client("model_pool"), job.client("buffer")
    models = ModelWriter(to_pool)

    def tick() -> None:
        models.tick()
        link.tick()
        for command in link.commands():
            if command.kind == "save":
                trainer.save_for_user(job.run_dir / "user_ckpt", app.user_save_mode_max_count)

    def publish(version: Version, env_steps: int) -> None:
        started = time.monotonic()
        models.publish(version, env_steps, trainer.weights(), trainer.memory_size)
        link.meters.totals["published"] = models.published
        link.meters.count("publish_s", time.monotonic() - started)

    batches = BatchReader(to_buffer, plan.batch, link.waiting(WAITS["batch"], tick), plan.on_policy)
    publish(trainer.version, trainer.env_steps)
    link.env_steps = trainer.env_steps
    link.ready([to_pool, to_buffer], trainer.origin)
    logger.info("training from {}", trainer.version)
    try:
        batches.request(trainer.version)
        while True:
            started = time.monotonic()
            items, info = batches.receive()
            link.goes_on()
            link.meters.count("wait_s", time.monotonic() - started)
            if not plan.rest_s:
                # the batch after this one is asked for now, and will be trained on the version after this one
                batches.request(trainer.next_version)
            priorities = trainer.update(items, info, publish if plan.publish_early else None)
            if priorities is not None:
                batches.set_priorities(info, priorities)
            # else they went out where `learn` yields
            if models.newest != trainer.version and trainer.version.update % app.publish_every == 0:
                publish(trainer.version, trainer.env_steps)
            link.env_steps = trainer.env_steps
            tick()
            if plan.rest_s:
                until = time.monotonic() + plan.rest_s
                while (left := until - time.monotonic()) > 0:
                    time.sleep(min(left, 0.05))
                    tick()
                batches.request(trainer.version)
    except Stopped:
        trainer.save_last()  # not after an error: an update that failed halfway may have left anything in the weights
        raise


def check_yields(agent: Agent) -> None:
    """Raise UserCodeError unless weights can go out before an update is over."""
    if not inspect.isgeneratorfunction(agent.learn):
        raise UserCodeError(
            f'{inspect.getsourcefile(type(agent))}: max_version_lag is "part", but Agent.learn is no generator, so '
            "its weights cannot go out before an update is over; yield once in learn, or set max_version_lag to a "
            'number or "free"'
        )
