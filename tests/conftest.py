from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest
from loguru import logger

from realm.watch import progress

# Ignored under nohup, and in what a script starts in the background: whatever tests start would inherit that
for _number, _handler in ((signal.SIGHUP, lambda number, frame: None), (signal.SIGINT, signal.default_int_handler)):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _handler)


@pytest.fixture(autouse=True)
def no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands that tests call in their own process say nothing of work going on, however slow the machine is."""
    monkeypatch.setattr(progress, "LONG_S", 3600.0)
    monkeypatch.setattr(progress, "LINE_EVERY_S", 3600.0)


@pytest.fixture
def logged() -> Iterator[list[str]]:
    """What is logged, line by line, each with its level in front."""
    lines: list[str] = []
    number = logger.add(lambda text: lines.append(str(text).rstrip("\n")), format="{level} {message}")
    yield lines
    logger.remove(number)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long ones begin first, so that at the end no process has a long one left while the others have none."""
    items.sort(key=lambda item: (item.get_closest_marker("slow") is None, item.get_closest_marker("system") is None))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """The tests of the oracle run in one process, which compiles it and makes what they share; others are dealt singly.

    This is what `--dist loadgroup` is for, but xdist 3.8 does not find its groups with pytest 9.2.
    """
    from xdist.scheduler import LoadScopeScheduling  # late: without xdist nobody calls this

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "oracle" if "oracle" in nodeid else nodeid

    return Scheduling(config, log)
