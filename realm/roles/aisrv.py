"""The worker: runs the user's workflow on E environments and sends its chunks to the buffer.

Predictions come from the actor or from a copy of the weights in this process; the workflow sees no difference.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from realm.contract import Arrays, Version, WorkflowContext
from realm.errors import ContractError
from realm.policy.gate import VersionGate
from realm.policy.local_policy import LocalPolicy
from realm.roles import WAITS
from realm.roles.job import Job
from realm.rollout.rounds import close, rounds, worker_envs
from realm.user import hyper_of, load_workflow, make_agent
from realm.watch.progress import Every
from realm.wire.models import ModelReader
from realm.wire.predict import RemotePolicy
from realm.wire.samples import ItemSender
from realm.wire.sockets import Client


def run(job: Job) -> None:
    """Run the workflow until stopped, or until it ends."""
    plan, link, meters = job.plan, job.link, job.link.meters
    envs = worker_envs(job.config, plan, job.spec, job.seed, meters.count)
    gate = VersionGate(plan.max_version_lag, plan.batch, plan.round_size)
    to_buffer = job.client("buffer")
    sender = ItemSender(to_buffer, gate, link.waiting(WAITS["add"], link.tick))

    def tick() -> None:
        link.tick()
        sender.poll()  # also while waiting for a prediction: a refused round changes the minimum version
        if "buffer_restarted" in link.commands():
            gate.refill()

    may_tick = Every(0.1)

    def predicted() -> None:
        link.goes_on()
        if may_tick.due():  # a round may take minutes
            tick()

    policy: LocalPolicy | RemotePolicy
    policy, to_policy = (_policy_here if plan.predict_local else _policy_at_actor)(
        job, gate, link.waiting(WAITS["question"], tick), predicted
    )  # fmt: skip

    def add(items: Arrays) -> None:
        if plan.max_version_lag is not None and len(items["worker"]) != plan.envs_per_worker:
            # credits count whole rounds: with another size the worker would wait for ever for an update
            raise ContractError(
                f"the workflow yielded {len(items['worker'])} items in a round; with max_version_lag "
                f"{plan.max_version_lag} it must be {plan.envs_per_worker}, one of each environment; "
                'set max_version_lag = "free" to allow any number'
            )
        gate.begin_round()
        meters.totals["actions"] = policy.actions
        started = time.monotonic()
        sender.add(items)
        link.goes_on()
        meters.count("add_wait_s", time.monotonic() - started)
        for status, number in sender.answers.items():
            meters.totals[f"rounds_{status}"] = number

    context = WorkflowContext(
        job.spec, hyper_of(job.config), job.seed, job.index, job.incarnation, meters, tick, add,
        lambda: link.say("save", {}), env_steps=lambda: link.so_far.env_steps,
        evaluation=lambda: link.so_far.evaluation,
    )  # fmt: skip
    workflow, whole = load_workflow(job.config.app.algo), plan.max_version_lag is not None
    link.ready([to_policy, to_buffer])
    try:
        for items in rounds(workflow, envs, policy, context, whole):
            add(items)
        sender.finish()
    finally:
        close(envs)


def _policy_here(
    job: Job, gate: VersionGate, tick: Callable[[], None], predicted: Callable[[], None]
) -> tuple[LocalPolicy, Client]:
    """Local prediction: an agent in this process that loads new models from the pool."""
    from realm.learn.checkpoint import acting, load_bytes  # late: it imports torch, which other workers do not need

    agent = make_agent(job.config, job.spec, "cpu", job.seed)
    to_pool = job.client("model_pool")
    parts = acting(agent)
    models = ModelReader(to_pool, lambda weights: load_bytes(agent.model, weights, parts))

    def refresh() -> tuple[Version, int, int]:
        started = time.monotonic()
        version = models.wait(gate.minimum, tick)
        gate.see(version)
        predicted()
        job.link.meters.count("predict_wait_s", time.monotonic() - started)
        job.link.meters.totals["models_loaded"] = models.loaded
        return version, models.env_steps, models.memory_size

    return LocalPolicy(agent, job.spec, job.plan.envs_per_worker, refresh, job.link.meters.count), to_pool


def _policy_at_actor(
    job: Job, gate: VersionGate, tick: Callable[[], None], predicted: Callable[[], None]
) -> tuple[RemotePolicy, Client]:
    """Remote prediction: each question goes to the actor, and its time into the meters."""
    meters, to_actor = job.link.meters, job.client("actor")

    def answered(seconds: float) -> None:
        predicted()
        meters.timing("predict", seconds)
        meters.count("predict_wait_s", seconds)

    policy = RemotePolicy(to_actor, job.spec, job.index, job.plan.envs_per_worker, gate, tick, answered, meters.count)
    return policy, to_actor
