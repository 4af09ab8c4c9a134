"""Tries a user's package before a run has a directory or a process: one environment, its spec, and one round.

Called by `prepare` and `realm init`. Without weights and torch: a policy of random actions stands in for the agent.
"""

from __future__ import annotations

import time
from bdb import BdbQuit
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from realm.config.load import RunConfig
from realm.contract import NO_VERSION, ActionSpec, Array, Arrays, Prediction, Spec, WorkflowContext, check_arrays
from realm.errors import ConfigError, UserCodeError, place_of_function
from realm.learn.results import check_best_by
from realm.policy.state import PolicyState
from realm.rollout.checks import check_action_space, check_envs
from realm.rollout.rounds import ENDLESS, RestartingEnvs, rounds
from realm.user import calling, check_agent, folder_of, has_enter, load_definition, load_workflow, make_envs
from realm.watch.meters import Meters

_MOST_S = 2.0  # of a round; a longer one is tried in part


class _EnoughError(BaseException):
    """Ends the trial; not an Exception, so that user code does not catch it."""


def try_user_code(config: RunConfig, hyper: Any) -> Spec:
    """Make one environment, step it once, compare its arrays with its Spec, and play one round of the workflow; this
    also compiles the kernels."""
    algo = config.app.algo
    definition = load_definition(algo)
    load_workflow(algo)
    check_agent(algo)
    envs = make_envs(config, 1, config.app.seed)
    with _in_definition(algo):
        check_envs(envs, 1)
    with calling(config, "spec"):
        check_best_by(getattr(hyper, "best_by", ()), config.app, envs)
        spec = definition.spec(envs, hyper)
    with _in_definition(algo):
        if not isinstance(spec, Spec):
            raise UserCodeError(f"spec returned {type(spec).__name__}; expected a Spec")
        check_action_space(envs, spec.action)
    tried = _TriedEnvs(lambda _: envs, config.app.seed, spec, lambda name, amount: None, most=1)
    with calling(config, "reset"):
        obs, _ = tried.reset(seed=config.app.seed)
    with calling(config, "step"):
        tried.step(_random_action(spec.action, obs.get("legal"), 1, np.random.default_rng(config.app.seed)))
    if not has_enter(algo):
        _try_workflow(config, hyper, spec, tried)
    if not tried.failed:
        with calling(config, "close"):
            envs.close()
    if config.eval_env:
        evaluated = config.evaluated()
        envs = make_envs(evaluated, 1, config.app.seed)
        with calling(evaluated, "spec and close"):
            evaluates = definition.spec(envs, hyper)
            envs.close()
        _check_same(config, evaluates, spec)
    return spec


def _check_same(config: RunConfig, evaluated: Spec, trained: Spec) -> None:
    """Raise ConfigError unless one policy can play both."""
    here, there = (
        {**one.obs, "the action": one.action, "what a step stores": one.step} for one in (evaluated, trained)
    )
    if differs := [name for name in here | there if here.get(name) != there.get(name)]:
        name, keys = differs[0], list(config.eval_env)
        raise ConfigError(
            f"{config.places[f'eval_env.{keys[0]}']}: [eval_env] ({', '.join(keys)}) makes another task: {name} is "
            f"{here.get(name)}, in training {there.get(name)}; these must be the same"
        )


@contextmanager
def _in_definition(algo: str) -> Iterator[None]:
    """Name the user's file in front of an error."""
    try:
        yield
    except UserCodeError as error:
        raise UserCodeError(f"{folder_of(algo) / 'feature' / 'definition.py'}: {error}") from error


def _try_workflow(config: RunConfig, hyper: Any, spec: Spec, envs: _TriedEnvs) -> None:
    """Play a round, or as much of it as fits into some seconds."""
    envs.ends_trial = True
    seed = config.app.seed
    policy = _RandomPolicy(spec, envs.num_envs, seed)
    update = _enough if config.app.wrapper_type == "local" else None
    context = WorkflowContext(spec, hyper, seed, 0, 1, Meters(), policy.tick, _enough, lambda: None, update)
    with suppress(_EnoughError), calling(config, "workflow", "train_workflow"):
        workflow = load_workflow(config.app.algo)
        if next(rounds(workflow, envs, policy, context), None) is None:
            raise UserCodeError(f"{place_of_function(workflow)}: workflow ended without a round; {ENDLESS}")


def _enough(*_: Any) -> None:
    raise _EnoughError


class _TriedEnvs(RestartingEnvs):
    """Raises the first failure as it is. While a workflow is tried, one ends the trial: it is no fault of the workflow,
    and a random action may have been wrong."""

    ends_trial = failed = False

    def _fail(self, method: str, error: BaseException) -> None:
        self.failed = True
        if self.ends_trial and not isinstance(error, BdbQuit | KeyboardInterrupt):
            raise _EnoughError from error
        super()._fail(method, error)


class _RandomPolicy:
    """Random actions, and zeros for whatever else an agent would answer."""

    def __init__(self, spec: Spec, num_envs: int, seed: int) -> None:
        self._spec, self._random = spec, np.random.default_rng(seed)
        self._slot, self._state = np.arange(num_envs), PolicyState(spec.state, num_envs)
        self._until = time.monotonic() + _MOST_S

    def tick(self) -> None:
        if time.monotonic() > self._until:
            raise _EnoughError

    def predict(self, obs: Arrays, first: Array, explore: float | Array = 1.0) -> Prediction:
        self.tick()
        count = len(first)
        check_arrays(obs, self._spec.obs, (count,), "the workflow's arguments of predict")
        extra = {name: np.zeros((count, *one.shape), one.dtype) for name, one in self._spec.extra.items()}
        state = self._state.before(self._slot[:count], first)
        action = _random_action(self._spec.action, obs.get("legal"), count, self._random)
        return Prediction(action, extra, NO_VERSION, 0, state)


def _random_action(action: ActionSpec, legal: Array | None, count: int, random: np.random.Generator) -> Array:
    """Actions [count, ...] of the space, legal ones if there is a mask [count, choices]; with an infinite
    bound, a range of 2 at the other bound, or around 0."""
    if choices := [action.n] if action.n else list(action.nvec):
        allowed = np.ones((count, sum(choices))) if legal is None or legal.shape != (count, sum(choices)) else legal
        drawn = random.random((count, sum(choices))) * (np.asarray(allowed) > 0)
        each = [part.argmax(1) for part in np.split(drawn, np.cumsum(choices)[:-1], 1)]
        return each[0] if action.n else np.stack(each, 1)
    low, high = action.bounds
    low = np.where(np.isfinite(low), low, np.minimum(high, 1.0) - 2)
    high = np.where(np.isfinite(high), high, np.maximum(low, -1.0) + 2)
    return random.uniform(low, high, (count, len(low))).astype(np.float32)
