"""Environments of any spaces, which refuse actions that are not of their own."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import concatenate, create_empty_array

from realm.config.keys import AppConfig
from realm.config.load import RunConfig
from realm.learn.evaluation import Player, predictor
from realm.learn.policy import TrainedPolicy
from realm.user import load_agent, load_config_class, load_definition


class Odd(gymnasium.Env[Any, Any]):
    """given: an observation that it gives in place of its space's samples. Its `info` is as odd as those of others."""

    def __init__(self, obs: spaces.Space[Any], action: spaces.Space[Any], given: Any = None) -> None:
        self.observation_space, self.action_space, self.given = obs, action, given
        self.seen: list[Any] = []
        self.took: list[tuple[Any, Any]] = []  # observation and action

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.steps = 0
        return self.look(), {"action_mask": np.ones(3), "path": np.zeros(len(self.seen))}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Any]:
        assert self.action_space.contains(action), action
        self.took.append((self.seen[-1], action))
        self.steps += 1
        own = {"episode": {"r": 5.0, "l": 5, "t": 0.1}} if self.steps == 5 else {}  # as its own recorder reports it
        odd = {"path": np.zeros(len(self.seen)), "at": {"forces": np.zeros((len(self.seen), 2)), "of": ["foot"]}}
        odd |= {"mixed": self.steps if self.steps % 2 else "none", "later": None} if self.steps > 2 else {}
        return self.look(), 1.0, False, self.steps == 5, own | odd

    def look(self) -> Any:
        self.seen.append(self.observation_space.sample() if self.given is None else self.given)
        return self.seen[-1]


def registered(obs: spaces.Space[Any], action: spaces.Space[Any], given: Any = None) -> str:
    name = f"Odd{len(gymnasium.registry)}-v0"
    own = {"obs": obs, "action": action, "given": given}
    gymnasium.register(name, entry_point=Odd, kwargs=own, disable_env_checker=True)
    return name


def batched(space: spaces.Space[Any], obs: list[Any]) -> Any:
    """As vector environments give them."""
    return concatenate(space, obs, create_empty_array(space, len(obs)))


def untrained(package: str, obs: spaces.Space[Any], action: spaces.Space[Any]) -> TrainedPolicy:
    """A policy of a package of the zoo for an environment of these spaces, with new weights."""
    algo, env = f"realm.zoo.{package}", registered(obs, action)
    definition, config = load_definition(algo), load_config_class(algo)(hidden=8)
    envs = definition.make_envs(1, 0, config, {"id": env})
    spec = definition.spec(envs, config)
    agent = load_agent(algo)(spec, config, "cpu", 0)
    player = Player(envs, agent, predictor(agent, spec, 10**6), spec, ())
    return TrainedPolicy(player, RunConfig(AppConfig(algo=algo), {"id": env}, {}, {}))
