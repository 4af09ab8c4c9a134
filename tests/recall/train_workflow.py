"""The loop that everybody starts with; what is learned from are scaled rewards."""

from collections.abc import Iterator
from typing import Any

from realm.chunk import ChunkBuilder
from realm.contract import Chunk, Policy, WorkflowContext


def workflow(envs: Any, policy: Policy, context: WorkflowContext) -> Iterator[Chunk]:
    obs, _ = envs.reset(seed=context.seed)
    chunks = ChunkBuilder(context.spec, obs, context.worker, context.incarnation)
    while True:
        prediction = policy.predict(obs, chunks.first)
        obs, reward, terminated, truncated, info = envs.step(prediction.action)
        context.monitor.episodes(info)
        chunks.step(prediction, reward * context.config.reward_scale, terminated, truncated, obs)
        if chunks.full:
            yield chunks.take()
