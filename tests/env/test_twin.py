"""The kernels against the literal twin, to the bit (`python tests/env_twin.py 1000000` plays a million
steps)."""

from __future__ import annotations

import os

import pytest

from realm.env import map as maps
from tests.env_twin import play_and_compare, rough_map

STEPS = int(os.environ.get("REALM_TWIN_STEPS", "48000")) // 3


@pytest.mark.slow
@pytest.mark.parametrize("name", ["default", "generated", "rough"])
def test_kernels_agree_with_the_twin_to_the_bit(name: str) -> None:
    map_ = {"default": maps.default, "generated": lambda: maps.generate(3), "rough": lambda: rough_map(0)}[name]()
    met = play_and_compare(map_, STEPS, seed=7)
    assert all(count > 0 for what, count in met.items() if what != "both"), met
    assert met["both"] > 0 or name != "rough", met  # a treasure and the end in one step
