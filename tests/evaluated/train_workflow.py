"""The counting user's workflow, which also reports what its context knows of the run."""

from tests.counting import train_workflow as counting


def workflow(envs, policy, context):
    for chunk in counting.workflow(envs, policy, context):
        context.monitor.put("so_far_env_steps", context.env_steps())
        if judged := context.evaluation():
            context.monitor.put("so_far_score", judged.score)
        yield chunk
