"""The counting user's workflow: the evaluated user has no need of another."""

from tests.counting.train_workflow import workflow

__all__ = ["workflow"]
