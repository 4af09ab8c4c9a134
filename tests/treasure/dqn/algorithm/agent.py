"""An MLP and Q-learning, as in the zoo."""

from realm.zoo.dqn.algorithm.agent import Agent

__all__ = ["Agent"]
