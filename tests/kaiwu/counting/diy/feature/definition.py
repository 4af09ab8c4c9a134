import numpy as np
from diy.config import Config
from kaiwu_agent.utils.common_func import attached, create_cls

ObsData = create_cls("ObsData", feature=None, count=None, mask=None)
ActData = create_cls("ActData", action=None, vector=None, learnt=None)
SampleData = create_cls("SampleData", origin=None, values=None, small=None, scalar=None)


def values_of(pid, number):
    """The 50 numbers of a sample, different in each; float64, of which float32 keeps a part."""
    return np.random.default_rng([pid, number]).normal(size=50) * 1000


@attached
def observation_process(raw_obs, env_info=None):
    feature = [raw_obs.feature.norm_pos.x, raw_obs.feature.norm_pos.z]
    return ObsData(feature=feature, count=env_info.frame_state.frame_no, mask=np.array(raw_obs.legal_act, dtype=np.int8))


@attached
def action_process(act_data):
    return int(act_data.action)


@attached
def sample_process(list_game_data):
    return [SampleData(**frame.__dict__) for frame in list_game_data]


@attached
def SampleData2NumpyData(sample):
    assert len(sample.origin) == 3, "it is asked once for each sample"
    return np.hstack([sample.origin, sample.values, sample.small, sample.scalar]).astype(np.float32)


@attached
def NumpyData2SampleData(vector):
    assert len(vector) == Config.SAMPLE_DIM
    return SampleData(origin=vector[:3], values=vector[3:53], small=vector[53:56], scalar=vector[56])
