"""How experience is made: step the environments, and yield their chunks."""

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
        chunks.step(prediction, reward, terminated, truncated, obs)
        if chunks.full:
            yield chunks.take()
