"""Adam, by torch's own fused kernel, for every algorithm of this folder."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adam import adam


class Adam:
    """Kingma and Ba 2015 (arXiv:1412.6980), betas 0.9 and 0.999, of parameters on one device and of one type.

    `torch.optim.Adam` calls the same kernel; but with the first one of it torch imports its compiler, which takes a
    second of the start, as long as the import of torch itself, and which nothing here uses.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], eps: float) -> None:
        self.parameters = list(parameters)
        self._eps = eps
        self._fused = self.parameters[0].device.type in ("cpu", "cuda")
        self._state: list[dict[str, Tensor]] = []  # of each parameter; made with the first step

    def zero_grad(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    def grad_norm(self) -> Tensor:
        """The length of all gradients as one vector; f32 []."""
        norms = torch._foreach_norm([one.grad for one in self.parameters if one.grad is not None])
        norm: Tensor = torch.linalg.vector_norm(torch.stack(norms))
        return norm

    @torch.no_grad()
    def step(self, lr: float, divide: Tensor | None = None) -> None:
        """One step along the parameters' gradients; parameters that have none stay.

        divide: f32 [], by which the gradients are divided on the way; bounding them (`grad_norm`) by passing over all
        of them once more would take a third of the step's time.
        """
        self._state = self._state or [
            {
                "step": torch.zeros((), device=parameter.device),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }
            for parameter in self.parameters
        ]
        found = [
            (one, one.grad, state)
            for one, state in zip(self.parameters, self._state, strict=True)
            if one.grad is not None
        ]
        parameters: list[Tensor] = [one for one, _, _ in found]
        gradients = [grad for _, grad, _ in found]
        averages, squares = ([state[name] for _, _, state in found] for name in ("exp_avg", "exp_avg_sq"))
        steps = [state["step"] for _, _, state in found]
        if self._fused:  # as `adam` would, after it has sorted the lists, which takes a while for a small network
            torch._foreach_add_(steps, 1)
            torch._fused_adam_(
                parameters, gradients, averages, squares, [], steps, grad_scale=divide,
                amsgrad=False, beta1=0.9, beta2=0.999, lr=lr, weight_decay=0.0, eps=self._eps, maximize=False,
            )  # fmt: skip
            return
        if divide is not None:  # only the fused kernel divides
            torch._foreach_div_(gradients, divide)
        adam(
            parameters, gradients, averages, squares, [], steps, fused=False,
            amsgrad=False, beta1=0.9, beta2=0.999, lr=lr, weight_decay=0.0, eps=self._eps, maximize=False,
        )  # fmt: skip

    def descend(self, loss: Tensor, lr: float) -> None:
        """One step down the loss f32 []."""
        self.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.step(lr)

    def state_dict(self) -> dict[str, Any]:
        """What resuming needs, in the layout of torch.optim.Adam."""
        return {"state": dict(enumerate(self._state))}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Take back what `state_dict` gave, or what torch.optim.Adam's did."""
        state = saved["state"]
        if len(state) not in (0, len(self.parameters)):
            raise ValueError(f"the state is of {len(state)} parameters, not of {len(self.parameters)}")
        self._state = [
            {name: tensor.to(parameter.device, copy=True) for name, tensor in state[number].items()}
            for number, parameter in enumerate(self.parameters[: len(state)])
        ]
