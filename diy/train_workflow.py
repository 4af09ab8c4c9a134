"""The rollout loop, which steps the environments. Read this first.

The framework calls `workflow` in every worker and sends the chunks that it yields to the learner. `envs` comes from
`definition.make_envs`; `policy.predict` is a call in this process or a request to the shared actor.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gymnasium.vector import VectorEnv

from realm.chunk import ChunkBuilder
from realm.contract import Chunk, Policy, WorkflowContext


def workflow(envs: VectorEnv[Any, Any, Any], policy: Policy, context: WorkflowContext) -> Iterator[Chunk]:
    """Collect rollouts for ever; every T steps yield the chunks of all E environments (arrays with a leading E)."""
    obs, _ = envs.reset()
    chunks = ChunkBuilder(context.spec, obs, context.worker, context.incarnation)
    while True:
        prediction = policy.predict(obs, chunks.first)
        # an environment resets itself in the step after an episode's end; `chunks` marks that row as not valid
        obs, reward, terminated, truncated, info = envs.step(prediction.action)
        context.monitor.episodes(info)
        chunks.step(prediction, reward, terminated, truncated, obs)
        if chunks.full:
            yield chunks.take()  # before the next predict, so that new weights can arrive in between
