"""`realm completion bash|zsh`: a script that completes commands and options in the shell."""

from __future__ import annotations

import argparse

from realm.errors import ConfigError


def print_completion(parser: argparse.ArgumentParser, shell: str) -> int:
    """Print it."""
    try:
        import shtab
    except ImportError:
        raise ConfigError("realm completion needs shtab, which is not installed: pip install shtab") from None
    print(shtab.complete(parser, shell))
    return 0
