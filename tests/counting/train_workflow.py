"""The workflow that everybody starts with, which adds a number to each step."""

from realm.chunk import ChunkBuilder
from tests.counting.tally import note


def workflow(envs, policy, context):
    obs, _ = envs.reset()
    chunks = ChunkBuilder(context.spec, obs, context.worker, context.incarnation)
    while True:
        prediction = policy.predict(obs, chunks.first)
        context.monitor.put("told_env_steps", prediction.env_steps)
        context.monitor.put("told_size", prediction.memory_size)
        before = obs["count"]
        obs, reward, terminated, truncated, info = envs.step(prediction.action)
        context.monitor.episodes(info)
        chunks.step(prediction, reward, terminated, truncated, obs, added={"raw": before[:, 0] * 3})
        if chunks.full:
            played = chunks.take()
            note(context.config.tally, "played", played)
            yield played
