"""The counting agent, whose weights hold the number of updates, which is its best action."""

import time

import numpy as np
import torch

from tests.counting.algorithm.agent import Agent as CountingAgent


class Agent(CountingAgent):
    def __init__(self, spec, config, device, seed):
        super().__init__(spec, config, device, seed)
        torch.nn.init.zeros_(self.model[0].bias)

    def predict(self, obs, context):
        action, extra = super().predict(obs, context)
        return np.where(context.explore > 0, action, int(self.model[0].bias.item())), extra

    def learn(self, batch, info):
        self.check(batch, info)
        time.sleep(self.config.learn_s)
        torch.nn.init.constant_(self.model[0].bias, info.version.update + 1)
        return {"checked_rows": float(batch.valid.size)}, None
