"""The workflow that everybody starts with: the counting user has no need of another."""

from diy.train_workflow import workflow

__all__ = ["workflow"]
