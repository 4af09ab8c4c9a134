"""The networks: from an observation to the policy's logits and the state's value. Made by `agent.py`.

Every network takes obs, name -> [n, ...] tensors, and returns logits f32 [n, A], illegal actions not yet masked, and
value f32 [n]; actor and critic share nothing, `SharedModel` apart. With `bf16` the hidden layers compute in bfloat16;
the heads are always float32, since eight bits of a value near 100 would drown the reward of a step.
"""

from __future__ import annotations

import copy
import math
from contextlib import AbstractContextManager, nullcontext
from itertools import chain

import numpy as np
import torch
from torch import Tensor, nn

from diy.config import Config
from realm.contract import Spec

Obs = dict[str, Tensor]


class ActingModel:
    """A model for acting: with bf16 a copy whose hidden layers have their weights in bfloat16 already. (Autocast would
    convert all of them again at each forward, which takes longer than the forward itself of a few rows.)"""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._weights: list[tuple[Tensor, Tensor]] = []
        self._stale = False
        if model.bf16:
            self._model = copy.deepcopy(model).requires_grad_(False).eval()
            for name, part in self._model.named_children():
                if not name.endswith("head"):
                    part.to(torch.bfloat16)
            mine, newest = (chain(one.parameters(), one.buffers()) for one in (self._model, model))
            self._weights = list(zip(mine, newest, strict=True))
            model.register_load_state_dict_post_hook(lambda *_: self.outdate())  # type: ignore[no-untyped-call]

    def outdate(self) -> None:
        """To be called when weights have changed otherwise than by being loaded."""
        self._stale = True

    def model(self) -> Model:
        """It, with the newest weights."""
        if self._stale:
            self._stale = False
            for mine, newest in self._weights:
                mine.copy_(newest)
        return self._model


def make_model(spec: Spec, config: Config, bf16: bool) -> Model:
    """The network for the features that `config.features` names."""
    if config.features == "small":
        if config.shared_trunk:
            return SharedModel(spec.obs["features"].shape[0], spec.action.n, config.hidden, bf16)
        return SmallModel(spec.obs["features"].shape[0], spec.action.n, config.hidden, bf16)
    return ReferenceModel(spec.obs["vector"].shape[0], spec.action.n, bf16)


class SmallModel(nn.Module):
    """Two MLPs with two hidden layers over `features`, bfloat16 as i16 [n, F]."""

    def __init__(self, features: int, actions: int, hidden: int, bf16: bool) -> None:
        super().__init__()
        self.bf16 = bf16
        self.actor_body = _mlp(features, hidden)
        self.critic_body = _mlp(features, hidden)
        self.actor_head = _linear(hidden, actions, gain=0.01)
        self.critic_head = _linear(hidden, 1, gain=1.0)

    def actor(self, obs: Obs) -> Tensor:
        """Logits f32 [n, A]."""
        return _head(self.actor_head, _small_body(self.actor_body, obs, self.bf16))

    def critic(self, obs: Obs) -> Tensor:
        """Values f32 [n]."""
        return _head(self.critic_head, _small_body(self.critic_body, obs, self.bf16)).squeeze(-1)

    def forward(self, obs: Obs) -> tuple[Tensor, Tensor]:
        return self.actor(obs), self.critic(obs)


class SharedModel(nn.Module):
    """One MLP with two hidden layers over `features`, bfloat16 as i16 [n, F], with both heads on it."""

    def __init__(self, features: int, actions: int, hidden: int, bf16: bool) -> None:
        super().__init__()
        self.bf16 = bf16
        self.body = _mlp(features, hidden)
        self.actor_head = _linear(hidden, actions, gain=0.01)
        self.critic_head = _linear(hidden, 1, gain=1.0)

    def actor(self, obs: Obs) -> Tensor:
        """Logits f32 [n, A]."""
        return _head(self.actor_head, _small_body(self.body, obs, self.bf16))

    def critic(self, obs: Obs) -> Tensor:
        """Values f32 [n]."""
        return _head(self.critic_head, _small_body(self.body, obs, self.bf16)).squeeze(-1)

    def forward(self, obs: Obs) -> tuple[Tensor, Tensor]:
        hidden = _small_body(self.body, obs, self.bf16)
        return _head(self.actor_head, hidden), _head(self.critic_head, hidden).squeeze(-1)


