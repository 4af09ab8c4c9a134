"""Plays a trained model and says how well it does: the same workflow pieces, no training.

Called by `realm eval`, and in part by `realm record`. Works for every user's environment that reports episodes in
`info["episode"]`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from realm.checkpoint import Checkpoint, CheckpointError, load_bytes
from realm.config import RunConfig
from realm.contract import Agent, Array, PredictContext
from realm.user import calling, load_agent, load_definition, load_hyper


def evaluate(
    config: RunConfig,
    checkpoint: Checkpoint,
    episodes: int,
    explore: float,
    num_envs: int,
    seed: int,
    show: Callable[[int], None],
) -> dict[str, Array]:
    """Play `episodes` episodes with the model of `checkpoint`; statistic name -> [episodes].

    explore: 0 takes the best action, 1 draws from the policy. Every environment plays the same number of episodes (to
    within one), so that short episodes do not count more often than long ones. show: gets the number of finished ones.
    """
    num_envs = min(num_envs, episodes)
    envs, agent = load_player(config, checkpoint, config.env, num_envs, seed)
    quota = np.full(num_envs, episodes // num_envs)
    quota[: episodes % num_envs] += 1
    rows: dict[str, list[float]] = {}
    finished = 0
    slot, explores = np.arange(num_envs), np.full(num_envs, explore, np.float32)
    first = np.ones(num_envs, np.bool_)
    with calling(config, "reset"):
        obs, _ = envs.reset(seed=seed)
    while finished < episodes:
        action, _ = agent.predict(obs, PredictContext(slot, first, explores))
        obs, _, terminated, truncated, info = envs.step(action)
        ended: Array = terminated | truncated
        if (ended & (quota > 0)).any():
            if "_episode" not in info:
                raise CheckpointError(f"{config.app.algo}: the environment ended an episode without info['episode']")
            taken = np.flatnonzero(info["_episode"] & (quota > 0))
            for name, values in info["episode"].items():
                rows.setdefault(name, []).extend(np.asarray(values)[taken].astype(float).tolist())
            quota[taken] -= 1
            finished += len(taken)
            show(finished)
        first = ended
    envs.close()
    return {name: np.asarray(values) for name, values in rows.items()}


def load_player(
    config: RunConfig, checkpoint: Checkpoint, options: dict[str, Any], num_envs: int, seed: int
) -> tuple[Any, Agent]:
    """Environments with `options` and the agent of a checkpoint. Raises CheckpointError if it does not fit."""
    app = config.app
    hyper = load_hyper(app.algo, config.hyper, config.places)
    definition = load_definition(app.algo)
    with calling(replace(config, env=options), "make_envs and spec"):
        envs = definition.make_envs(num_envs, seed, hyper, options)
        spec = definition.spec(envs, hyper)
    if spec.schema != checkpoint.schema:
        raise CheckpointError(
            f"{checkpoint.path}: was trained with other shapes (schema {checkpoint.schema}, this configuration has "
            f"{spec.schema}); use the configuration of its run"
        )
    agent: Agent = load_agent(app.algo)(spec, hyper, "cpu", seed)
    load_bytes(agent.model, checkpoint.weights)
    return envs, agent


def table(statistics: dict[str, Array]) -> list[tuple[str, float, float, float, float]]:
    """(name, mean, standard error, least, greatest) of every statistic."""
    result: list[tuple[str, float, float, float, float]] = []
    for name, values in statistics.items():
        error: Any = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else 0.0
        result.append((name, float(values.mean()), float(error), float(values.min()), float(values.max())))
    return result
