"""The environment and its shapes: those that TD3 has."""

from realm.zoo.td3.feature.definition import make_envs, spec

__all__ = ["make_envs", "spec"]
