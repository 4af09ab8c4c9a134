"""`realm/watch/progress.py`, where no terminal is; what a terminal shows is in `env/test_commands.py`."""

from __future__ import annotations

import re
import time

import pytest

from realm.watch import progress
from tests.console import PROGRESS


def test_long_work_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with progress.busy("preparing"):
        pass
    monkeypatch.setattr(progress, "LONG_S", 0.01)
    with progress.busy("drawing"):
        said, deadline = "", time.monotonic() + 60
        while not said and time.monotonic() < deadline:
            time.sleep(0.01)
            said += capsys.readouterr().err
    assert said == "drawing ...\n"
    assert PROGRESS.sub("", said + "error: no\n") == "error: no\n"


def test_what_is_counted(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with progress.counting("best actions", 2000, "layouts") as show:
        show(1, 3)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.0)
    with progress.counting("best actions", 2000, "layouts") as show:
        show(0, 3)
        show(1500, 3)
    none, some = capsys.readouterr().err.splitlines(keepends=True)
    assert re.fullmatch(r"best actions: 0 of 2,000, [\d,.]+ layouts/s, time left not known yet\n", none)
    assert re.fullmatch(r"best actions: 1,500 of 2,000, [\d,.]+ layouts/s, [\d,]+ s left\n", some)
    assert PROGRESS.sub("", none + some) == ""


def test_a_share_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.0)
    with progress.measuring("the oracle's bounds") as show:
        show(0.05)
        show(0.5)
    early, later = capsys.readouterr().err.splitlines(keepends=True)
    assert early == "the oracle's bounds: 5%, time left not known yet\n"
    assert re.fullmatch(r"the oracle's bounds: 50%, [\d,]+ s left\n", later)
    assert PROGRESS.sub("", early + later) == ""


def test_once_in_a_while() -> None:
    often, seldom = progress.Every(0.01), progress.Every(3600.0)
    assert not seldom.due()
    deadline = time.monotonic() + 60
    begin = time.monotonic()
    while not often.due():
        begin = time.monotonic()
        assert begin < deadline
    while not often.due():
        assert time.monotonic() < deadline
    assert time.monotonic() - begin >= 0.009
    assert not seldom.due()
