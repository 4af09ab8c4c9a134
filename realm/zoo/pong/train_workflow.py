"""How experience is made: step the environments, and yield their chunks. What a reward or an end is to training is
decided here, so evaluations play whole games for their score."""

from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np

from realm.chunk import ChunkBuilder
from realm.contract import Array, Chunk, Policy, WorkflowContext
from realm.errors import ConfigError, to_install
from realm.zoo.pong.config import Config

LEAST_ACTIONS, MOST_ACTIONS = 100, 500  # that are compressed together


def workflow(envs: Any, policy: Policy, context: WorkflowContext) -> Iterator[Chunk]:
    config: Config = context.config
    if config.episode and envs.num_envs != 1:
        raise ConfigError(f"pong.episode needs aisrv_connect_to_kaiwu_env_count = 1, and it is {envs.num_envs}")
    obs, _ = envs.reset(seed=context.seed)
    chunks = ChunkBuilder(context.spec, obs, context.worker, context.incarnation)
    habits = [deque[int](maxlen=MOST_ACTIONS) for _ in range(envs.num_envs)]
    played = False  # whether the chunk has a step that is no reset
    resets = np.zeros(envs.num_envs, np.bool_)
    while True:
        prediction = policy.predict(obs, chunks.first)
        obs, score, terminated, truncated, info = envs.step(prediction.action)
        context.monitor.episodes(info)
        point = (score != 0) & config.points
        reward = score + config.step_reward
        if config.compressible:
            reward = reward + config.compressible * packed(habits, prediction.action)
        discount = np.where(point, 0.0, config.gamma_start).astype(np.float32)
        chunks.step(prediction, reward, terminated, truncated, obs, {"discount": discount})
        ended = terminated | truncated
        if config.episode and ((point & ~ended).any() or (played and resets.any())):
            while not chunks.full:  # no step of another episode is in its batch
                chunks.step_reset(prediction, obs)
            chunks.first[:] = resets  # after a point the game goes on, and so does a memory
        played, resets = not chunks.full and bool(played or not resets.all()), ended
        if chunks.full:
            yield chunks.take()


def packed(habits: list[deque[int]], action: Array) -> Array:
    """The share of bytes that LZ4 saves on the last actions of each environment, none of random ones. f32 [E]"""
    try:
        from lz4.block import compress
    except ModuleNotFoundError as error:
        raise ConfigError(f"pong.compressible needs lz4: {to_install('lz4')}") from error
    for habit, one in zip(habits, action.tolist(), strict=True):
        habit.append(one)
    sizes = [
        len(compress(bytes(one), store_size=False)) / len(one) if len(one) >= LEAST_ACTIONS else 1 for one in habits
    ]
    return 1 - np.array(sizes, np.float32)
