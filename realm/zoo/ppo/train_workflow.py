"""How experience is made: step the environments, and yield their chunks. The loop that all of the zoo share."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from realm.chunk import ChunkBuilder
from realm.contract import Chunk, Policy, WorkflowContext
from realm.zoo.gym import offers


def workflow(envs: Any, policy: Policy, context: WorkflowContext) -> Iterator[Chunk]:
    tells = offers(envs, "env_steps")  # to an environment with a curriculum
    if tells:
        envs.unwrapped.set_attr("env_steps", context.env_steps())
    obs, _ = envs.reset(seed=context.seed)
    chunks = ChunkBuilder(context.spec, obs, context.worker, context.incarnation)
    gamma, added = context.config.gamma, {}
    while True:
        prediction = policy.predict(obs, chunks.first)
        obs, reward, terminated, truncated, info = envs.step(prediction.action)
        context.monitor.episodes(info)
        if "discount" in context.spec.step:  # steps differ in duration
            added["discount"] = gamma ** np.array(envs.unwrapped.get_attr("duration"), np.float32)
        if "credit" in context.spec.step:
            added["credit"] = np.array(envs.unwrapped.get_attr("credit"), np.float32)
        chunks.step(prediction, reward, terminated, truncated, obs, added)
        if chunks.full:
            yield chunks.take()
            if tells:
                envs.unwrapped.set_attr("env_steps", context.env_steps())
