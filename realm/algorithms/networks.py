"""Small networks that the algorithms share, and what their targets need."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from functools import cache, partial
from itertools import pairwise
from typing import Any, TypeVar, cast

import torch
from loguru import logger
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from realm.algorithms.settings import EncoderSettings, NetworkSettings
from realm.contract import ActionSpec, Field, Fields

Obs = dict[str, Tensor]  # name -> [n, ...]

Module = TypeVar("Module")

_IMAGE_FEATURES = 256
# channels, kernel and stride of the convolutions on images with sides of 64 at least, and on smaller ones, two unless
# `channels` names three
_LARGE = (32, 8, 4), (64, 4, 2), (64, 3, 1)
_SMALL = (16, 4, 2), (32, 4, 3), (32, 3, 1)
_MANY = 1_400_000  # multiplications; with fewer, oneDNN takes longer than MKL, mostly for its call

relu = partial(nn.ReLU, inplace=True)  # what it follows needs its own output no more


class MLP(nn.Sequential):
    """Linear layers of these sizes, inputs first, with ReLU or tanh between them. Weights begin as torch makes them.

    Its gradient is one function: for the few rows of a minibatch torch's own, an object for each operation, takes
    longer than the products. Those of many rows are computed by oneDNN where the CPU has AVX-512. torch computes
    float32 with MKL, which makes less of AVX-512 on AMD: on one EPYC a layer of 256 x 256 with 256 rows took 1.8 times
    as long, on another the same. Without AVX-512 both take the same.
    """

    def __init__(self, sizes: Sequence[int], activation: type[nn.ReLU] | type[nn.Tanh] = nn.ReLU) -> None:
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise(sizes):
            layers += [nn.Linear(inputs, outputs), activation()]
        super().__init__(*layers[:-1])
        self._tanh = activation is nn.Tanh

    def forward(self, input: Tensor) -> Tensor:
        """input: f32 [n, inputs]. Returns f32 [n, outputs]."""
        # an export knows torch's own layers alone
        if torch._C._is_tracing() or not input.is_cpu or torch.is_autocast_enabled("cpu") or input.dim() != 2:
            return cast(Tensor, super().forward(input))  # type: ignore[no-untyped-call]
        linears = [layer for layer in self if isinstance(layer, nn.Linear)]
        weights = [x for layer in linears for x in (layer.weight, layer.bias)]
        return cast(Tensor, _MLP.apply(input, self._tanh, *weights))  # type: ignore[no-untyped-call]


class _MLP(torch.autograd.Function):
    """input f32 [n, i] and for each layer weight f32 [o, i] and bias f32 [o] -> f32 [n, o]."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, tanh: bool, *parameters: Tensor) -> Tensor:
        weights, biases = parameters[::2], parameters[1::2]
        inputs, output = [input], input
        for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
            output = _product(output, weight, bias)
            inputs.append(output.tanh_() if tanh else output.relu_())
        ctx.tanh, ctx.layers = tanh, len(weights)
        ctx.save_for_backward(*inputs, *weights)
        return _product(inputs[-1], weights[-1], biases[-1])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        inputs, weights = ctx.saved_tensors[: ctx.layers], ctx.saved_tensors[ctx.layers :]
        needed, found = ctx.needs_input_grad, list[Tensor | None]()
        for layer in reversed(range(ctx.layers)):
            input, (of_weight, of_bias) = inputs[layer], needed[2 + 2 * layer : 4 + 2 * layer]
            found.append(grad.sum(0) if of_bias else None)
            found.append(_weight_gradient(grad, input) if of_weight else None)
            if layer == 0 and not needed[0]:
                break
            grad = _product(grad, weights[layer].t())
            if layer and ctx.tanh:
                grad = torch.ops.aten.tanh_backward(grad, input)
            elif layer:
                grad = torch.ops.aten.threshold_backward(grad, input, 0)
        return (grad if needed[0] else None, None, *reversed(found))


