"""Errors that a user can cause: each is one sentence and ends its process with exit code 2.

Raised everywhere, caught at the top of a process (`commands/main.py`, `launch/child.py`). A restart does not help: the
configuration, the user's code or a file must change first.
"""

from __future__ import annotations


class UserError(ValueError):
    """The user must change something; the text says in one sentence what is wrong, where, and what to do."""


class ConfigError(UserError):
    """A key, an option or a file name is wrong."""


class UserCodeError(UserError):
    """The user's package lacks something, or raises where the framework calls it."""


class CheckpointError(UserError):
    """A checkpoint cannot be used; the text names the file."""


class ContractError(UserError):
    """An array, a Spec or a message breaks the contract; the text names the field and both sides."""
