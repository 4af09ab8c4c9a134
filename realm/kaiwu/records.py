"""Records as arrays: how ObsData and ActData travel to the shared actor and back, and come out as they went in.

A field is described by "kind dtype shape", like "list float64 10,3": which Python thing it is, and its numbers. Only
prediction at the actor needs this; everywhere else the objects go in as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from realm.contract import Array, Field
from realm.errors import UserCodeError

KINDS = {"bool": bool, "int": int, "float": float, "list": list, "tuple": tuple}


def describe(value: Any, where: str) -> str:
    """The description of one field's value. Raises UserCodeError if it is not numbers of a fixed shape."""
    kind, array = _kind(value), _array(value)
    if array.dtype.kind not in "biuf":
        raise UserCodeError(
            f'{where} is {_shown(value)}; with predict_local_or_remote = "remote" it must be numbers of a fixed '
            'shape, since it is sent to the shared actor; set predict_local_or_remote = "local" to pass any object'
        )
    return f"{kind} {array.dtype} {','.join(map(str, array.shape))}".rstrip()


def merge(one: str, other: str, where: str) -> str:
    """One description for both values. Raises UserCodeError if their shapes differ."""
    if one == other:
        return one
    (kind, dtype, *shape), (kind2, dtype2, *shape2) = one.split(" "), other.split(" ")
    if shape != shape2:
        raise UserCodeError(
            f"{where} has changed its shape from [{''.join(shape)}] to [{''.join(shape2)}]; with "
            'predict_local_or_remote = "remote" it must be fixed; set it to "local" to pass any object'
        )
    kind = "float" if {kind, kind2} == {"int", "float"} else kind
    return " ".join([kind, str(np.promote_types(dtype, dtype2)), *shape])


def field_of(description: str) -> Field:
    _, dtype, *shape = description.split(" ")
    return Field(tuple(map(int, shape[0].split(","))) if shape else (), dtype)


def to_array(value: Any, description: str, where: str) -> Array:
    """A field's value as an array of its description. Raises UserCodeError if it is something else now."""
    field, array = field_of(description), _array(value)
    if array.shape != field.shape or array.dtype.kind not in "biuf":
        merge(description, describe(value, where), where)
    if array.dtype == field.dtype:
        return array
    if not np.can_cast(array.dtype, field.dtype, "same_kind") and (array.astype(field.dtype) != array).any():
        raise UserCodeError(
            f"{where} was {field.dtype} and is {array.dtype} now; it must always be the same numbers, so write 0.0 for "
            '0, or set predict_local_or_remote = "local" to pass any object'
        )
    return array.astype(field.dtype)


def from_array(array: Array, description: str) -> Any:
    """The value of the kind that went in."""
    kind = description.split(" ")[0]
    if kind in KINDS:
        return KINDS[kind](array.tolist())
    if kind == "scalar":
        return array[()]
    if kind == "tensor":
        import torch  # late: only an agent's process has tensors

        return torch.from_numpy(np.array(array))
    return np.array(array)  # a copy: the code may write to it


def record_fields(record: Any, where: str) -> Mapping[str, Any]:
    """Name -> value of a record's fields. Raises UserCodeError for something without fields."""
    if not hasattr(record, "__dict__"):
        raise UserCodeError(f"{where} is {_shown(record)}; it must be a record, as create_cls makes")
    fields: Mapping[str, Any] = vars(record)
    return fields


def _kind(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return "array"
    if isinstance(value, np.generic):
        return "scalar"
    for name, cls in KINDS.items():
        if isinstance(value, cls):
            return name
    return "tensor" if hasattr(value, "detach") else "array"


def _array(value: Any) -> Array:
    """As NumPy has it; one object where NumPy makes nothing of it."""
    try:
        return np.asarray(value.detach().cpu().numpy() if hasattr(value, "detach") else value)
    except (TypeError, ValueError):
        return np.array(None)


def _shown(value: Any) -> str:
    return "None" if value is None else f"{type(value).__name__} {str(value)[:40]!r}"
