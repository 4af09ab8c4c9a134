from __future__ import annotations

import pytest

from realm.watch import progress


@pytest.fixture(autouse=True)
def no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands that tests call in their own process say nothing of work going on, however slow the machine is."""
    monkeypatch.setattr(progress, "LONG_S", 3600.0)
    monkeypatch.setattr(progress, "LINE_EVERY_S", 3600.0)
