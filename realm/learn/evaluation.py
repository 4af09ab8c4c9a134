"""Plays episodes with a trained model and collects their statistics, without training.

Called by `realm eval`, by the evaluator and by user code; `realm record` and `realm play` use other parts of it.
`evaluate` plays N episodes of any environment that reports them in `info["episode"]`. It takes the vector environment
and an agent's `predict`. Only `load_player` imports torch.

In environments behind the guard of training (`guarded`) an episode in which one fails is played again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.vector import SyncVectorEnv

from realm.config.load import RunConfig
from realm.contract import Agent, Array, Arrays, PredictContext, Spec
from realm.errors import CheckpointError, UserCodeError
from realm.learn.results import main_statistic, recorder_of
from realm.policy.local_policy import forwards
from realm.policy.state import PolicyState
from realm.rollout.rounds import Count, RestartingEnv, RestartingEnvs
from realm.user import calling, enter, has_enter, hyper_of, load_definition, make_agent, make_envs

if TYPE_CHECKING:
    from realm.learn.checkpoint import Checkpoint
    from realm.watch.progress import Show

Predict = Callable[[Arrays, PredictContext], tuple[Array, Arrays]]
MOST_STEPS = 10_000
"""Of an episode in `evaluate`, where the environments tell no limit of their own: some never end."""
EXPLORES = {"greedy": (0.0,), "sampled": (1.0,), "both": (0.0, 1.0)}
"""`explore` of each round of an evaluation, by `eval_actions`."""
SHOWN_EVERY = 64  # steps, where no episode ends


class Player(NamedTuple):
    """A trained agent and environments to play in. predict: as `predictor` makes it; lacking: the weights of its model
    that the checkpoint has not."""

    envs: Any
    agent: Agent
    predict: Predict
    spec: Spec
    lacking: tuple[str, ...]


class EpisodeStatistics(NamedTuple):
    """What `evaluate` has played."""

    statistics: dict[str, Array]  # name -> [n], of each episode that counts
    cut: str  # a sentence about episodes that did not end; "" where all did
    ended: int  # episodes that did
    truncated: int  # and these by a limit of the environment's own


def together(config: RunConfig, num_envs: int) -> int:
    """How many of these games are played at once: one for a package with `enter`, whose agent plays one in training and
    may remember it."""
    return 1 if has_enter(config.app.algo) else num_envs


def guarded(config: RunConfig, envs: Any, spec: Spec, seed: int, count: Count) -> RestartingEnvs:
    """These environments, or others that are made in their place when they fail; count: as in RestartingEnvs."""
    made, num_envs = [envs], envs.num_envs

    def again(seed: int) -> Any:
        return made.pop() if made else make_envs(config, num_envs, seed)

    return RestartingEnvs(again, seed, spec, count, log_info=config.app.log_info)


def evaluate(
    config: RunConfig, envs: Any, predict: Predict, episodes: int, explore: float, seed: int, show: Show | None = None,
    most_steps: int = MOST_STEPS,
) -> EpisodeStatistics:  # fmt: skip
    """Play `episodes` episodes.

    explore: 0 takes greedy actions, 1 samples them. All environments play the same number of episodes (plus or minus
    one), so that short episodes do not count more often than long ones; one of a SyncVectorEnv that has played its own
    stands still until the last has. An episode is cut after the environment's own limit, or `most_steps`: it counts
    as it is then, unless the environment alone knows its score, and its environment plays no more.
    """
    num_envs = envs.num_envs
    quota = np.full(num_envs, episodes // num_envs)
    quota[: episodes % num_envs] += 1
    limit = _own_limit(config, envs) or most_steps
    rows: dict[str, list[float]] = {}
    cut: dict[str, list[float]] = {}
    ended_well, by_limit = 0, 0
    returns, lengths, resets = np.zeros(num_envs), np.zeros(num_envs, np.int64), np.zeros(num_envs, np.bool_)
    base = getattr(envs, "unwrapped", None)
    ones = base.envs if isinstance(base, SyncVectorEnv) else []
    ones[:] = [one.env if isinstance(one, _Resting) else one for one in ones]  # of the evaluation before
    with calling(config, "reset"):
        obs, _ = envs.reset(seed=seed)
    everyone = np.ones(num_envs, np.bool_)  # a user's environment may refuse a repeated action
    for t, (_, reward, ended, truncated, lost, info) in enumerate(steps_of(envs, predict, obs, explore, everyone)):
        new = resets | lost
        returns, lengths, resets = np.where(new, 0, returns + reward), np.where(new, 0, lengths + 1), ended
        over = ended & ~lost & (quota > 0)
        if over.any():
            episode = reported(info)
            taken = np.flatnonzero(over & info["_episode"])
            for name, values in episode.items():
                rows.setdefault(name, []).extend(np.asarray(values)[taken].astype(float).tolist())
            ended_well += int(over.sum())
            by_limit += int((over & truncated).sum())
            quota[over] -= 1
            for row in np.flatnonzero(over & (quota == 0)).tolist():
                if ones and isinstance(ones[row], RestartingEnv):
                    ones[row] = _Resting(ones[row])
        if lengths.max() >= limit and (endless := ~ended & (lengths >= limit) & (quota > 0)).any():
            for name, values in _so_far(envs, info, endless, {"r": returns, "l": lengths}).items():
                cut.setdefault(name, []).extend(values[endless].tolist())
            quota[endless] = 0
        if show and (over.any() or t % SHOWN_EVERY == 0):
            show(episodes - int(quota.sum()), (t + 1) * num_envs)
        if not quota.any():
            break
    statistics = {name: np.asarray(values) for name, values in rows.items()}
    if not cut:
        return EpisodeStatistics(statistics, "", ended_well, by_limit)
    scored = bool(statistics) and main_statistic(statistics) not in cut
    sentence = (
        f"an episode of the evaluation did not end within {limit:,} steps and was cut there"
        f"{', so it does not count' if scored else ''}; give the environment a limit of its own, as with "
        "--set env.max_episode_steps=N for gymnasium's"
    )
    if not scored:
        both = rows.keys() & cut.keys() if rows else cut
        statistics = {name: np.asarray([*rows.get(name, ()), *cut[name]]) for name in cut if name in both}
    return EpisodeStatistics(statistics, sentence, ended_well, by_limit)


def _so_far(envs: Any, info: dict[str, Any], cut: Array, counted: Arrays) -> Arrays:
    """The statistics [E] of episodes that do not end. cut: bool [E], which these are; counted: what to take where the
    environments have no recorder, whose returns are of rewards before they are scaled."""
    if recorder := recorder_of(envs):
        counted = {"r": recorder.episode_returns, "l": recorder.episode_lengths}
    return counted | envs.logged(info, cut) if isinstance(envs, RestartingEnvs) else counted


class _Resting(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Stands still, whatever is done: emulators and simulators take most of an evaluation's time."""

    def __init__(self, env: RestartingEnv) -> None:
        super().__init__(env)
        self._obs = env.last_obs

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return self._obs, {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        return self._obs, 0.0, False, False, {}


def _own_limit(config: RunConfig, envs: Any) -> int:
    """The steps after which the environments say that they end an episode; 0 where they say nothing."""
    inner = getattr(envs, "unwrapped", envs)
    of_one = next(iter(getattr(inner, "envs", ())), None)
    told = (getattr(getattr(one, "spec", None), "max_episode_steps", None) for one in (inner, of_one))
    limits = (one for one in (config.env.get("max_episode_steps"), *told) if isinstance(one, int) and one > 0)
    return next(limits, 0)


class Step(NamedTuple):
    """One step of all environments; arrays [E]."""

    action: Array
    reward: Array
    ended: Array
    truncated: Array
    lost: Array  # the environment failed: what it played, and its end, do not count
    info: dict[str, Any]


def steps_of(envs: Any, predict: Predict, obs: Arrays, explore: float, awake: Array) -> Iterator[Step]:
    """Play on from `obs`. awake: bool [E], the environments that still need predictions; the caller may clear entries
    between steps."""
    slot, explores = np.arange(len(awake)), np.full(len(awake), explore, np.float32)
    first, ended, none = np.ones_like(awake), np.zeros_like(awake), np.zeros_like(awake)
    action: Array = np.zeros(0)
    while True:
        if awake.all():
            action, _ = predict(obs, PredictContext(slot, first, explores))
        else:
            seen = {name: array[awake] for name, array in obs.items()}
            some, _ = predict(seen, PredictContext(slot[awake], first[awake], explores[awake]))
            action = action.copy()
            action[awake] = some
        obs, reward, terminated, truncated, info = envs.step(action)
        lost = envs.lost() if isinstance(envs, RestartingEnvs) else none
        # the step after an end is the reset, so its obs is the first; a vector that was made again ends no episode
        first, ended = ended | lost, np.logical_or(terminated, truncated)
        yield Step(action, reward, ended, truncated, lost, info)


def reported(info: dict[str, Any]) -> dict[str, Any]:
    """The statistics of the episodes that have just ended."""
    if "_episode" not in info:
        raise UserCodeError(
            "the environment ended an episode without info['episode'], which must hold its statistics; "
            "gymnasium.wrappers.vector.RecordEpisodeStatistics records them"
        )
    told: dict[str, Any] = info["episode"]  # next to each, gymnasium may have a mask
    return {name: values for name, values in told.items() if not (name[:1] == "_" and name[1:] in told)}


def load_player(
    config: RunConfig, checkpoint: Checkpoint, num_envs: int, seed: int, count: Count = lambda name, amount: None
) -> Player:
    """Make the environments of [env], behind the guard of training, and load a checkpoint's agent. Raises
    CheckpointError if it does not fit. num_envs: at most (`together`); count: as in RestartingEnvs."""
    from realm.learn.checkpoint import acting, load_bytes  # late: it imports torch, which may not be installed

    hyper = hyper_of(config)
    enter(config, "eval", checkpoint.path.absolute().parents[1])
    definition = load_definition(config.app.algo)
    with calling(config, "make_envs and spec"):
        envs: Any = definition.make_envs(together(config, num_envs), seed, hyper, config.env)
        spec = definition.spec(envs, hyper)
    if spec.schema != checkpoint.schema:
        raise CheckpointError(
            f"{checkpoint.path}: was trained with other shapes (schema {checkpoint.schema}, this configuration has "
            f"{spec.schema}); use the settings and the code of its run"
        )
    envs = guarded(config, envs, spec, seed, count)
    agent: Agent = make_agent(config, spec, "cpu", seed)
    lacking = load_bytes(agent.model, checkpoint.weights, acting(agent))
    return Player(envs, agent, predictor(agent, spec, checkpoint.env_steps), spec, tuple(lacking))


def predictor(agent: Agent, spec: Spec, env_steps: int, memory_size: int = 0) -> Predict:
    """The agent's `predict` outside training: its memory (`Spec.state`) is kept for each slot, and a schedule of
    exploration is where it was when these weights had been trained for `env_steps`.

    memory_size: as in PredictContext; a checkpoint does not tell it.
    """
    memory = PolicyState(spec.state, 0)

    def predict(obs: Arrays, context: PredictContext) -> tuple[Array, Arrays]:
        before = memory.before(context.slot, context.first)
        complete = context._replace(env_steps=env_steps, state=before, memory_size=memory_size)
        predicted = agent.predict(forwards(obs), complete)
        if len(predicted) == 3:
            memory.after(context.slot, predicted[2])
        return predicted[0], predicted[1]

    return predict
