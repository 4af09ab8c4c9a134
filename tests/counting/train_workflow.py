"""How experience is made: the loop that steps the environments. Read this first.

The framework calls `workflow` in every worker and sends what it yields to the learner; this file does not know how.
`envs` comes from `definition.make_envs`; `policy.predict` is a call in this process or a question to the shared actor.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gymnasium.vector import VectorEnv

from realm.chunk import ChunkBuilder
from realm.contract import Chunk, Policy, WorkflowContext


def workflow(envs: VectorEnv[Any, Any, Any], policy: Policy, context: WorkflowContext) -> Iterator[Chunk]:
    """Play for ever; every T steps, yield the chunks of all E environments (each array with a leading E)."""
    obs, _ = envs.reset()
    chunks = ChunkBuilder(context.spec, obs, context.worker, context.incarnation)
    while True:
        prediction = policy.predict(obs, chunks.first)
        # an environment whose episode is over resets itself in the next step; `chunks` marks that row as not valid
        obs, reward, terminated, truncated, info = envs.step(prediction.action)
        context.monitor.episodes(info)
        chunks.step(prediction, reward, terminated, truncated, obs)
        if chunks.full:
            yield chunks.take()  # before the next predict, so that weights may change in between
