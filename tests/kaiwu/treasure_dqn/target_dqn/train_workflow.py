from kaiwu_agent.agent.protocol.protocol import action_process, observation_process, sample_process  # isort: skip
import os
import time

from conf.usr_conf import usr_conf_check
from kaiwu_agent.utils.common_func import Frame
from target_dqn.feature.definition import reward_shaping

steps_per_report = 1000


def workflow(envs, agents, logger=None, monitor=None):
    env, agent = envs[0], agents[0]
    usr_conf = {"diy": {"start": 2, "end": 1, "treasure_random": 1, "treasure_num": 5, "max_step": 2000}}
    if not usr_conf_check(usr_conf, logger):
        return
    steps, rewards, begin = 0, 0.0, time.time()
    for episode in range(1_000_000):
        obs = env.reset(usr_conf)
        agent.load_model(id="latest")
        obs_data, last_score, frames = observation_process(obs), 0, []
        while True:
            act_data = agent.predict([obs_data])[0]
            frame_no, _obs, score, terminated, truncated, env_info = env.step(action_process(act_data))
            _obs_data = observation_process(_obs)
            reward = reward_shaping(obs, _obs, score.score - last_score, terminated)
            frames.append(
                Frame(
                    obs=obs_data.feature, _obs=_obs_data.feature, act=act_data.action, rew=reward, done=int(terminated)
                )
            )
            steps, rewards = steps + 1, rewards + reward
            if len(frames) >= 32 or terminated | truncated:
                agent.learn(sample_process(frames))
                frames.clear()
            if steps % steps_per_report == 0:
                speed = int(steps / (time.time() - begin))
                logger.info(f"episode {episode}, {speed} steps/s, mean reward {rewards / steps_per_report:.4f}")
                monitor.put_data({os.getpid(): {"reward": rewards / steps_per_report}})
                rewards = 0.0
            if terminated | truncated:
                break
            obs, obs_data, last_score = _obs, _obs_data, score.score
