"""Counts and checks what reaches it."""

import json
import os
from collections import deque
from pathlib import Path

import numpy as np
import torch
from diy.feature.definition import ActData, values_of
from kaiwu_agent.agent.base_agent import (
    BaseAgent,
    exploit_wrapper,
    learn_wrapper,
    load_model_wrapper,
    predict_wrapper,
    save_model_wrapper,
)
from kaiwudrl.common.config.config_control import CONFIG

torch.set_num_threads(1)
torch.set_num_interop_threads(1)
BATCH = CONFIG.train_batch_size


class Agent(BaseAgent):
    def __init__(self, agent_type="player", device=None, logger=None, monitor=None):
        self.agent_type, self.logger, self.monitor = agent_type, logger, monitor
        self.model = torch.nn.Linear(2, 16)
        self.model.register_buffer("learnt", torch.zeros(()))
        self.lr = 0.5
        if agent_type == "learner":
            self.optim = torch.optim.Adam(self.model.parameters())
        self.kept = deque(maxlen=200)
        self.learn_calls = 0
        self.predictions = 0
        self.given = None  # in one process: the list that the workflow gives

    @predict_wrapper
    def predict(self, list_obs_data):
        assert self.agent_type != "learner" or CONFIG.wrapper_type == "local"
        self.predictions += 1
        obs = list_obs_data[0]
        assert isinstance(obs.feature, list) and isinstance(obs.feature[0], float)
        assert type(obs.count) is int and obs.mask.dtype == np.int8 and obs.mask.shape == (2,)
        learnt = int(self.model.learnt)
        vectors = [np.array(obs.feature, dtype=np.float32) for obs in list_obs_data]
        counts = [obs.count for obs in list_obs_data]
        return [ActData(action=n % 8, vector=v, learnt=learnt) for n, v in zip(counts, vectors, strict=True)]

    @exploit_wrapper
    def exploit(self, list_obs_data):
        return self.predict(list_obs_data)

    @learn_wrapper
    def learn(self, list_sample_data):
        self.learn_calls += 1
        if CONFIG.wrapper_type == "local":
            assert list_sample_data is self.given
            assert all(isinstance(sample.origin, list) for sample in list_sample_data)
        else:
            assert len(list_sample_data) == BATCH
            self.check(list_sample_data)
        loss = self.model(torch.zeros(1, 2)).sum()
        self.optim.zero_grad()
        loss.backward()
        self.optim.step()
        self.model.learnt.fill_(self.learn_calls)
        assert self.optim.state[self.model.bias]["step"] == self.learn_calls, "the optimizer was lost"
        Path(CONFIG.log_dir, "learnt.json").write_text(
            json.dumps({"calls": self.learn_calls, "type": self.agent_type, "pid": os.getpid()})
        )
        if self.learn_calls % 7 == 0:
            self.save_model(path="/nowhere", id="best_model")

    def check(self, samples):
        for sample in samples:
            assert sample.origin.dtype == sample.values.dtype == np.float32
            assert isinstance(sample.scalar, np.float32)
            assert sample.values.shape == (50,) and sample.values.flags.writeable
            pid, number, scalar = (int(value) for value in (*sample.origin[:2], sample.scalar))
            assert (sample.values == values_of(pid, number).astype(np.float32)).all()
            assert sample.small.tolist() == [1, 2, 3] and scalar == number % 5
        for sample, before in self.kept:
            assert (sample.values == before).all(), "a sample has changed since"
        for sample in samples[:2]:
            sample.values[0] = -1  # it is the agent's own
            self.kept.append((sample, sample.values.copy()))

    @save_model_wrapper
    def save_model(self, path=None, id="1"):
        assert Path(path).is_dir()
        torch.save(self.model.state_dict(), f"{path}/model.ckpt-{id}.pkl")

    @load_model_wrapper
    def load_model(self, path=None, id="1"):
        self.model.load_state_dict(torch.load(f"{path}/model.ckpt-{id}.pkl"))
