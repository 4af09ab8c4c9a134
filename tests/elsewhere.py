"""A device that is none: its tensors say that they are on one, compute on the CPU, and refuse what a GPU refuses.

An operation on tensors of both raises RuntimeError, but for numbers and indices. What waits for the device is counted:
a number that goes to Python, an array that comes back, a shape that depends on values.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

DEVICE = torch.device("meta")  # any type that is not "cpu", and that torch initialises nothing for
_aten = torch.ops.aten
_MAY_MIX = {_aten.index.Tensor, _aten.index_put_.default, _aten.index_put.default, _aten.copy_.default}
_WAITS = {
    *(_aten._local_scalar_dense.default, _aten.nonzero.default, _aten.masked_select.default, _aten.equal.default),
    *(_aten.is_nonzero.default, _aten.unique_dim.default, _aten._unique2.default),
}


class Elsewhere(Tensor):
    """A tensor that says it is on DEVICE. inner: where it really is."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> Elsewhere:
        made: Elsewhere = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, inner.shape, strides=inner.stride(), storage_offset=inner.storage_offset(), dtype=inner.dtype,
            device=DEVICE, requires_grad=False,
        )  # fmt: skip
        made.inner = inner
        return made

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"Elsewhere({self.inner!r})"

    def tolist(self) -> Any:  # torch has none for a class of its own
        return self.cpu().tolist()

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(function, args, kwargs or {}, None)


def run(function: Any, args: Any, kwargs: dict[str, Any], waits: list[str] | None) -> Any:
    flat = [one for one in tree_flatten((args, kwargs))[0] if isinstance(one, Tensor)]
    there = [one for one in flat if isinstance(one, Elsewhere)]
    here = [one for one in flat if not isinstance(one, Elsewhere) and one.ndim]
    to = kwargs.get("device")
    made = to == DEVICE or (bool(there) and to is None)
    if there and here and function not in _MAY_MIX:
        raise RuntimeError(f"{function}: expected all tensors to be on the same device")
    back = bool(there) and to is not None and to != DEVICE
    booleans = function in _MAY_MIX and any(one.dtype == torch.bool for one in flat[1:])
    if waits is not None and (function in _WAITS or back or (booleans and there)):
        waits.append(str(function))
    if to is not None:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    args, kwargs = tree_map(lambda one: one.inner if isinstance(one, Elsewhere) else one, (args, kwargs))
    result = function(*args, **kwargs)
    olds = {id(one.inner): one for one in there}

    def wrapped(one: Any) -> Any:
        if not isinstance(one, Tensor) or not made:
            return one.clone() if back and isinstance(one, Tensor) else one
        old = olds.get(id(one))  # what works in place gives its argument back
        return Elsewhere(one) if old is None else old

    return tree_map(wrapped, result)


class _Mode(TorchDispatchMode):
    def __init__(self, waits: list[str]) -> None:
        super().__init__()
        self.waits = waits

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(function, args, kwargs or {}, self.waits)


@contextmanager
def elsewhere() -> Iterator[list[str]]:
    """In this block the device exists. Yields what has waited for it, in order."""
    waits: list[str] = []

    def tensor(data: Any, device: Any = None, dtype: Any = None, of: Any = torch.tensor) -> Tensor:
        return of(data, dtype=dtype).to(device)  # by itself it asks no mode

    as_tensor = partial(tensor, of=torch.as_tensor)
    with _Mode(waits), patch.multiple(torch, tensor=tensor, as_tensor=as_tensor):
        yield waits
