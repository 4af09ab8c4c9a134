"""Environments and shapes of a project, as the framework asks for them. No code of the project is needed for either."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from realm.contract import ORIGIN_FIELDS, ActionSpec, Field, Fields, Spec
from realm.kaiwu.config import Config
from realm.kaiwu.game import Envs
from realm.kaiwu.records import field_of

ACTIONS = 16


def make_envs(num_envs: int, seed: int, config: Config, options: Mapping[str, Any]) -> Envs:
    """E realms for evaluations; a workflow makes a game of its own from their options."""
    others = {name: np.zeros(field.shape, field.dtype) for name, field in _obs(config).items() if name != "row"}
    return Envs(num_envs, options, others)


def spec(envs: Envs | None, config: Config) -> Spec:
    """A sample is one vector, and `valid`, the env steps that have come with it."""
    sample = {**ORIGIN_FIELDS, "valid": Field((), "int64"), "vector": Field((config.sample_dim,), "float32")}
    extra = {f"act.{name}": field_of(text) for name, text in config.act.items()}
    return Spec(obs=_obs(config), action=ActionSpec(n=ACTIONS), extra=extra, chunk_length=1, sample=sample)


def _obs(config: Config) -> Fields:
    """`row` names an observation in the same process, -1 for none; `model` is the id to predict with, -1 for the
    newest; the others are ObsData's, for prediction at the actor."""
    fields = {"row": Field((), "int64")}
    if config.obs:
        fields |= {"model": Field((), "int64"), **{f"obs.{name}": field_of(text) for name, text in config.obs.items()}}
    return fields
