"""Broken input at every door of a run (tests/fuzz.py): some cases of each; tools/soak.sh plays 100,000."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from loguru import logger

from tests import fuzz


@pytest.mark.parametrize("door", fuzz.DOORS)
def test_broken_input_is_refused(door: str, tmp_path: Path) -> None:
    logger.disable("realm")
    try:
        row = fuzz.play(door, tmp_path, 200, seed=0)
    finally:
        logger.enable("realm")
    assert 0 < row.refused <= row.cases


def test_what_a_door_must_not_do_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(cases: fuzz.Cases, folder: Path) -> None:
        while cases.more():
            if cases.draw.random() < 0.02:
                raise KeyError("version")

    def hanging(cases: fuzz.Cases, folder: Path) -> None:
        while cases.more():
            until = time.process_time() + (1.1 if cases.done == 60 else 0)
            while time.process_time() < until:
                pass

    def greedy(cases: fuzz.Cases, folder: Path) -> None:
        kept = []
        while cases.more():
            kept.append(bytearray(10**6) if cases.done > 60 else b"")

    for door, what in ((broken, "KeyError: 'version'"), (hanging, "s of CPU time"), (greedy, "memory has grown by")):
        monkeypatch.setitem(fuzz.DOORS, "x", door)
        with pytest.raises(fuzz.Failed, match=rf"x, seed 1, case \d+: .*{what}"):
            fuzz.play("x", tmp_path, 1000, seed=1)
