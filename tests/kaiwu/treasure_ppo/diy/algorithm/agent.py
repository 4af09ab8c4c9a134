#!/usr/bin/env python3
import time

import numpy as np
import torch
from diy.config import Config
from diy.feature.definition import ActData
from diy.model.model import Model
from kaiwu_agent.agent.base_agent import (
    BaseAgent,
    exploit_wrapper,
    learn_wrapper,
    load_model_wrapper,
    predict_wrapper,
    save_model_wrapper,
)
from kaiwu_agent.utils.common_func import attached

torch.set_num_threads(1)
torch.set_num_interop_threads(1)


@attached
class Agent(BaseAgent):
    def __init__(self, agent_type="player", device=None, logger=None, monitor=None):
        super().__init__(agent_type, device, logger, monitor)
        self.logger = logger
        self.monitor = monitor
        self.model = Model(Config.FEATURES, Config.ACTIONS).to(device)
        if agent_type == "learner":
            self.optimizer = torch.optim.Adam(self.model.parameters(), lr=Config.LR, eps=1e-5)
        self.learn_steps = 0
        self.last_report = 0

    def _act(self, list_obs_data, greedy):
        feature = torch.from_numpy(np.stack([obs.feature for obs in list_obs_data]))
        with torch.no_grad():
            log_prob, value = self.model(feature)
        action = log_prob.argmax(-1) if greedy else torch.multinomial(log_prob.exp(), 1).squeeze(-1)
        chosen = log_prob.gather(1, action[:, None]).squeeze(-1)
        return [
            ActData(action=int(a), log_prob=float(p), value=float(v))
            for a, p, v in zip(action, chosen, value, strict=True)
        ]

    @predict_wrapper
    def predict(self, list_obs_data):
        return self._act(list_obs_data, False)

    @exploit_wrapper
    def exploit(self, list_obs_data):
        return self._act(list_obs_data, True)

    @learn_wrapper
    def learn(self, list_sample_data):
        feature = torch.as_tensor(np.concatenate([s.feature for s in list_sample_data]))
        action = torch.as_tensor(np.concatenate([s.action for s in list_sample_data])).long()
        old = torch.as_tensor(np.concatenate([s.log_prob for s in list_sample_data]), dtype=torch.float32)
        advantage = torch.as_tensor(np.concatenate([s.advantage for s in list_sample_data]), dtype=torch.float32)
        ret = torch.as_tensor(np.concatenate([s.ret for s in list_sample_data]), dtype=torch.float32)
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        count = len(action)
        for _ in range(Config.EPOCHS):
            order = torch.randperm(count)
            for start in range(0, count, Config.MINIBATCH):
                rows = order[start : start + Config.MINIBATCH]
                log_prob, value = self.model(feature[rows])
                ratio = (log_prob.gather(1, action[rows][:, None]).squeeze(-1) - old[rows]).exp()
                gain = torch.min(
                    ratio * advantage[rows], ratio.clamp(1 - Config.CLIP, 1 + Config.CLIP) * advantage[rows]
                )
                entropy = -(log_prob.exp() * log_prob).sum(-1).mean()
                value_loss = (value - ret[rows]).pow(2).mean()
                loss = -gain.mean() + 0.5 * value_loss - Config.ENTROPY * entropy
                self.optimizer.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
                self.optimizer.step()
        self.learn_steps += 1
        now = time.time()
        if now - self.last_report > 5 and self.monitor:
            self.monitor.put_data({0: {"value_loss": value_loss.detach(), "entropy": entropy.item()}})
            self.logger.info(f"learnt {self.learn_steps} times, entropy {entropy.item():.3f}")
            self.last_report = now

    @save_model_wrapper
    def save_model(self, path=None, id="1"):
        torch.save(self.model.state_dict(), f"{path}/model.ckpt-{str(id)}.pkl")

    @load_model_wrapper
    def load_model(self, path=None, id="1"):
        file = f"{path}/model.ckpt-{str(id)}.pkl"
        self.model.load_state_dict(torch.load(file, map_location=self.device))
        self.logger.info(f"load model {file} successfully")
