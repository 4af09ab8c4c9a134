from kaiwu_agent.agent.protocol.protocol import SampleData, action_process, observation_process  # isort: skip
import os
import time
from pathlib import Path

from diy.config import Config
from diy.feature.definition import values_of
from kaiwudrl.common.config.config_control import CONFIG

total = 0  # a global of one workflow


def workflow(envs, agents, logger=None, monitor=None):
    global total
    env, agent = envs[0], agents[0]
    assert agent.lr == 0.5 and isinstance(agent.kept, object)
    pid = os.getpid() % 100_000
    obs = env.reset(usr_conf={"diy": {"start": 2, "end": 1, "treasure_random": 1, "treasure_num": 5, "max_step": 300}})
    _, obs, score, terminated, truncated, env_info = env.step(0)
    if CONFIG.wrapper_type != "local":
        assert agent.agent_type != "learner"
    for _ in range(Config.ROUNDS):
        agent.load_model(id="latest")
        samples = []
        for _ in range(5):
            act = agent.predict([observation_process(obs, env_info)])[0]
            assert act.vector.dtype == "float32" and act.vector.shape == (2,) and type(act.action) is int
            _, obs, score, terminated, truncated, env_info = env.step(action_process(act))
            if terminated | truncated:
                obs = env.reset(usr_conf={"diy": {"start": 2, "end": 1, "treasure_random": 1, "max_step": 300}})
            samples.append(
                SampleData(origin=[pid, total, 0], values=values_of(pid, total), small=[1, 2, 3], scalar=total % 5)
            )
            total += 1
        agent.given = samples
        assert agent.learn(samples) is None
        samples.clear()  # the caller may reuse its list at once
    while not act.learnt:  # a workflow as short as this may be over before the first update has arrived
        time.sleep(0.05)
        act = agent.predict([observation_process(obs, env_info)])[0]
    choose_models(agent, observation_process(obs, env_info), act.learnt)
    agent.save_model()
    monitor.put_data({os.getpid(): {"total": total}})
    Path(CONFIG.log_dir, f"gave-{os.getpid()}").write_text(str(total))


def choose_models(agent, obs_data, newest):
    """A numbered model stays until another one is asked for; the newest comes back, not an older one."""
    agent.load_model(id=0)
    assert agent.predict([obs_data])[0].learnt == 0
    time.sleep(1)  # the learner goes on
    assert agent.predict([obs_data])[0].learnt == 0
    agent.load_model(path="x", id="random")
    assert agent.predict([obs_data])[0].learnt % 10 == 0
    agent.load_model(id="latest")
    assert agent.exploit([obs_data])[0].learnt >= newest > 0
