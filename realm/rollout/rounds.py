"""Runs the user's workflow over environments that may fail: the same in a worker and in the one-process run.

RestartingEnvs  the environments that a workflow gets: they are checked at each step, and started again if they fail
rounds          what a workflow yields, as arrays, without the chunks in which an environment failed

An environment fails if it raises or returns something that is not of the Spec. Then its episode is thrown away. In a
gymnasium SyncVectorEnv that environment alone is made again, by its `env_fn`; any other vector environment is made
again as a whole. To the workflow the episode looks truncated. After `MOST_FAILURES` in a row, without a good episode in
between, the failure is raised.
"""

from __future__ import annotations

import inspect
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import SyncVectorEnv, VectorWrapper
from loguru import logger

from realm.contract import Arrays, Chunk, Policy, Spec, WorkflowContext, check_arrays, chunk_to_arrays
from realm.errors import ContractError, RunError, UserCodeError
from realm.rollout import returned

MOST_FAILURES = 3
_PAUSE_S = 1.0  # before the second restart in a row; the first comes at once
_WARN_EVERY_S = 60.0

Count = Callable[[str, float], None]


class Failures:
    """The failures of all environments of one worker: counted, warned of, and raised when they are too many."""

    def __init__(self, most: int, count: Count) -> None:
        self.most, self.count = most, count
        self.rows: list[int] = []
        """Environments of a SyncVectorEnv that failed in this step."""
        self._warned_at = -_WARN_EVERY_S

    def note(self, who: str, env: Any, error: BaseException, in_a_row: int, episodes: int) -> None:
        """Count one failure of `who`, which ended so many episodes; raise it if it is one too many in a row."""
        self.count("dropped_episodes", episodes)
        text = str(error) if isinstance(error, UserCodeError) else returned.sentence(env, error)
        if in_a_row >= self.most:
            if self.most == 1:
                raise error
            raise RunError(f"{who} failed {in_a_row} times in a row, without a good episode: {text}") from error
        now = time.monotonic()
        if now - self._warned_at >= _WARN_EVERY_S:
            self._warned_at = now
            trace = "" if isinstance(error, UserCodeError) else "\n" + "".join(traceback.format_exception(error))
            logger.warning("{} failed: {}; its episode is thrown away and it is started again{}", who, text, trace)


class Streak:
    """Failures of one environment, or of a vector of them, without `enough` good episodes in between."""

    def __init__(self, enough: int) -> None:
        self.in_a_row = 0
        self._enough, self._good = enough, 0

    def failed(self) -> int:
        self.in_a_row = 1 if self._good >= self._enough else self.in_a_row + 1
        self._good = 0
        return self.in_a_row

    def ended_well(self, episodes: int) -> None:
        self._good += episodes

    def pause(self) -> None:
        """Back off before a restart."""
        if self.in_a_row > 1:
            time.sleep(_PAUSE_S * 2.0 ** (self.in_a_row - 2))


class RestartingEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """One environment of a SyncVectorEnv. Where it fails, its episode is truncated; its next reset makes it again."""

    def __init__(self, env: Any, make: Callable[[], Any], row: int, seed: int, failures: Failures) -> None:
        super().__init__(env)
        self._make, self._row, self._failures, self._streak = make, row, failures, Streak(1)
        self._seeds = np.random.default_rng((seed, row))
        self._broken = False
        self._obs: Any = None

    def __getattr__(self, name: str) -> Any:
        if name == "env" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.env, name)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        while True:
            try:
                if self._broken:
                    self._streak.pause()
                    seed = int(self._seeds.integers(2**31))  # the old one may lead to the same failure
                    self.env = self._make()
                    self._broken = False
                    self._failures.count("env_restarts", 1)
                self._obs, info = returned.reset_pair(self.env, self.env.reset(seed=seed, options=options))
                returned.check_one(self.env, "reset", self._obs)
                return self._obs, info
            except (Exception, SystemExit) as error:
                self._fail(error)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        try:
            obs, reward, terminated, truncated, info = returned.step_five(self.env, self.env.step(action))
            returned.check_one(self.env, "step", obs)
            returned.check_scalars(self.env, reward, terminated, truncated)
        except (Exception, SystemExit) as error:
            self._fail(error)
            self._failures.rows.append(self._row)
            return self._obs, 0.0, False, True, {}
        self._obs = obs
        if terminated or truncated:
            self._streak.ended_well(1)
        return obs, reward, bool(terminated), bool(truncated), info

    def _fail(self, error: BaseException) -> None:
        self._failures.note(f"environment {self._row}", self.env, error, self._streak.failed(), 1)
        if not self._broken:
            close(self.env)
        self._broken = True


