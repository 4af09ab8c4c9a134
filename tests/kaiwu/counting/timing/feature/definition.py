import time

import numpy as np
from timing.config import Config
from kaiwu_agent.utils.common_func import attached, create_cls

ObsData = create_cls("ObsData", feature=None)
ActData = create_cls("ActData", action=None)
SampleData = create_cls("SampleData", rows=None)
encoding = []  # seconds


@attached
def observation_process(raw_obs):
    return ObsData(feature=np.concatenate([raw_obs.feature.obstacle_map] * 4)[: Config.FEATURES].astype(np.float32))


@attached
def action_process(act_data):
    return act_data.action


@attached
def sample_process(list_game_data):
    return [SampleData(**frame.__dict__) for frame in list_game_data]


@attached
def SampleData2NumpyData(sample):
    began = time.perf_counter()
    vector = np.concatenate([row for row in sample.rows])
    encoding.append(time.perf_counter() - began)
    return vector


@attached
def NumpyData2SampleData(vector):
    return SampleData(rows=vector.reshape(Config.STEPS, Config.FEATURES))
