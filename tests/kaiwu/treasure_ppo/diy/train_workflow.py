#!/usr/bin/env python3
import os
import time

import numpy as np
from conf.usr_conf import usr_conf_check
from diy.config import Config
from diy.feature.definition import SampleData, action_process, observation_process, reward_shaping
from kaiwu_agent.utils.common_func import attached


@attached
def workflow(envs, agents, logger=None, monitor=None):
    try:
        env, agent = envs[0], agents[0]
        usr_conf = {"diy": {"start": 2, "end": 1, "treasure_random": 1, "treasure_num": 5, "max_step": 2000}}
        if not usr_conf_check(usr_conf, logger):
            logger.error("usr_conf_check return False")
            return
        episodes, last_save, last_report, samples = 0, time.time(), 0, []
        while True:
            obs = env.reset(usr_conf=usr_conf)
            if obs is None:
                continue
            agent.load_model(id="latest")
            obs_data = observation_process(obs)
            last_score, done, rows, total = 0, False, [], 0
            while not done:
                act_data = agent.predict(list_obs_data=[obs_data])[0]
                frame_no, next_obs, score, terminated, truncated, env_info = env.step(action_process(act_data))
                reward = reward_shaping(obs, next_obs, score.score, last_score, terminated)
                done = terminated or truncated
                total += reward
                rows.append((obs_data.feature, act_data.action, act_data.log_prob, act_data.value, reward, terminated))
                obs, last_score = next_obs, score.score
                obs_data = observation_process(obs, env_info)
                if len(rows) == Config.STEPS or (done and len(rows) > 8):
                    bootstrap = 0 if terminated else agent.predict([obs_data])[0].value
                    samples.append(make_sample(rows, bootstrap))
                    rows = []
                if len(samples) >= Config.TRAJECTORIES:
                    agent.learn(samples)
                    samples = []
            episodes += 1
            now = time.time()
            if now - last_report > 10:
                logger.info(f"episode {episodes}: {env_info.game_info.total_score}, reward {total:.2f}")
                monitor.put_data({os.getpid(): {"reward": total, "score": score.total_score}})
                last_report = now
            if now - last_save > 120:
                agent.save_model()
                last_save = now
    except Exception as e:
        raise RuntimeError("workflow error") from e


def make_sample(rows, bootstrap):
    """A trajectory with its advantages (GAE); a short one is filled up with copies of its rows."""
    feature, action, log_prob, value, reward, terminated = (np.array(column) for column in zip(*rows, strict=True))
    advantage, last = np.zeros(len(rows), np.float32), 0.0
    for t in reversed(range(len(rows))):
        after = bootstrap if t == len(rows) - 1 else value[t + 1]
        delta = reward[t] + Config.GAMMA * after * (1 - terminated[t]) - value[t]
        last = delta + Config.GAMMA * Config.LAMBDA * (1 - terminated[t]) * last
        advantage[t] = last
    index = np.resize(np.arange(len(rows)), Config.STEPS)
    return SampleData(
        feature=feature[index].astype(np.float32),
        action=action[index],
        log_prob=log_prob[index],
        advantage=advantage[index],
        ret=(advantage + value)[index],
    )
