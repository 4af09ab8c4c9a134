"""Python's garbage collector waits while a process starts.

Nothing that is imported is garbage, and yet the collector would go through all of it time and again: a sixth of a
cluster's start, and a full pass over it now and then for as long as the process lives.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


def hold() -> None:
    """No collection until `resume`."""
    gc.disable()


def resume() -> None:
    """Collect as usual, but never look again at what is there now: cycles that a start threw away stay, too. To find
    them would take a full pass, a tenth of a second, for some thousand small objects."""
    gc.freeze()
    gc.enable()


@contextmanager
def held() -> Iterator[None]:
    """No collection within."""
    hold()
    try:
        yield
    finally:
        resume()
