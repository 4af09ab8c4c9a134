"""PPO's gradients of an `ActorCritic` without torch's graph.

An operation of torch takes 5 to 15 us with its gradient, whatever its size, and a gradient step has a hundred of them:
with 64 rows and layers of 64 that is nine tenths of its time. Here NumPy multiplies, into the memory of the weights and
their gradients, and kernels do the rest. The formulas are those of `losses.py`, `distributions.py` and `returns.py`,
which train every other network.
Axes: n rows of a minibatch, A actions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from realm.algorithms.actor_critic import ActorCritic
from realm.algorithms.adam import Adam
from realm.algorithms.batch import Batch
from realm.algorithms.distributions import Categorical, Distribution, Gaussian
from realm.algorithms.losses import Metrics, Network, Part
from realm.algorithms.networks import Obs
from realm.algorithms.settings import Schedule, Settings
from realm.jit import jit

F32 = NDArray[np.float32]
_HALF_LOG_2_PI = 0.5 * math.log(2 * math.pi)


class Net:
    """An encoder without weights and an MLP, with `Deviations` behind it or without."""

    def __init__(self, net: nn.Sequential) -> None:
        """Gives every parameter a gradient, which `backward` overwrites."""
        self.encoder, layers = net[0], list(net[1].children())
        self._tanh = any(isinstance(layer, nn.Tanh) for layer in layers)
        self._gradients = np.zeros(sum(x.numel() for x in net.parameters()), np.float32)
        weights, gradients, end = list[F32](), list[F32](), 0
        for parameter in net.parameters():
            begin, end = end, end + parameter.numel()
            gradients.append(self._gradients[begin:end].reshape(parameter.shape))
            parameter.grad = torch.from_numpy(gradients[-1])
            weights.append(parameter.detach().numpy())
        self._bounded = len(net) > 2 and net[2].bounded  # `Deviations`
        if len(net) > 2:
            self.log_std, self.of_log_std = weights.pop(), gradients.pop()
        self._weights, self._biases = weights[::2], weights[1::2]
        self._of_weights, self._of_biases = gradients[::2], gradients[1::2]
        self._inputs: list[F32] = []
        self._outputs = np.empty(0, np.float32)

    def forward(self, obs: Obs) -> F32:
        """f32 [n, outputs]; it is remembered for `backward`."""
        x: F32 = self.encoder(obs).numpy()
        self._inputs = []
        for layer, (weight, bias) in enumerate(zip(self._weights, self._biases, strict=True)):
            if layer:
                x = np.tanh(x, out=x) if self._tanh else np.maximum(x, 0.0, out=x)
            self._inputs.append(x)
            x = np.matmul(x, weight.T)
            x += bias
        self._outputs = np.tanh(x, out=x) if self._bounded else x
        return self._outputs

    def backward(self, grad: F32) -> None:
        """grad: f32 [n, outputs], of the loss; it is overwritten."""
        if self._bounded:
            grad *= 1 - np.square(self._outputs)
        np.sum(grad, 0, out=self._of_biases[-1])
        for layer in reversed(range(len(self._weights))):
            np.matmul(grad.T, self._inputs[layer], out=self._of_weights[layer])
            if layer:
                grad = np.matmul(grad, self._weights[layer])
                _through_activation(grad, self._inputs[layer], self._tanh, self._of_biases[layer - 1])

    def grad_norm(self) -> float:
        """The length of all gradients as one vector."""
        return math.sqrt(np.dot(self._gradients, self._gradients))


def nets_of(parts: Sequence[Part], network: Network, distribution: Distribution, settings: Settings) -> dict[Adam, Net]:
    """Of the parts whose gradients `gradient` can find. Torch has to find them where the network is another one, sees
    images or is not on the CPU, and where the losses are not the plain ones."""
    other = settings.shared_trunk or settings.decoupled or settings.value_clip
    other = other or settings.ratio == "each" or settings.advantage == "q"
    if type(network) is not ActorCritic or other:
        return {}
    nets = {}
    for part in parts:
        net, plain = (network.critic_net, 1) if part.critic else (network.actor_net, 2)
        known = part.critic or isinstance(distribution, Categorical | Gaussian)
        here = all(x.is_cpu and x.dtype == torch.float32 for x in net.parameters()) and not net[0].cnns
        if known and here and len(part.losses) == plain and part.layer is None:
            nets[part.adam] = Net(net)
    return nets


def gradient(
    net: Net, settings: Settings, part: Part, minibatch: Batch, distribution: Distribution, now: Schedule
) -> Metrics:
    """The gradient of the sum of losses, into the parameters' `grad`. Returns what `Part` reports of a gradient step:
    "loss", the sum, and "grad_norm", f32 [], and the metrics of `losses.by_graph`."""
    if part.critic:
        error = net.forward(minibatch.obs)[:, 0] - minibatch.target.numpy()
        value_loss = 0.5 * float(np.dot(error, error)) / len(error)
        net.backward((error * np.float32(settings.vf_coef / len(error)))[:, None])
        return _metrics(loss=settings.vf_coef * value_loss, grad_norm=net.grad_norm(), value_loss=value_loss)
    n, outputs, advantage = len(minibatch.advantage), net.forward(minibatch.obs), minibatch.advantage
    action, of_outputs = minibatch.raw_action.numpy(), np.empty_like(outputs)
    log_prob, entropy, of_log_prob = np.empty((3, n), np.float32)
    legal = minibatch.obs["legal"].numpy() if "legal" in minibatch.obs else np.ones((1, 1), np.bool_)
    if isinstance(distribution, Gaussian):
        _gaussian(outputs, net.log_std, action, log_prob, entropy)
    else:
        _categorical(outputs, legal, action, log_prob, entropy)
    proximal = minibatch.proximal_log_prob
    policy_loss = _surrogate(log_prob, proximal.numpy(), advantage.numpy(), settings.clip, of_log_prob)
    of_entropy = -now.entropy_coef / n
    if isinstance(distribution, Gaussian):
        _of_gaussian(outputs, net.log_std, action, of_log_prob, of_entropy, of_outputs, net.of_log_std)
    else:
        _of_categorical(outputs, legal, action, entropy, of_log_prob, of_entropy, of_outputs)
    net.backward(of_outputs)
    mean_entropy, new = float(np.add.reduce(entropy)) / n, torch.from_numpy(log_prob)
    return {
        "log_ratio": new - minibatch.log_prob,
        "proximal_log_ratio": new - proximal,
        **_metrics(
            loss=policy_loss - now.entropy_coef * mean_entropy,
            grad_norm=net.grad_norm(),
            policy_loss=policy_loss,
            entropy=mean_entropy,
        ),
    }


def _metrics(**numbers: float) -> Metrics:
    """f32 [] each; one tensor for all is quicker than one for each."""
    return dict(zip(numbers, torch.from_numpy(np.array(list(numbers.values()), np.float32)).unbind(), strict=True))


@jit
def _through_activation(grad: F32, output: F32, tanh: bool, of_bias: F32) -> None:
    """From the gradient of an activation's output f32 [n, k] to that of its input, in place, and its sum over rows."""
    of_bias[:] = 0.0
    for i in range(len(grad)):
        for j in range(grad.shape[1]):
            slope = np.float32(1.0) - output[i, j] * output[i, j] if tanh else np.float32(output[i, j] > 0.0)
            grad[i, j] *= slope
            of_bias[j] += grad[i, j]


