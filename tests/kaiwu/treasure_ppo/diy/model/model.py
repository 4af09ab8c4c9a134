import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, features, actions):
        super().__init__()
        self.actor = self._mlp(features, actions)
        self.critic = self._mlp(features, 1)

    def _mlp(self, inputs, outputs):
        layers = [nn.Linear(inputs, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, outputs)]
        for layer in layers[::2]:
            nn.init.orthogonal_(layer.weight, 1.0)
            nn.init.zeros_(layer.bias)
        return nn.Sequential(*layers)

    def forward(self, feature):
        return torch.log_softmax(self.actor(feature), dim=-1), self.critic(feature).squeeze(-1)
