"""The workflow that everybody starts with: the evaluated user has no need of another."""

from diy.train_workflow import workflow

__all__ = ["workflow"]
