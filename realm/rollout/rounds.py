"""Runs the user's workflow over environments that may fail: the same in a worker and in the one-process run.

RestartingEnvs  the environments that a workflow gets: they are checked at each step, and started again if they fail
worker_envs     those of a worker, by the configuration of its run
rounds          what a workflow yields, as arrays, counted, without the chunks in which an environment failed

An environment fails if it raises or returns something that is not of the Spec. Then its episode is thrown away. In a
gymnasium SyncVectorEnv that environment alone is made again, by its `env_fn`, and to the workflow the episode looks
truncated. In any other vector environment a row with NaN, infinity or no reward is thrown away until its own episode
ends; where nobody can know whose fault it was, the vector is made again as a whole. After `MOST_FAILURES` in a row,
without a good episode in between, or of a vector without as many as it has environments, the failure is raised.
"""

from __future__ import annotations

import time
import traceback
from bdb import BdbQuit
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorWrapper
from loguru import logger

from realm.apart import apart
from realm.config.load import RunConfig
from realm.config.plan import Plan
from realm.contract import (
    Array,
    Arrays,
    Chunk,
    Policy,
    SampleInfo,
    Spec,
    WorkflowContext,
    check_arrays,
    chunk_to_arrays,
    count_env_steps,
)
from realm.errors import ContractError, RunError, UserCodeError, UserError, place_of_function
from realm.rollout import checks
from realm.user import hyper_of, load_definition

MOST_FAILURES = 3
ENDLESS = "it must yield rounds until the run ends, as in `while True`"
_MOST_BAD_STEPS = 1000  # of a row whose own episode does not end
_PAUSE_S = 1.0  # before the second restart in a row; the first comes at once
_WARN_EVERY_S = 60.0
_CLOSE_S = 2.0

Count = Callable[[str, float], None]
Make = Callable[[], Any]


class Failures:
    """The failures of all environments of one worker: counted, warned of, and raised when they are too many."""

    def __init__(self, most: int, count: Count) -> None:
        self.most, self.count = most, count
        self.rows: list[int] = []
        """Environments of a SyncVectorEnv that failed in this step."""
        self._warned_at = -_WARN_EVERY_S

    def note(
        self, who: str, call: tuple[Any, str], error: BaseException, in_a_row: int, episodes: int,
        then: str = "it is started again",
    ) -> None:  # fmt: skip
        """Count one failure of `who` in this call (environment, method), which ended so many episodes; raise it if it
        is one too many in a row."""
        ours = not isinstance(error, Exception) and type(error).__module__.startswith("realm.")
        # the debugger was left, or is none; Ctrl+C; an environment in here has failed too often
        if isinstance(error, BdbQuit | KeyboardInterrupt | RunError) or ours:
            raise error
        self.count("dropped_episodes", episodes)
        text = str(error) if isinstance(error, UserCodeError) else checks.sentence(*call, error)
        if in_a_row >= self.most:
            if self.most == 1:
                raise error if isinstance(error, UserError) else UserCodeError(text) from error
            raise RunError(f"{who} failed {in_a_row} times in a row, without enough good episodes: {text}") from error
        now = time.monotonic()
        if now - self._warned_at >= _WARN_EVERY_S:
            self._warned_at = now
            trace = "" if isinstance(error, UserCodeError) else "\n" + "".join(traceback.format_exception(error))
            logger.warning("{} failed: {}; its episode is thrown away and {}{}", who, text, then, trace)


class Streak:
    """Failures of one environment, or of a vector of them, without `enough` good episodes in between."""

    def __init__(self, enough: int) -> None:
        self.in_a_row = 0
        self._enough, self.good = enough, 0

    def failed(self) -> int:
        self.in_a_row = 1 if self.good >= self._enough else self.in_a_row + 1
        self.good = 0
        return self.in_a_row

    def pause(self) -> None:
        """Back off before a restart."""
        if self.in_a_row > 1:
            time.sleep(_PAUSE_S * 2.0 ** (self.in_a_row - 2))


class RestartingEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """One environment of a SyncVectorEnv. Where it fails, its episode is truncated; its next reset makes it again."""

    def __init__(self, env: Any, make: Make, row: int, seed: int, failures: Failures, gathered: bool) -> None:
        """gathered: its vector joins what it says of an episode with what others say."""
        super().__init__(env)
        self._gathered = gathered
        self._make, self._row, self._failures, self._streak = make, row, failures, Streak(1)
        self._seeds = np.random.default_rng((seed, row))
        self._broken = False
        self.last_obs: Any = None
        self.told: dict[str, Any] = {}
        """`info` of the last step."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        while True:
            try:
                if self._broken:
                    self._streak.pause()
                    seed = int(self._seeds.integers(2**31))  # the old one may lead to the same failure
                    self.env = apart()(self._make)()
                    self._broken = False
                    self._failures.count("env_restarts", 1)
                self.last_obs, info = checks.reset_pair(self.env, self.env.reset(seed=seed, options=options))
                checks.check_one(self.env, "reset", self.last_obs)
                return self.last_obs, info
            except BaseException as error:  # also SystemExit, and the panic of an extension in Rust
                self._fail("reset", error)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        try:
            obs, reward, terminated, truncated, info = checks.step_five(self.env, self.env.step(action))
            checks.check_one(self.env, "step", obs)
            checks.check_scalars(self.env, reward, terminated, truncated)
            self.told = info
            if self._gathered and (terminated or truncated):
                checks.check_statistics(self.env, info)
        except BaseException as error:
            self._fail("step", error)
            self._failures.rows.append(self._row)
            return checks.finite(self.last_obs), 0.0, False, True, {}
        self.last_obs = obs
        if terminated or truncated:
            self._streak.good += 1
        return obs, reward, bool(terminated), bool(truncated), info

    def _fail(self, method: str, error: BaseException) -> None:
        self._failures.note(f"environment {self._row}", (self.env, method), error, self._streak.failed(), 1)
        if not self._broken:
            close(self.env)
        self._broken = True


class RestartingEnvs(VectorWrapper[Any, Any, Any, Any, Any]):
    """The vector environment of one worker. NEXT_STEP autoreset, as the user's own.

    make: seed -> vector environment; called again, with another seed, if it has to be made again as a whole.
    count: takes `env_restarts`, `dropped_episodes`, `dropped_chunks`, and what `rounds` counts. most: 1 raises the
    first failure as it is. log_info: keys of `info` that become statistics of each episode.
    """

    # of VectorWrapper, whose __init__ refuses what only looks like a VectorEnv
    _observation_space = _action_space = _single_observation_space = _single_action_space = _metadata = None

    def __init__(
        self, make: Callable[[int], Any], seed: int, spec: Spec, count: Count, most: int = MOST_FAILURES,
        log_info: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self._make, self._spec, self._log_info = make, spec, log_info
        self._failures, self._count = Failures(most, count), count
        self.env = self._made(seed)
        self._streak = Streak(self.env.num_envs)
        self._seeds = np.random.default_rng(seed)
        self._gone = False  # the vector environment is made again at the next call
        self._ended = np.zeros(self.env.num_envs, np.bool_)  # the next step of these is a reset
        self._spoiled = np.zeros(self.env.num_envs, np.bool_)  # in this round
        self._bad: dict[int, int] = {}  # row that failed and plays on -> steps since
        self._doubtful: set[int] = set()  # rows that failed so, and have had no good episode since
        self._obs: Arrays = {}
        self._options: dict[str, Any] | None = None
        self._untold: set[str] = set()

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
                self._obs, info = checks.reset_pair(self.env, self.env.reset(seed=seed, options=options))
                checks.check_obs(self.env, "reset", self._obs, self._spec.obs)
                self._ended[mask] = False
                for row in np.arange(self.env.num_envs)[mask].tolist():
                    self._bad.pop(row, None)  # it begins an episode
                return self._obs, info
            except BaseException as error:
                self._fail("reset", error)

    def step(self, actions: Any) -> tuple[Arrays, Any, Any, Any, dict[str, Any]]:
        """As the user's; the episodes of environments that fail are truncated."""
        none = np.zeros(self.env.num_envs, np.bool_)
        if self._gone:
            obs, info = self.reset(options=self._options)
            self._spoiled[:] = True  # again: rows that had ended before the failure are not invalid in this step
            return obs, np.zeros(self.env.num_envs, np.float32), none, none.copy(), info
        try:
            given = self.env.step(deepcopy(actions))  # a copy: an environment may write into its action
            obs, reward, terminated, truncated, info = self._checked(given)
        except BaseException as error:
            self._fail("step", error)
            self._spoiled[:] = True
            cut, self._ended = ~self._ended, ~self._ended
            return checks.finite(self._obs), np.zeros(self.env.num_envs, np.float32), none, cut, {}
        self._obs, self._ended = obs, np.logical_or(terminated, truncated)
        if self._failures.rows:
            info = self._spoil_rows(self._failures.rows, info)
            self._failures.rows.clear()
        if self._bad or self._doubtful:
            info = self._spoil_rows(list(self._bad), info)
            ended = np.flatnonzero(self._ended).tolist()
            self._doubtful -= set(ended) - self._bad.keys()
            self._bad = {row: steps + 1 for row, steps in self._bad.items() if row not in ended}
        self._streak.good += int(self._ended.sum())
        if self._log_info and np.any(info.get("_episode", False)):
            info = {**info, "episode": {**info["episode"], **self.logged(info, info["_episode"])}}
        return obs, reward, terminated, truncated, info

    def lost(self) -> Array:
        """Which environments failed since the last call, bool [E], for who yields no rounds: what these have played
        since, and the end that their episode seems to have, do not count."""
        lost, self._spoiled = self._spoiled, np.zeros_like(self._spoiled)
        return lost

    def _checked(self, given: Any) -> tuple[Arrays, Any, Any, Any, dict[str, Any]]:
        """A step without the values of rows that cannot be trained on; raises if not only some rows are wrong."""
        obs, reward, terminated, truncated, info = checks.step_five(self.env, given)
        try:
            checks.check_obs(self.env, "step", obs, self._spec.obs)
            checks.check_step(self.env, reward, terminated, truncated, info, self._ended)
        except UserCodeError as error:
            bad = checks.bad_rows(obs, reward, self._ended)
            fresh = [row for row in np.flatnonzero(bad).tolist() if row not in self._bad]
            nobody_knows = bad.all() or np.shape(reward) != bad.shape
            for_long = max(self._bad.values(), default=0) >= _MOST_BAD_STEPS
            if nobody_knows or for_long or self._doubtful.intersection(fresh):
                raise
            obs = checks.finite(obs)
            reward = np.array([0.0 if out else one for one, out in zip(reward, bad | self._ended, strict=True)])
            checks.check_obs(self.env, "step", obs, self._spec.obs)
            checks.check_step(self.env, reward, terminated, truncated, info, self._ended)
            for row in fresh:
                self._failures.note(f"environment {row}", (self.env, "step"), error, 1, 1, "the next one counts again")
            self._bad |= dict.fromkeys(fresh, 0)
            self._doubtful.update(fresh)
        return obs, reward, terminated, truncated, info

    def without_spoiled(self, items: Arrays, whole: bool) -> Arrays | None:
        """A round without the chunks of environments that failed in it; None if nothing is left to train on.

        whole: the round has to keep its size, so these chunks stay, with all rows marked as not valid. Items of the
        user's own cannot be marked, so then they go with their round.
        """
        spoiled = np.isin(items["env"], np.flatnonzero(self._spoiled))
        # a workflow may yield its environments one after the other
        self._spoiled &= ~np.isin(np.arange(len(self._spoiled)), items["env"])
        good = ~spoiled
        if not self._spec.sample:
            if spoiled.any():
                items = {**items, "valid": items["valid"] & good[:, None]}
            good = items["valid"].any(1)  # a chunk of one step may hold a reset and nothing else
        elif whole and spoiled.any():
            good, spoiled = np.zeros_like(good), np.ones_like(good)
        if spoiled.any():
            self._failures.count("dropped_chunks", int(spoiled.sum()))
        if good.all() or (whole and good.any()):
            return items
        return {name: array[good] for name, array in items.items()} if good.any() else None

    def _made(self, seed: int) -> Any:
        envs = self._make(seed)
        base = getattr(envs, "unwrapped", None)
        if isinstance(base, SyncVectorEnv) and all(isinstance(env, gymnasium.Env) for env in base.envs):
            gathered = type(base)._add_info is SyncVectorEnv._add_info
            base.envs = [
                RestartingEnv(env, make, row, seed, self._failures, gathered)
                for row, (env, make) in enumerate(zip(base.envs, base.env_fns, strict=True))
            ]
        return envs

    def _spoil_rows(self, rows: list[int], info: dict[str, Any]) -> dict[str, Any]:
        """Mark rows that have failed; their episodes count in no statistic."""
        self._spoiled[rows] = True
        if "_episode" in info:
            counted = np.array(info["_episode"])
            counted[rows] = False
            info = {**info, "_episode": counted}
        return info

    def logged(self, info: dict[str, Any], over: Array) -> Arrays:
        """The keys of `log_info`, f64 [E]: what the environments tell in the last step of an episode; 0 where one does
        not tell it. over: bool [E], those whose episode has ended."""
        base = getattr(self.env, "unwrapped", None)
        ones = base.envs if isinstance(base, SyncVectorEnv) else ()
        logged = {name: np.zeros(self.env.num_envs) for name in self._log_info}
        given = [name for name in info if name[:1] != "_" and np.shape(info[name])[:1] == over.shape]
        for row in np.flatnonzero(over).tolist():
            if ones and isinstance(ones[row], RestartingEnv):  # a vector may leave out what it cannot join
                told = ones[row].told
            else:
                told = {name: info[name][row] for name in given if info.get(f"_{name}", over)[row]}
            for name, values in logged.items():
                try:
                    values[row] = told[name]
                    if not np.isfinite(values[row]):
                        raise ValueError
                except (LookupError, TypeError, ValueError):
                    values[row] = 0.0
                    if name not in self._untold:
                        self._untold.add(name)
                        what = "is no number" if name in told else f"is missing; info has {', '.join(sorted(told))}"
                        logger.warning("log_info: {!r} {}; it counts as 0 at this episode's end", name, what)
        return logged

    def _fail(self, method: str, error: BaseException) -> None:
        count = self.env.num_envs
        who = "the environment" if count == 1 else f"the vector of {count} environments"
        ended = count - int(self._ended.sum())
        self._failures.note(who, (self.env, method), error, self._streak.failed(), ended)
        self._failures.rows.clear()
        self._bad.clear()
        self._doubtful.clear()
        if not self._gone:
            close(self.env)
        self._gone = True