class RestartingEnvs(VectorWrapper[Any, Any, Any, Any, Any]):
    """The vector environment of one worker. NEXT_STEP autoreset, as the user's own.

    make: seed -> vector environment; called again, with another seed, if it has to be made again as a whole.
    count: takes `env_restarts`, `dropped_episodes` and `dropped_chunks`. most: 1 raises the first failure as it is.
    """

    # of VectorWrapper, whose __init__ refuses what only looks like a VectorEnv
    _observation_space = _action_space = _single_observation_space = _single_action_space = _metadata = None

    def __init__(
        self, make: Callable[[int], Any], seed: int, spec: Spec, count: Count, most: int = MOST_FAILURES
    ) -> None:
        self._make, self._spec, self._seed = make, spec, seed
        self._failures = Failures(most, count)
        self.env = self._made(seed)
        self._streak = Streak(self.env.num_envs)
        self._seeds = np.random.default_rng(seed)
        self._gone = False  # the vector environment is made again at the next call
        self._ended = np.zeros(self.env.num_envs, np.bool_)  # the next step of these is a reset
        self._spoiled = np.zeros(self.env.num_envs, np.bool_)  # in this round
        self._obs: Arrays = {}
        self._options: dict[str, Any] | None = None

    def __getattr__(self, name: str) -> Any:
        if name == "env" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.env, name)  # a workflow may know its environments well

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Arrays, dict[str, Any]]:
        """As the user's; makes the environments again until a reset is good."""
        self._options = {name: value for name, value in (options or {}).items() if name != "reset_mask"} or None
        mask = (options or {}).get("reset_mask", slice(None))
        while True:
            try:
                if self._gone:
                    self._streak.pause()
                    seed = None
                    self.env = self._made(int(self._seeds.integers(2**31)))
                    self._gone = False
                    self._failures.count("env_restarts", 1)
                self._obs, info = returned.reset_pair(self.env, self.env.reset(seed=seed, options=options))
                returned.check_obs(self.env, "reset", self._obs, self._spec.obs)
                self._ended[mask] = False
                return self._obs, info
            except RunError:
                raise
            except (Exception, SystemExit) as error:
                self._fail(error)

    def step(self, actions: Any) -> tuple[Arrays, Any, Any, Any, dict[str, Any]]:
        """As the user's; the episodes of environments that fail are truncated."""
        none = np.zeros(self.env.num_envs, np.bool_)
        if self._gone:
            obs, info = self.reset(options=self._options)
            self._spoiled[:] = True  # again: rows that had ended before the failure are not invalid in this step
            return obs, np.zeros(self.env.num_envs, np.float32), none, none.copy(), info
        try:
            obs, reward, terminated, truncated, info = returned.step_five(self.env, self.env.step(actions))
            returned.check_obs(self.env, "step", obs, self._spec.obs)
            returned.check_step(self.env, reward, terminated, truncated, info, self._ended)
        except RunError:
            raise
        except (Exception, SystemExit) as error:
            self._fail(error)
            self._spoiled[:] = True
            cut, self._ended = ~self._ended, ~self._ended
            return self._obs, np.zeros(self.env.num_envs, np.float32), none, cut, {}
        self._obs, self._ended = obs, np.logical_or(terminated, truncated)
        if self._failures.rows:
            info = self._spoil_rows(info)
        self._streak.ended_well(int(self._ended.sum()))
        return obs, reward, terminated, truncated, info

    def without_spoiled(self, items: Arrays) -> Arrays | None:
        """A round without the chunks of environments that failed in it: their rows are marked as not valid, so that the
        round stays whole. Items without `valid` rows are thrown away with their whole round: None."""
        spoiled = np.isin(items["env"], np.flatnonzero(self._spoiled))
        # a workflow may yield its environments one after the other
        self._spoiled &= ~np.isin(np.arange(len(self._spoiled)), items["env"])
        if not spoiled.any():
            return items
        whole = "valid" not in items
        self._failures.count("dropped_chunks", len(spoiled) if whole else int(spoiled.sum()))
        if whole:
            return None
        valid = items["valid"].copy()
        valid[spoiled] = False
        return {**items, "valid": valid}

    def _made(self, seed: int) -> Any:
        envs = self._make(seed)
        base = getattr(envs, "unwrapped", None)
        if isinstance(base, SyncVectorEnv) and all(isinstance(env, gymnasium.Env) for env in base.envs):
            base.envs = [
                RestartingEnv(env, make, row, seed, self._failures)
                for row, (env, make) in enumerate(zip(base.envs, base.env_fns, strict=True))
            ]
        return envs

    def _spoil_rows(self, info: dict[str, Any]) -> dict[str, Any]:
        """Mark the rows that failed in this step; their episodes count in no statistic."""
        self._spoiled[self._failures.rows] = True
        if "_episode" in info:
            counted = np.array(info["_episode"])
            counted[self._failures.rows] = False
            info = {**info, "_episode": counted}
        self._failures.rows.clear()
        return info

    def _fail(self, error: BaseException) -> None:
        count = self.env.num_envs
        who = "the environment" if count == 1 else f"the vector of {count} environments"
        self._failures.note(who, self.env, error, self._streak.failed(), count - int(self._ended.sum()))
        self._failures.rows.clear()
        if not self._gone:
            close(self.env)
        self._gone = True


def rounds(
    workflow: Callable[..., Iterator[Any]], envs: RestartingEnvs, policy: Policy, context: WorkflowContext
) -> Iterator[Arrays]:
    """Run the workflow; yield each round as name -> [n, ...]. Raises UserCodeError for a round that is not of the
    Spec."""

    def add(items: Arrays) -> None:
        if (kept := envs.without_spoiled(items)) is not None:
            context.add(kept)

    code = inspect.unwrap(workflow).__code__
    where = f"{code.co_filename}:{code.co_firstlineno}: workflow yielded"
    for given in workflow(envs, policy, replace(context, add=add)):
        items = chunk_to_arrays(given) if isinstance(given, Chunk) else given
        worker = items.get("worker") if isinstance(items, dict) else None
        if not isinstance(worker, np.ndarray) or worker.ndim != 1 or not len(worker):
            raise UserCodeError(
                f"{where} {returned.shown(given)}; it must be a Chunk, or a dict of arrays with `worker` i64 [n], n > 0"
            )
        try:
            check_arrays(items, context.spec.sample_fields, (len(worker),), "a round")
        except (ContractError, AttributeError) as error:
            raise UserCodeError(f"{where} what is not of the Spec: {error}") from error
        kept = envs.without_spoiled(items)
        if kept is not None:
            yield kept


def close(env: Any) -> None:
    """Close an environment that is no longer needed; what it raises then matters to nobody, and is logged."""
    try:
        env.close()
    except (Exception, SystemExit) as error:
        logger.info("closing an environment: {}: {}", type(error).__name__, error)