def _product(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """input [n, i] weight^T [i, o] + bias."""
    if input.numel() * len(weight) < _MANY or not _has_avx512() or input.dtype != torch.float32:
        return input @ weight.t() if bias is None else torch.addmm(bias, input, weight.t())
    out: Tensor = torch.ops.mkldnn._linear_pointwise(input, weight, bias, "none", [], "")
    return out


def _weight_gradient(grad: Tensor, input: Tensor) -> Tensor:
    """grad^T input, f32 [o, i]. Of two transposed factors oneDNN copies the first: it gets the smaller one."""
    if input.shape[1] < grad.shape[1]:
        return _product(input.t(), grad.t()).t().contiguous()
    return _product(grad.t(), input.t())


@cache
def _has_avx512() -> bool:
    return torch.backends.cpu.get_cpu_capability() == "AVX512" and torch.backends.mkldnn.is_available()  # type: ignore


class Encoder(nn.Module):
    """Observations of any shapes as one vector: images through a small CNN, all others flat, in the order of names.
    uint8 of two axes or more is divided by 255.

    An image is uint8 [height, width, channels] with sides of at least 36, or f32 once it is normalised. From 64 on its
    network is that of Mnih et al. 2015, which smaller ones would leave with a single place; theirs has two layers.
    """

    def __init__(self, fields: Fields, settings: EncoderSettings | None = None) -> None:
        """An observation named `legal` is a mask of actions and no input. With `frames` each is [n, frames, ...]; they
        are stacked along its last axis, as channels of an image are. With `precision` "bf16" gradients go through a CNN
        in bfloat16; it acts in float32."""
        super().__init__()
        settings = settings or EncoderSettings()
        self._frames, self._precision = settings.frames, settings.precision
        if self._frames > 1:
            fields = {n: Field((*it.shape[:-1], it.shape[-1] * self._frames), it.dtype) for n, it in fields.items()}
        self.cnns = nn.ModuleDict()
        self.names = sorted(name for name in fields if name != "legal")
        self.features = 0
        for number, name in enumerate(self.names):
            shape = fields[name].shape
            if is_image(fields[name]):
                self.cnns[str(number)] = _cnn(shape, settings.channels)
                self.features += _IMAGE_FEATURES
            else:
                self.features += fields[name].size

    def forward(self, obs: Obs) -> Tensor:
        """obs: name -> [n, ...]. Returns f32 [n, features]."""
        parts = []
        for number, name in enumerate(self.names):
            x = obs[name] if self._frames == 1 else obs[name].movedim(1, -2).flatten(-2)
            if str(number) in self.cnns:
                image = (x.contiguous() if torch.is_grad_enabled() else x).permute(0, 3, 1, 2)  # quicker gradients
                with of_images(self._precision, x.device):
                    features = self.cnns[str(number)](image.float() / 255 if x.dtype == torch.uint8 else image)
                parts.append(features.float())
            else:
                flat = x.reshape(x.shape[0], -1).float()
                parts.append(flat / 255 if x.dtype == torch.uint8 and x.dim() > 2 else flat)  # a small image
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


def of_images(precision: str, device: torch.device) -> torch.autocast:
    """Autocast for the layers that see an image: bfloat16 if gradients follow and `use_bf16` says so."""
    bf16 = torch.is_grad_enabled() and use_bf16(precision, device)
    return torch.autocast(device.type, torch.bfloat16, enabled=bf16)


@cache
def use_bf16(precision: str, device: torch.device) -> bool:
    """Whether to compute in bfloat16. precision: "fp32", "bf16", or "auto": bf16 where the machine is fast with it."""
    fast = torch.cuda.is_bf16_supported() if device.type == "cuda" else torch.cpu._is_avx512_bf16_supported()
    if precision == "bf16" and not fast:
        logger.warning('bfloat16 is slow on this {}; precision = "auto" uses it where it is fast', device.type)
    return precision == "bf16" or (precision == "auto" and bool(fast))


def is_image(field: Field) -> bool:
    return field.dtype == "uint8" and len(field.shape) == 3 and min(field.shape[:2]) >= 36


def _cnn(shape: Sequence[int], channels: Sequence[int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    inputs, (own, usual) = shape[2], (_LARGE, 3) if min(shape[:2]) >= 64 else (_SMALL, 2)
    for outputs, (_, kernel, stride) in zip(channels or [layer[0] for layer in own[:usual]], own, strict=False):
        layers += [nn.Conv2d(inputs, outputs, kernel, stride), relu()]
        inputs = outputs
    convolutions = nn.Sequential(*layers, nn.Flatten())
    with torch.no_grad():
        flat = convolutions(torch.zeros(1, shape[2], *shape[:2])).shape[1]
    return nn.Sequential(convolutions, nn.Linear(flat, _IMAGE_FEATURES), relu())


class Critic(nn.Module):
    """The value of observation and action: an encoder, and an MLP with ReLU and one output after it."""

    def __init__(self, fields: Fields, actions: int, hidden: int) -> None:
        super().__init__()
        self.encoder = Encoder(fields)
        self.net = MLP((self.encoder.features + actions, hidden, hidden, 1))

    def forward(self, obs: Obs, action: Tensor) -> Tensor:
        """f32 [n]; action f32 [n, A]."""
        value: Tensor = self.net(torch.cat((self.encoder(obs), action), -1)).squeeze(-1)
        return value


class Deviations(nn.Module):
    """Puts the logs of standard deviations, which no observation changes, behind means f32 [n, A]: f32 [n, 2 A]."""

    def __init__(self, actions: int, log_std: float, bounded: bool) -> None:
        """log_std: at first. bounded: means are the tanh of what comes in."""
        super().__init__()
        self.bounded = bounded
        self.log_std = nn.Parameter(torch.full((actions,), log_std))

    def forward(self, mean: Tensor) -> Tensor:
        return torch.cat((mean.tanh() if self.bounded else mean, self.log_std.expand_as(mean)), -1)


def deviations_of(action: ActionSpec, settings: NetworkSettings) -> list[Deviations]:
    """What ends a policy's network: nothing unless actions are continuous."""
    return [Deviations(len(action.low), settings.log_std, settings.bounded_mean)] if action.low else []


def frozen_copy(network: Module) -> Module:
    """A copy that gets no gradients, in evaluation mode: the target of a network."""
    target = copy.deepcopy(network)
    cast(nn.Module, target).requires_grad_(False).eval()
    return target


@torch.no_grad()
def follow(targets: Iterable[Tensor], sources: Iterable[Tensor], tau: float) -> None:
    """Polyak averaging: target <- target + tau (source - target)."""
    torch._foreach_lerp_(list(targets), list(sources), tau)
