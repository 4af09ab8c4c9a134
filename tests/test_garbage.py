"""No garbage collection while a process starts, and collection as usual afterwards, whatever happens.

That roles collect again when they work is in tests/counting, whose agent looks at each update.
"""

import gc
import weakref

import pytest

from realm import garbage


class Knot:
    """Garbage that only the collector finds."""

    def __init__(self):
        self.itself = self


def thrown_away():
    return weakref.ref(Knot())


@pytest.fixture(autouse=True)
def as_before():
    yield
    gc.enable()
    gc.unfreeze()


def test_held_collects_nothing_within_and_as_usual_afterwards():
    threshold = gc.get_threshold()
    gc.set_threshold(10)
    try:
        with garbage.held():
            knot = thrown_away()
            kept = [[] for _ in range(1000)]  # more than the threshold
            assert knot() is not None
            assert not gc.isenabled()
        assert gc.isenabled()
        knot = thrown_away()
        kept += [[] for _ in range(1000)]
        assert knot() is None
    finally:
        gc.set_threshold(*threshold)


def test_what_was_there_when_it_resumed_is_not_looked_at_again():
    kept = [[] for _ in range(1000)]
    with garbage.held():
        pass
    assert gc.get_freeze_count() > len(kept)


def test_an_error_within_does_not_leave_it_held():
    with pytest.raises(KeyError), garbage.held():
        raise KeyError
    assert gc.isenabled()
