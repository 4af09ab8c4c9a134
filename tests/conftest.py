from __future__ import annotations

from pathlib import Path

import pytest

from realm.watch import progress


@pytest.fixture(autouse=True)
def no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands that tests call in their own process say nothing of work going on, however slow the machine is."""
    monkeypatch.setattr(progress, "LONG_S", 3600.0)
    monkeypatch.setattr(progress, "LINE_EVERY_S", 3600.0)


@pytest.fixture(scope="session")
def bounds_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where `realm eval` is called. It keeps the oracle's bounds in its folder, and they take a minute or two."""
    return tmp_path_factory.mktemp("bounds")