@jit
def _surrogate(log_prob: F32, proximal: F32, advantage: F32, clip: float, of_log_prob: F32) -> float:
    """The mean of `returns.clipped_policy_loss`; writes its gradient, f32 [n]."""
    n, total = len(log_prob), np.float64(0.0)
    for i in range(n):
        ratio, of_row = math.exp(np.float64(log_prob[i]) - proximal[i]), np.float64(advantage[i])
        gain, bounded = ratio * of_row, min(max(ratio, 1.0 - clip), 1.0 + clip) * of_row
        total -= min(gain, bounded)
        of_log_prob[i] = -gain / n if gain <= bounded else 0.0
    return float(total / n)


@jit
def _gaussian(mean: F32, log_std: F32, action: F32, log_prob: F32, entropy: F32) -> None:
    precision, constant, of_all = np.exp(-log_std), 0.0, 0.0
    for a in range(len(log_std)):
        constant -= log_std[a] + _HALF_LOG_2_PI
        of_all += log_std[a] + _HALF_LOG_2_PI + 0.5
    for i in range(len(mean)):
        squares = 0.0
        for a in range(len(log_std)):
            noise = (action[i, a] - mean[i, a]) * precision[a]
            squares += noise * noise
        log_prob[i], entropy[i] = constant - 0.5 * squares, of_all


@jit
def _of_gaussian(
    mean: F32, log_std: F32, action: F32, of_log_prob: F32, of_entropy: float, of_mean: F32, of_log_std: F32
) -> None:
    """The gradients of mean and log_std, given those of log_prob f32 [n] and of each entropy."""
    precision = np.exp(-log_std)
    of_log_std[:] = of_entropy * len(mean)
    for i in range(len(mean)):
        for a in range(len(log_std)):
            noise = (action[i, a] - mean[i, a]) * precision[a]
            of_mean[i, a] = of_log_prob[i] * noise * precision[a]
            of_log_std[a] += of_log_prob[i] * (noise * noise - 1.0)


@jit
def _categorical(logits: F32, legal: NDArray[np.bool_], action: NDArray[np.int64], log_prob: F32, entropy: F32) -> None:
    """Makes log-probabilities of the logits, in place. legal: bool [n, A], or [1, 1] where all are."""
    masked = legal.shape == logits.shape
    for i in range(len(logits)):
        top = np.float32(-np.inf)
        for a in range(logits.shape[1]):
            if masked and not legal[i, a]:
                logits[i, a] = -1e9  # `returns.ILLEGAL_LOGIT`
            top = max(top, logits[i, a])
        total = 0.0
        for a in range(logits.shape[1]):
            total += math.exp(logits[i, a] - top)
        shift, entropy[i] = top + math.log(total), 0.0
        for a in range(logits.shape[1]):
            logits[i, a] -= shift
            if logits[i, a] > -80.0:
                entropy[i] -= math.exp(logits[i, a]) * logits[i, a]
        log_prob[i] = logits[i, action[i]]


@jit
def _of_categorical(
    log_probs: F32, legal: NDArray[np.bool_], action: NDArray[np.int64], entropy: F32, of_log_prob: F32,
    of_entropy: float, of_logits: F32,
) -> None:  # fmt: skip
    """The gradient of the logits, given those of log_prob f32 [n] and of each entropy."""
    masked = legal.shape == log_probs.shape
    for i in range(len(log_probs)):
        for a in range(log_probs.shape[1]):
            if masked and not legal[i, a]:
                of_logits[i, a] = 0.0
                continue
            p = math.exp(log_probs[i, a])
            of_logits[i, a] = of_log_prob[i] * ((1.0 if a == action[i] else 0.0) - p)
            of_logits[i, a] -= of_entropy * p * (log_probs[i, a] + entropy[i])
