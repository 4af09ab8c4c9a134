"""Both storages of the buffer, for the tests that hold for either, and plans of a flow."""

from typing import Any

import pytest

from realm.config.plan import Plan, preload_samples, this_machine

HAS_REVERB, OWN_NETWORK = this_machine().has_reverb, this_machine().own_network
NEEDS_REVERB = pytest.mark.skipif(not HAS_REVERB, reason="reverb is not installed here")
BACKENDS = ["native", pytest.param("reverb", marks=NEEDS_REVERB)]


def plan_of(preload_ratio: float = 2.0, max_version_lag: Any = None, **numbers: Any) -> Plan:
    """A plan with these numbers, of one worker unless `workers` is one of them."""
    usual = {
        "workers": 1, "evaluator": False, "predict_local": True, "backend": "native", "remover": "Fifo",
        "warm_up_steps": 0, "batch": 1, "ratio": 1.0, "cores": 1, "learner_threads": 1,
        "sampler": "Fifo" if numbers["on_policy"] else "Uniform", "device": "cpu",
    }  # fmt: skip
    lag = {"max_version_lag": 0 if max_version_lag == "part" else max_version_lag}
    fields: dict[str, Any] = {**usual, **numbers, **lag, "publish_early": max_version_lag == "part"}
    preload = preload_samples(fields["capacity"], preload_ratio, fields["batch"], fields["on_policy"])
    return Plan(**fields, preload=preload)