class ReferenceModel(nn.Module):
    """The published network: two trunks of three convolutions over `image` u8 [n, 4, 51, 51], 255 = 1, joined with
    `vector` f32 [n, 31]."""

    def __init__(self, vector: int, actions: int, bf16: bool) -> None:
        super().__init__()
        self.bf16 = bf16
        self.actor_conv, self.critic_conv = _conv(), _conv()
        self.actor_body, self.critic_body = _layer(512 + vector, 512), _layer(512 + vector, 512)
        self.actor_head = _linear(512, actions, gain=0.01)
        self.critic_head = _linear(512, 1, gain=1.0)

    def actor(self, obs: Obs) -> Tensor:
        """Logits f32 [n, A]."""
        return _head(self.actor_head, self._body(self.actor_conv, self.actor_body, obs))

    def critic(self, obs: Obs) -> Tensor:
        """Values f32 [n]."""
        return _head(self.critic_head, self._body(self.critic_conv, self.critic_body, obs)).squeeze(-1)

    def forward(self, obs: Obs) -> tuple[Tensor, Tensor]:
        return self.actor(obs), self.critic(obs)

    def _body(self, conv: nn.Module, body: nn.Module, obs: Obs) -> Tensor:
        with _in_bf16(body, self.bf16):
            image = obs["image"].to(torch.bfloat16 if self.bf16 else torch.float32) / 255.0
            hidden = conv(image.to(memory_format=torch.channels_last))  # three times as fast on a CPU
            return body(torch.cat([hidden, obs["vector"].to(hidden.dtype)], dim=1))  # type: ignore[no-any-return]


Model = SmallModel | SharedModel | ReferenceModel


def _mlp(inputs: int, hidden: int) -> nn.Sequential:
    layers = [_linear(inputs, hidden, math.sqrt(2)), _linear(hidden, hidden, math.sqrt(2))]
    return nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU())


def _small_body(body: nn.Module, obs: Obs, bf16: bool) -> Tensor:
    features = obs["features"]
    if not features.is_floating_point():
        features = features.view(torch.bfloat16)
    with _in_bf16(body, bf16):
        return body(features if bf16 else features.float())  # type: ignore[no-any-return]


def bf16_table() -> Tensor:
    """What each bfloat16 is as a number, f32 [65536], at the place of its bits as an i16 (negative ones count from the
    end). For ONNX, which cannot look at bits."""
    return torch.from_numpy((np.arange(1 << 16, dtype=np.uint32) << 16).view(np.float32))


def _layer(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(_linear(inputs, outputs, math.sqrt(2)), nn.ReLU())


def _conv() -> nn.Sequential:
    """u8 image [n, 4, 51, 51] scaled to 0..1 -> [n, 512]: 51 -> 23 -> 10 -> 8 cells a side."""
    layers = [nn.Conv2d(4, 32, 7, 2), nn.Conv2d(32, 64, 5, 2), nn.Conv2d(64, 64, 3, 1)]
    for layer in layers:
        _orthogonal(layer, math.sqrt(2))
    parts = [part for layer in layers for part in (layer, nn.ReLU())]
    return nn.Sequential(*parts, nn.Flatten(), _layer(64 * 8 * 8, 512))


def _linear(inputs: int, outputs: int, gain: float) -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    _orthogonal(layer, gain)
    return layer


def _orthogonal(layer: nn.Linear | nn.Conv2d, gain: float) -> None:
    nn.init.orthogonal_(layer.weight, gain)
    assert layer.bias is not None
    nn.init.zeros_(layer.bias)


def _in_bf16(body: nn.Module, bf16: bool) -> AbstractContextManager[None]:
    """Autocast; not for an `ActingModel`, whose weights are bfloat16 and need none."""
    weight = next(body.parameters())
    if not bf16 or weight.dtype == torch.bfloat16:
        return nullcontext()
    return torch.autocast(weight.device.type, torch.bfloat16)


def _head(head: nn.Module, hidden: Tensor) -> Tensor:
    return head(hidden.float())  # type: ignore[no-any-return]
