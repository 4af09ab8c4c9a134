"""tools/bench/parts.py: all it prints is there and makes sense, nothing about speed."""

from __future__ import annotations

import pytest

from realm.errors import ConfigError
from tools.bench import parts

QUICK = ("aisrv_count=1", "aisrv_connect_to_kaiwu_env_count=4", "{}.chunk_length=8", "{}.minibatch_size=16")


@pytest.mark.parametrize("network", parts.NETWORKS)
def test_parts_have_times_and_bounds(network):
    if network == "pong":
        pytest.importorskip("ale_py")
    bench = parts.Bench(network, [one.format("ppo" if network == "pong" else "diy") for one in QUICK])
    bench.backends = ["native"]
    some = ["env", "learner", "buffer"] + (["forward"] if network != "reference" else [])
    lines = [line for part in some for line in parts.PARTS[part](bench)]
    times = parts.measure(lines, 2, 0.0)
    assert len(times) == 2 * len(lines)
    assert all(list(of) == [1, 2] and min(of.values()) > 0 for of in times.values())
    table = parts.table(lines, times)
    assert len(table.splitlines()) == len(lines) + 1 == len({line.name for line in lines}) + 1
    assert all(line.name in table and line.bound in table and line.amount > 0 for line in lines)


def test_what_cannot_be_measured_is_refused():
    with pytest.raises(ConfigError, match=r"algo is .realm\.zoo\.cartpole."):
        parts.Bench("default", ["algo=realm.zoo.cartpole"])
    with pytest.raises(ConfigError, match="treasure_num"):
        parts.Bench("default", ["env.treasure_num=99"])
