"""Several learners that train as one: each has its part of a batch, and their updates are those that one would make.

`PPO` asks a `Group` for every number of a whole batch. A `Group` is one learner, and costs nothing; `Ranks` are several
processes of this machine (`roles/learner.py`). All of them call the same methods in the same order, also one without a
row, and get the same results to the bit.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path

import torch
from torch import Tensor, distributed

from realm.algorithms.adam import Adam


class Group:
    """One learner alone."""

    rank, size = 0, 1

    def total(self, x: Tensor) -> Tensor:
        """The sum over all ranks; it may take the place of x."""
        return x

    def rows(self, x: Tensor) -> Tensor:
        """The rows x [n, ...] of all ranks, in the order of the ranks. n may differ."""
        return x

    def moments(self, x: Tensor) -> tuple[int, Tensor, Tensor]:
        """Of the rows x [n, ...] of all ranks: how many there are, their mean and variance, [...]."""
        if not len(x):
            return 0, x.sum(0), x.sum(0)
        mean = x.mean(0)
        return len(x), mean, (x - mean).square_().mean(0)  # half of the time of x.var(0)

    def share(self, adam: Adam, metrics: dict[str, Tensor], rows: int) -> dict[str, Tensor]:
        """Make gradients and metrics f32 [] the means over the rows of all ranks, of which this one has had `rows`."""
        return metrics


ALONE = Group()


class Ranks(Group):
    """This process as one of `size`."""

    def __init__(self, rank: int, size: int, meeting: Path, device: str, timeout_s: float) -> None:
        """meeting: a file, not there yet, by which ranks find each other. timeout_s: of a wait for another rank."""
        self.rank, self.size = rank, size
        loopback = "lo0" if sys.platform == "darwin" else "lo"  # without a name they would listen everywhere
        os.environ |= {"GLOO_SOCKET_IFNAME": loopback, "NCCL_SOCKET_IFNAME": loopback}
        torch.set_num_threads(max(1, torch.get_num_threads() // size))
        backend, wait = "gloo", timedelta(seconds=timeout_s)
        if device.startswith("cuda"):
            torch.cuda.set_device(device)
            backend = "cpu:gloo,cuda:nccl"
        store = distributed.FileStore(str(meeting.absolute()), size)  # type: ignore[attr-defined]
        distributed.init_process_group(backend, timeout=wait, world_size=size, rank=rank, store=store)
        self.total(torch.zeros(1, device=device))  # all have met: from here on the file is not needed

    def total(self, x: Tensor) -> Tensor:
        distributed.all_reduce(x)
        return x

    def rows(self, x: Tensor) -> Tensor:
        counts = torch.zeros(self.size, dtype=torch.int64, device=x.device)
        counts[self.rank] = len(x)
        most = int(self.total(counts).max())
        padded = torch.cat((x, x.new_zeros((most - len(x), *x.shape[1:]))))
        every = [torch.empty_like(padded) for _ in counts]
        distributed.all_gather(every, padded)
        return torch.cat([part[:count] for part, count in zip(every, counts.tolist(), strict=True)])

    def moments(self, x: Tensor) -> tuple[int, Tensor, Tensor]:
        """Merged by counts, as `normalise.Moments` are."""
        n, mean, variance = super().moments(x)
        own = torch.stack((torch.full_like(mean, n), mean, variance)).double()
        counts, means, variances = self.rows(own[None]).unbind(1)
        count = int(self.total(torch.tensor(n)))
        if count:
            mean = (counts * means).sum(0) / count
            variance = (counts * (variances + (means - mean) ** 2)).sum(0) / count
        return count, mean.to(x.dtype), variance.to(x.dtype)

    def share(self, adam: Adam, metrics: dict[str, Tensor], rows: int) -> dict[str, Tensor]:
        names = sorted(name for name, x in metrics.items() if x.ndim == 0)
        found = [torch.zeros_like(x) if x.grad is None else x.grad for x in adam.parameters]
        numbers = torch.stack([metrics[name] for name in names]).to(found[0])
        flat = torch.cat([*(x.flatten() for x in found), numbers, numbers.new_ones(1)])
        flat = self.total(flat * rows if rows else torch.zeros_like(flat))
        *means, told = torch.split(flat[:-1] / flat[-1], [*(x.numel() for x in found), len(names)])
        for parameter, grad, mean in zip(adam.parameters, found, means, strict=True):
            parameter.grad = grad.copy_(mean.view_as(grad))
        return {**metrics, **dict(zip(names, told.unbind(), strict=True)), "grad_norm": adam.grad_norm()}

    def differs(self, tensors: Iterable[Tensor]) -> bool:
        """Whether these tensors are not the same on all ranks, by a sum over their bytes."""
        sums = self.rows(torch.stack([x.detach().reshape(-1).view(torch.uint8).sum() for x in tensors])[None])
        return bool((sums != sums[0]).any())
