import numpy as np
from kaiwu_agent.back_to_the_realm.target_dqn.feature_process import read_relative_position
from kaiwu_agent.utils.common_func import attached, create_cls
from target_dqn.config import Config

ObsData = create_cls("ObsData", feature=None)
ActData = create_cls("ActData", action=None)
SampleData = create_cls("SampleData", obs=None, _obs=None, act=None, rew=None, done=None)


def crop(field):
    return np.array(field).reshape(51, 51)[22:29, 22:29].flatten().tolist()


@attached
def observation_process(raw_obs):
    f = raw_obs.feature
    pos = [0] * 32
    pos[int(f.grid_pos.x) // 8] = 1
    pos[16 + int(f.grid_pos.z) // 8] = 1
    near = [p for p in f.treasure_pos if p.direction != 0]
    near.sort(key=lambda p: p.grid_distance)
    treasures = sum([read_relative_position(p) for p in near[:3]], [])
    treasures = treasures + [0] * (27 - len(treasures))
    feature = pos + read_relative_position(f.end_pos) + treasures + crop(f.obstacle_map) + crop(f.memory_map)
    return ObsData(feature=feature)


@attached
def action_process(act_data):
    return act_data.action


@attached
def sample_process(list_game_data):
    return [SampleData(**i.__dict__) for i in list_game_data]


def reward_shaping(obs, _obs, score, terminated):
    reward = 10 * (obs.feature.end_pos.grid_distance - _obs.feature.end_pos.grid_distance) - 0.02
    return reward + 0.005 * score + (1.0 if terminated else 0.0)


@attached
def SampleData2NumpyData(g_data):
    return np.hstack(
        (
            np.array(g_data.obs, dtype=np.float32),
            np.array(g_data._obs, dtype=np.float32),
            np.array([g_data.act, g_data.rew, g_data.done], dtype=np.float32),
        )
    )


@attached
def NumpyData2SampleData(s_data):
    n = Config.DIM_OF_OBSERVATION
    return SampleData(obs=s_data[:n], _obs=s_data[n : 2 * n], act=s_data[-3], rew=s_data[-2], done=s_data[-1])
