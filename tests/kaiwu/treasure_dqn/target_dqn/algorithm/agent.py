import copy
import random
from collections import deque

import numpy as np
import torch
from kaiwu_agent.agent.base_agent import (
    BaseAgent,
    exploit_wrapper,
    learn_wrapper,
    load_model_wrapper,
    predict_wrapper,
    save_model_wrapper,
)
from target_dqn.config import Config
from target_dqn.feature.definition import ActData

torch.set_num_threads(1)
torch.set_num_interop_threads(1)


class Algorithm:
    def __init__(self, device):
        n, m = Config.DIM_OF_OBSERVATION, Config.DIM_OF_ACTION
        self.device = device
        self.q = torch.nn.Sequential(
            torch.nn.Linear(n, 128), torch.nn.ReLU(), torch.nn.Linear(128, 128), torch.nn.ReLU(), torch.nn.Linear(128, m)
        ).to(device)
        self.target_q = copy.deepcopy(self.q)
        self.optim = torch.optim.Adam(self.q.parameters(), lr=Config.LR)
        self.memory = deque(maxlen=Config.MEMORY)
        self.steps = 0

    def train(self, new_samples):
        # a memory of our own: in one process new samples come in the order in which they were played
        self.memory.extend(new_samples)
        samples = random.sample(self.memory, min(Config.BATCH, len(self.memory)))
        obs = torch.tensor(np.array([s.obs for s in samples]), dtype=torch.float32, device=self.device)
        next_obs = torch.tensor(np.array([s._obs for s in samples]), dtype=torch.float32, device=self.device)
        act = torch.LongTensor(np.array([int(s.act) for s in samples])).view(-1, 1)
        rew = torch.tensor(np.array([s.rew for s in samples]), dtype=torch.float32)
        done = torch.tensor(np.array([s.done for s in samples]), dtype=torch.float32)
        with torch.no_grad():
            best = self.q(next_obs).argmax(1, keepdim=True)
            target = rew + Config.GAMMA * (1 - done) * self.target_q(next_obs).gather(1, best).view(-1)
        loss = torch.nn.functional.smooth_l1_loss(self.q(obs).gather(1, act).view(-1), target)
        self.optim.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.q.parameters(), 5.0)
        self.optim.step()
        self.steps += 1
        if self.steps % Config.TARGET_UPDATE_FREQ == 0:
            self.target_q.load_state_dict(self.q.state_dict())
        return loss.item()


class Agent(BaseAgent):
    def __init__(self, agent_type="player", device=None, logger=None, monitor=None):
        # like many, this one does not call its base class
        self.device = device
        self.logger = logger
        self.algorithm = Algorithm(device)
        self.predict_count = 0

    @predict_wrapper
    def predict(self, list_obs_data):
        self.predict_count += 1
        rest = max(0.0, 1 - self.predict_count / Config.EPSILON_STEPS)
        if random.random() < Config.EPSILON + (Config.EPSILON_START - Config.EPSILON) * rest:
            return [ActData(action=random.randrange(Config.DIM_OF_ACTION))]
        return self._greedy(list_obs_data)

    @exploit_wrapper
    def exploit(self, list_obs_data):
        return self._greedy(list_obs_data)

    def _greedy(self, list_obs_data):
        with torch.no_grad():
            q = self.algorithm.q(torch.tensor([list_obs_data[0].feature], dtype=torch.float32))
        return [ActData(action=int(q.argmax()))]

    @learn_wrapper
    def learn(self, list_sample_data):
        loss = self.algorithm.train(list_sample_data)
        return {"value_loss": loss}

    @save_model_wrapper
    def save_model(self, path=None, id="1"):
        cpu = {k: v.clone().cpu() for k, v in self.algorithm.q.state_dict().items()}
        torch.save(cpu, f"{path}/model.ckpt-{id}.pkl")

    @load_model_wrapper
    def load_model(self, path=None, id="1"):
        self.algorithm.q.load_state_dict(torch.load(f"{path}/model.ckpt-{id}.pkl", map_location=self.device))
        self.algorithm.target_q.load_state_dict(self.algorithm.q.state_dict())
