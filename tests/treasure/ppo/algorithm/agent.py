"""Two MLPs and PPO, as in the zoo."""

from realm.zoo.ppo.algorithm.agent import Agent

__all__ = ["Agent"]
