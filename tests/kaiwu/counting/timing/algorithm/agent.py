"""Measures how long it waits; it saves and loads as the counting one."""

import time

import torch
from diy.algorithm.agent import Agent as Counting
from kaiwu_agent.agent.base_agent import learn_wrapper, predict_wrapper
from timing.feature.definition import ActData


class Agent(Counting):
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

    @learn_wrapper
    def learn(self, list_sample_data):
        self.model.learnt_at.fill_(time.monotonic())
