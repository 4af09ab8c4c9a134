"""What the buffer holds and a learner trains on.

A chunk of T = 4 steps, with an episode that ends at step 1:

    row            0        1        2        3        (4)
    obs            o0       o1       o2*      p0       p1       T + 1 rows
    action         a0       a1       (a2)     b0
    reward         r0       r1       0        s0
    terminated     -        True     -        -
    valid          True     True     False    True
    first          True     -        -        True     -        T + 1 rows

1. On every *valid* row, `obs[t+1]` is the true successor of step t, also at an episode's end (o2* is final).
2. A reset takes a row of its own (gymnasium's NEXT_STEP autoreset): row 2 is not valid. Invalid rows count in no
   statistic, and nothing trains on them.
3. So there is one bootstrap rule: V(obs[t+1]) unless `terminated[t]`. `terminated` or `truncated` cuts a trace.
   The learner computes V(obs[T]).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from realm.contract.arrays import Array, Arrays
from realm.contract.versions import NO_VERSION, Version


@dataclass(frozen=True)
class Chunk:
    """T consecutive steps of one environment, or, with a leading B on every array, a batch of them.

    obs         name -> [T+1, ...]      first       bool [T+1], obs begins an episode
    action      [T, ...]                reward      f32 [T]
    terminated  bool [T]                truncated   bool [T]
    valid       bool [T]                extra       name -> [T, ...]
    version     i64 [T, 2], (epoch, update) of the weights that chose the action
    worker, incarnation, env, seq       i64 [], the chunk's origin; seq counts the worker's rounds
    step        name -> [T, ...], what the workflow added
    state       name -> [...], the policy's memory before row 0
    """

    obs: Arrays
    first: Array
    action: Array
    reward: Array
    terminated: Array
    truncated: Array
    valid: Array
    extra: Arrays
    version: Array
    worker: Array
    incarnation: Array
    env: Array
    seq: Array
    step: Arrays = field(default_factory=dict)
    state: Arrays = field(default_factory=dict)


@dataclass(frozen=True)
class Transitions:
    """B rows that a replay memory cut out of its chunks, as `Spec.draw` asks. A row begins at step t of an episode.

    obs         name -> [B, ...], or [B, look_back + 1, ...] with the newest last; o_t
    action      [B, ...]; a_t
    reward      f32 [B], r_t + gamma r_(t+1) + ... over n steps, or as many as the episode had left
    discount    f32 [B], gamma^n, and 0 where the episode terminated: the factor of the value of next_obs
    next_obs    as obs, n steps later; also after a time limit the true successor
    extra, step name -> [B, ...], of step t
    version     i64 [B, 2], of the weights that chose the action
    worker, incarnation, env, seq       i64 [B], the origin of the chunk
    """

    obs: Arrays
    action: Array
    reward: Array
    discount: Array
    next_obs: Arrays
    extra: Arrays
    step: Arrays
    version: Array
    worker: Array
    incarnation: Array
    env: Array
    seq: Array


def chunk_to_arrays(chunk: Chunk) -> Arrays:
    """Flatten a Chunk into name -> array, the form that is sent and stored (no copy)."""
    flat: Arrays = {}
    for group in dataclasses.fields(Chunk):
        value = getattr(chunk, group.name)
        if isinstance(value, dict):
            flat.update({f"{group.name}.{name}": array for name, array in value.items()})
        else:
            flat[group.name] = value
    return flat


def arrays_to_chunk(flat: Arrays) -> Chunk:
    """Rebuild the Chunk that `chunk_to_arrays` flattened (no copy)."""
    return Chunk(**_regrouped(flat, "obs", "extra", "step", "state"))


def arrays_to_transitions(flat: Arrays) -> Transitions:
    """A drawn batch of rows, flattened as a Chunk is, as Transitions (no copy)."""
    return Transitions(**_regrouped(flat, "obs", "next_obs", "extra", "step"))


def _regrouped(flat: Arrays, *groups: str) -> dict[str, Any]:
    parts: dict[str, Any] = {group: {} for group in groups}
    for name, array in flat.items():
        group, _, inner = name.partition(".")
        if inner:
            parts[group][inner] = array
        else:
            parts[name] = array
    return parts


def count_env_steps(items: Arrays) -> int:
    """The env steps in items of the buffer: valid rows of chunks, or one for each item without `valid`."""
    return int(items["valid"].sum()) if "valid" in items else len(items["worker"])


@dataclass(frozen=True)
class SampleInfo:
    """What the buffer says about a batch. A sample is an item, or a row with `Spec.draw`.

    key            u64 [B], names the sample for new priorities
    probability    f64 [B], of being drawn
    times_sampled  i64 [B]
    new_env_steps  played into the buffer since the batch before; on-policy those of this batch
    size           samples that can be drawn
    The trainer fills in:
    env_steps      of the run so far, with the new ones
    version        of the weights before the update
    stale          whether other weights than these chose some of the actions
    """

    key: Array
    probability: Array
    times_sampled: Array
    new_env_steps: int = 0
    size: int = 0
    env_steps: int = 0
    version: Version = NO_VERSION
    stale: bool = False
