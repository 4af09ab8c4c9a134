"""Both storages of the buffer, for the tests that hold for either."""

import pytest

from realm.config.plan import this_machine

HAS_REVERB, OWN_NETWORK = this_machine().has_reverb, this_machine().own_network
NEEDS_REVERB = pytest.mark.skipif(not HAS_REVERB, reason="reverb is not installed here")
BACKENDS = ["native", pytest.param("reverb", marks=NEEDS_REVERB)]