def worker_envs(config: RunConfig, plan: Plan, spec: Spec, seed: int, count: Count) -> RestartingEnvs:
    """The environments of one worker; count: gets numbers of what happens to them, and of rounds."""
    make_envs, hyper = load_definition(config.app.algo).make_envs, hyper_of(config)

    def made(seed: int) -> Any:
        envs = make_envs(plan.envs_per_worker, seed, hyper, config.env)
        checks.check_envs(envs, plan.envs_per_worker)
        return envs

    return RestartingEnvs(made, seed, spec, count, log_info=config.app.log_info)


def rounds(
    workflow: Callable[..., Iterator[Any]], envs: RestartingEnvs, policy: Policy, context: WorkflowContext,
    whole: bool = False,
) -> Iterator[Arrays]:  # fmt: skip
    """Run the workflow; yield each round as name -> [n, ...], n > 0, with a valid row at least.

    Each is counted, also one that the workflow hands over itself, and `context.tick` is called before it. whole:
    version credits count rounds, so each keeps its size; one without a valid row is left out, and the next one is
    played in its place. Raises UserCodeError for a round that is not of the Spec.
    """

    where, newest = f"{place_of_function(workflow)}: workflow", (-1, -1)

    def counted(items: Arrays) -> Arrays:
        nonlocal newest
        if (origin := (int(items["incarnation"][0]), int(items["seq"][0]))) <= newest:  # a repeat, to the buffer
            raise UserCodeError(f"{where} gave a round with seq {origin[1]} after {newest[1]}; it must rise with each")
        newest = origin
        context.tick()
        envs._count("env_steps", count_env_steps(items))
        envs._count("items", len(items["worker"]))
        envs._count("rounds", 1)
        return items

    def add(items: Arrays) -> None:
        if (kept := envs.without_spoiled(items, whole)) is not None:
            context.add(counted(kept))

    def update(items: Arrays, info: SampleInfo) -> None:
        assert context.update is not None
        if (kept := envs.without_spoiled(items, whole=True)) is not None:
            context.update(kept, info)

    own = replace(context, add=add, update=update if context.update else None)
    for given in workflow(envs, policy, own):
        items = chunk_to_arrays(given) if isinstance(given, Chunk) else given
        worker = items.get("worker") if isinstance(items, dict) else None
        if not isinstance(worker, np.ndarray) or worker.ndim != 1 or not len(worker):
            raise UserCodeError(
                f"{where} yielded {checks.shown(given)}; it must be a Chunk, or a dict of arrays with `worker`, i64 [n]"
            )
        try:
            check_arrays(items, context.spec.sample_fields, (len(worker),), "a round")
        except (ContractError, AttributeError) as error:
            raise UserCodeError(f"{where} yielded what is not of the Spec: {error}") from error
        if (kept := envs.without_spoiled(items, whole)) is not None:
            yield counted(kept)


def close(env: Any) -> None:
    """Close an environment that is no longer needed; what it raises then matters to nobody, and is logged."""
    base: Any = getattr(env, "unwrapped", None)
    is_async = isinstance(base, AsyncVectorEnv)
    try:
        # else it would wait for ever for the answer of a process that has ended in its step
        env.close(**({"timeout": _CLOSE_S} if is_async else {}))
    except (Exception, SystemExit) as error:
        logger.info("closing an environment: {}: {}", type(error).__name__, error)
        for process in base.processes if is_async else ():
            process.terminate()
