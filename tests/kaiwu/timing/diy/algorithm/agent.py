import time

import torch
from diy.feature.definition import ActData
from kaiwu_agent.agent.base_agent import (
    BaseAgent,
    exploit_wrapper,
    learn_wrapper,
    load_model_wrapper,
    predict_wrapper,
    save_model_wrapper,
)

torch.set_num_threads(1)


class Agent(BaseAgent):
    def __init__(self, agent_type="player", device=None, logger=None, monitor=None):
        self.model = torch.nn.Linear(64, 16)
        self.model.register_buffer("learnt_at", torch.zeros((), dtype=torch.float64))
        self.inside, self.arrived, self.seen = [], [], 0.0

    @predict_wrapper
    def predict(self, list_obs_data):
        began = time.perf_counter()
        learnt_at = float(self.model.learnt_at)
        if learnt_at > self.seen:
            self.seen = learnt_at
            self.arrived.append(time.monotonic() - learnt_at)
        answer = [ActData(action=0)]
        self.inside.append(time.perf_counter() - began)
        return answer

    @exploit_wrapper
    def exploit(self, list_obs_data):
        return [ActData(action=0)]

    @learn_wrapper
    def learn(self, list_sample_data):
        self.model.learnt_at.fill_(time.monotonic())

    @save_model_wrapper
    def save_model(self, path=None, id="1"):
        torch.save(self.model.state_dict(), f"{path}/model.ckpt-{id}.pkl")

    @load_model_wrapper
    def load_model(self, path=None, id="1"):
        self.model.load_state_dict(torch.load(f"{path}/model.ckpt-{id}.pkl"))
