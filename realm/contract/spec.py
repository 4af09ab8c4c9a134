"""What a package declares once: the shapes of everything that it exchanges with the framework."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from realm.contract.arrays import Array, Field, Fields, is_number
from realm.errors import ContractError


@dataclass(frozen=True)
class ActionSpec:
    """The action space: exactly one of `n` (discrete), `nvec` (multi-discrete) or `low` and `high` (continuous).

    What NumPy and gymnasium have for these numbers will do.
    """

    n: int = 0
    nvec: tuple[int, ...] = ()
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "n", int(self.n))
        for name, number in (("nvec", int), ("low", float), ("high", float)):
            object.__setattr__(self, name, tuple(map(number, getattr(self, name))))
        kinds = (self.n > 0) + bool(self.nvec) + bool(self.low or self.high)
        if kinds != 1 or len(self.low) != len(self.high):
            raise ContractError(
                f"an ActionSpec must have exactly one of n, nvec or (low, high) of equal length, got {self}"
            )

    @property
    def field(self) -> Field:
        if self.n:
            return Field((), "int64")
        if self.nvec:
            return Field((len(self.nvec),), "int64")
        return Field((len(self.low),), "float32")

    @property
    def bounds(self) -> tuple[Array, Array]:
        """low and high as f32 [A], where float32 lacks one the next number inside, so that what lies between these lies
        between those."""
        low, high = np.array(self.low), np.array(self.high)
        with np.errstate(over="ignore"):
            least, most = low.astype(np.float32), high.astype(np.float32)
        inf = np.float32(np.inf)
        return np.where(least < low, np.nextafter(least, inf), least), np.where(
            most > high, np.nextafter(most, -inf), most
        )


@dataclass(frozen=True)
class Draw:
    """How a replay memory cuts its chunks into the rows of a batch (`Transitions`). A row begins at one step.

    n_step     steps whose rewards a row sums up; fewer where the episode ends earlier
    gamma      discount of one step; a field `discount` of `Spec.step` takes its place
    look_back  observations before the row's own; at the start of an episode its first one stands in for them
    """

    n_step: int = 1
    gamma: float = 0.99
    look_back: int = 0

    def __post_init__(self) -> None:
        if self.n_step < 1 or self.look_back < 0 or not 0 <= self.gamma <= 1:
            raise ContractError(f"a Draw needs n_step >= 1, look_back >= 0 and 0 <= gamma <= 1, got {self}")


@dataclass(frozen=True)
class Spec:
    """The shapes that user code and framework agree on; `definition.spec` makes it, and every receiver checks it.

    obs     inputs of `predict`, including the legal-action mask if there is one
    action  the action space
    extra   outputs of `predict` next to the action that `learn` needs again (log-probability, value)
    chunk_length  T
    sample  fields of one item of the buffer; empty means a Chunk of T steps
    step    what the workflow adds to each step (parts of the reward, the discount of a step that lasted long)
    state   a policy's memory of one environment: `predict` gets it, zeros where an episode begins, and gives the next
    draw    off-policy: `learn` gets rows of the stored chunks, as Draw says; None: whole items
    """

    obs: Fields
    action: ActionSpec
    extra: Fields
    chunk_length: int
    sample: Fields = field(default_factory=dict)
    step: Fields = field(default_factory=dict)
    state: Fields = field(default_factory=dict)
    draw: Draw | None = None

    def __post_init__(self) -> None:
        if self.chunk_length < 1:
            raise ContractError(f"Spec.chunk_length must be at least 1, got {self.chunk_length}")
        if self.draw is not None and self.sample:
            raise ContractError("Spec.draw cuts chunks into rows, but Spec.sample says that items are no chunks")
        for group in ("obs", "extra", "sample", "step", "state"):
            for name, entry in getattr(self, group).items():
                if not is_number(entry.dtype) or any(d < 0 for d in entry.shape):
                    raise ContractError(f"Spec.{group}[{name!r}] must be numbers of a fixed shape, got {entry}")
        if self.state and (taken := [name for name in self.obs if name == "first" or name.startswith("state.")]):
            raise ContractError(
                f"Spec.obs has {taken[0]!r}, but a network with a memory gets that name besides observations; rename it"
            )
        if self.sample and not set(ORIGIN_FIELDS) <= set(self.sample):
            raise ContractError(f"Spec.sample must contain {sorted(ORIGIN_FIELDS)}, got {sorted(self.sample)}")
        for name, wanted in ORIGIN_FIELDS.items() if self.sample else ():
            entry = self.sample[name]
            shape = entry.shape[-1:] if name == "version" else entry.shape  # an item may hold several rows
            if np.dtype(entry.dtype) != np.int64 or shape != wanted.shape:
                raise ContractError(
                    f"Spec.sample[{name!r}] must be int64 of shape {list(wanted.shape)}, "
                    f"got {entry.dtype}{list(entry.shape)}"
                )

    @property
    def sample_fields(self) -> Fields:
        """Name -> Field of one item of the buffer."""
        return self.sample or chunk_fields(self)

    @property
    def row_bytes(self) -> int:
        """Bytes that a replay memory keeps of a step."""
        return -(-sum(field.nbytes for field in row_fields(self).values()) // self.chunk_length)

    @property
    def sample_bytes(self) -> int:
        return sum(entry.nbytes for entry in self.sample_fields.values())

    @property
    def steps_per_sample(self) -> int:
        """Env steps of one sample, at most: T of a whole chunk, 1 of a row or of an item of the user's own."""
        return 1 if self.sample or self.draw else self.chunk_length

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in dataclasses.asdict(self).items() if value or name not in _LATER}

    @property
    def schema(self) -> str:
        """Eight hex digits in every message's header; they differ when any shape or dtype differs."""
        shapes = {name: value for name, value in self.to_json().items() if name != "draw"}
        return hashlib.sha256(json.dumps(shapes, sort_keys=True).encode()).hexdigest()[:8]


_LATER = ("step", "state", "draw")
"""Left out of a Spec's JSON where they are empty, so that checkpoints from before they were there keep their schema."""


ORIGIN_FIELDS: Fields = {
    "worker": Field((), "int64"),
    "incarnation": Field((), "int64"),
    "env": Field((), "int64"),
    "seq": Field((), "int64"),
    "version": Field((2,), "int64"),
}
"""Which worker made an item, and with which weights; every item carries these (a Chunk has one version per row)."""


def chunk_fields(spec: Spec) -> Fields:
    """Name -> Field of a Chunk as a flat item: `obs.<name>`, `extra.<name>` and the plain arrays."""
    t = spec.chunk_length
    action = spec.action.field
    return {
        **{f"obs.{name}": Field((t + 1, *entry.shape), entry.dtype) for name, entry in spec.obs.items()},
        "first": Field((t + 1,), "bool"),
        "action": Field((t, *action.shape), action.dtype),
        "reward": Field((t,), "float32"),
        "terminated": Field((t,), "bool"),
        "truncated": Field((t,), "bool"),
        "valid": Field((t,), "bool"),
        **{f"extra.{name}": Field((t, *entry.shape), entry.dtype) for name, entry in spec.extra.items()},
        **{f"step.{name}": Field((t, *entry.shape), entry.dtype) for name, entry in spec.step.items()},
        **{f"state.{name}": entry for name, entry in spec.state.items()},
        **ORIGIN_FIELDS,
        "version": Field((t, 2), "int64"),
    }


def row_fields(spec: Spec) -> Fields:
    """The fields of a Chunk that a replay memory keeps: a policy's memory is in no row (`Transitions`)."""
    return {name: field for name, field in chunk_fields(spec).items() if not name.startswith("state.")}
