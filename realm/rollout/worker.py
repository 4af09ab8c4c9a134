"""One worker: environments, the user's workflow, and what is counted of its rounds.

The same in a worker's process (`roles/aisrv.py`) and in one process (`launch/local.py`). They differ in who answers
`predict` and who takes the rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from realm.config.load import RunConfig
from realm.config.plan import Plan
from realm.contract import Arrays, Policy, SampleInfo, Spec, WorkflowContext, count_env_steps
from realm.rollout.rounds import RestartingEnvs, close, rounds
from realm.user import hyper_of, load_definition, load_workflow
from realm.watch.meters import Meters


class CountingPolicy(Policy, Protocol):
    """A policy that knows how many actions it has given."""

    actions: int


class Worker:
    """E environments of the package, and its workflow on them."""

    def __init__(
        self, config: RunConfig, plan: Plan, spec: Spec, seed: int, meters: Meters, index: int = 0, incarnation: int = 1
    ) -> None:
        """Make the environments."""
        self.meters, self._app, self._spec = meters, config.app, spec
        self._origin = seed, index, incarnation
        self._hyper = hyper = hyper_of(config)
        self._whole = plan.max_version_lag is not None
        make_envs = load_definition(config.app.algo).make_envs
        self.envs = RestartingEnvs(
            lambda seed: make_envs(plan.envs_per_worker, seed, hyper, config.env), seed, spec, meters.count
        )

    def rounds(
        self,
        policy: CountingPolicy,
        tick: Callable[[], None],
        add: Callable[[Arrays], None],
        save: Callable[[], None],
        update: Callable[[Arrays, SampleInfo], None] | None = None,
    ) -> Iterator[Arrays]:
        """Run the workflow; count and yield each round, name -> [n, ...].

        add: gets the rounds that the workflow hands over itself, counted. tick, save, update: as in WorkflowContext;
        tick is also called before each round.
        """
        meters = self.meters

        def counted(items: Arrays) -> Arrays:
            tick()
            meters.count("env_steps", count_env_steps(items))
            meters.count("items", len(items["worker"]))
            meters.count("rounds")
            meters.totals["actions"] = policy.actions
            return items

        context = WorkflowContext(
            self._spec, self._hyper, *self._origin, meters, tick, lambda items: add(counted(items)), save, update
        )
        for items in rounds(load_workflow(self._app.algo), self.envs, policy, context, self._whole):
            yield counted(items)

    def close(self) -> None:
        close(self.envs)
