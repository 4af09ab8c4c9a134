#!/usr/bin/env python3
import numpy as np
from diy.config import Config
from kaiwu_agent.back_to_the_realm.diy.feature_process import bump, read_relative_position
from kaiwu_agent.utils.common_func import attached, create_cls

SampleData = create_cls("SampleData", feature=None, action=None, log_prob=None, advantage=None, ret=None)
ObsData = create_cls("ObsData", feature=None, legal_act=None)
ActData = create_cls("ActData", action=None, log_prob=None, value=None)


@attached
def observation_process(raw_obs, env_info=None):
    feature = raw_obs.feature
    blocks = [0] * 32
    blocks[feature.grid_pos.x // 8] = 1
    blocks[16 + feature.grid_pos.z // 8] = 1
    end = read_relative_position(feature.end_pos)
    near = sorted((p for p in feature.treasure_pos if p.direction != 0), key=lambda p: p.grid_distance)[:3]
    treasures = []
    for position in near:
        treasures += read_relative_position(position)
    treasures += [0] * (27 - len(treasures))
    low, high = 25 - Config.WINDOW, 26 + Config.WINDOW
    obstacles = np.array(feature.obstacle_map).reshape(51, 51)[low:high, low:high].flatten()
    memory = np.array(feature.memory_map).reshape(51, 51)[low:high, low:high].flatten()
    vector = np.concatenate([blocks, end, treasures, [raw_obs.legal_act[1]], obstacles, memory])
    return ObsData(feature=vector.astype(np.float32), legal_act=list(raw_obs.legal_act))


@attached
def action_process(act_data):
    return int(act_data.action)


@attached
def sample_process(list_game_data):
    return [SampleData(**frame.__dict__) for frame in list_game_data]


def reward_shaping(last_obs, obs, score, last_score, terminated):
    reward = -0.01
    reward += 20 * (last_obs.feature.end_pos.grid_distance - obs.feature.end_pos.grid_distance)
    reward += 0.01 * (score - last_score)
    near = [p.grid_distance for p in obs.feature.treasure_pos if p.direction != 0]
    last_near = [p.grid_distance for p in last_obs.feature.treasure_pos if p.direction != 0]
    if near and last_near and len(near) == len(last_near):
        reward += 4 * (min(last_near) - min(near))
    position, last = obs.feature.norm_pos, last_obs.feature.norm_pos
    if bump(position.x * 64000, position.z * 64000, last.x * 64000, last.z * 64000):
        reward -= 0.05
    return reward + (2.0 if terminated else 0.0)


@attached
def SampleData2NumpyData(g_data):
    return np.hstack(
        (
            np.array(g_data.feature, dtype=np.float32).flatten(),
            np.array(g_data.action, dtype=np.float32),
            np.array(g_data.log_prob, dtype=np.float32),
            np.array(g_data.advantage, dtype=np.float32),
            np.array(g_data.ret, dtype=np.float32),
        )
    )


@attached
def NumpyData2SampleData(s_data):
    steps, split = Config.STEPS, Config.STEPS * Config.FEATURES
    return SampleData(
        feature=s_data[:split].reshape(steps, Config.FEATURES),
        action=s_data[split : split + steps],
        log_prob=s_data[split + steps : split + 2 * steps],
        advantage=s_data[split + 2 * steps : split + 3 * steps],
        ret=s_data[split + 3 * steps :],
    )
