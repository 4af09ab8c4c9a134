"""tools/bench: parts.py and limits.py: all they print is there and makes sense, nothing about speed."""

from __future__ import annotations

import json
import math

import pytest

from realm.errors import ConfigError
from tools.bench import limits, parts

CONFIG = parts.NETWORKS["default"]
QUICK = ("aisrv_count=1", "aisrv_connect_to_kaiwu_env_count=4", "diy.chunk_length=8", "diy.minibatch_size=16")


@pytest.fixture
def make_bench(tmp_path):
    made = []

    def make(network):
        made.append(parts.Bench(network, tmp_path, QUICK))
        made[-1].backends = ["native"]
        return made[-1]

    yield make
    for bench in made:
        bench.end.close()


def check(lines, rounds):
    for one in lines:
        assert one["amount"] > 0, one
        for name in parts.TIMES:
            assert len(one[name]) == rounds, one
            low = 0.0 if name == "cpu_seconds" else 1e-9
            assert all(math.isfinite(value) and value >= low for value in one[name]), one


@pytest.mark.parametrize("network", parts.NETWORKS)
def test_parts_of_one_process_have_times_and_bounds(make_bench, network):
    some = ["env", "codec", "learner", "buffer"] + (["forward"] if network == "default" else [])
    lines = parts.measure(make_bench(network), some, 2, 0.0)
    check(lines, 2)
    assert {one["part"] for one in lines} == set(some)
    assert len({one["name"] for one in lines}) == len(lines)
    table = parts.table(lines)
    assert len(table.splitlines()) == len(lines) + 1
    assert all(one["name"] in table and one["bound"] in table for one in lines)


@pytest.mark.slow
def test_a_round_trip_goes_to_a_real_actor(make_bench):
    lines = parts.measure(make_bench("default"), ["roundtrip"], 1, 0.0)
    check(lines, 1)
    assert [one["part"] for one in lines] == ["roundtrip"]


def test_a_role_that_does_not_start_is_an_error_with_its_log(make_bench):
    bench = make_bench("default")
    (bench.stage._folder / "config.toml").unlink()
    with pytest.raises(ConfigError, match=r"the model_pool did not get ready: [\s\S]*no such file"):
        bench.stage.start("model_pool")


# ---- limits ----


def test_limits_measure_all_three():
    setting = limits.read_setting(CONFIG, QUICK)
    found = limits.measure(setting, 0.03)
    for what in limits.UNITS:
        assert math.isfinite(found[f"s_{what}"])
        assert found[f"s_{what}"] > 0
    assert {(one["what"], one["amount"]) for one in found["rates"]} == {("train", 16), ("infer", 4), ("env", 4)}
    assert {len(one["per_s"]) for one in found["rates"]} == {limits.ROUNDS}
    assert {one["processes"] for one in found["rates"] if one["what"] == "env"} == {setting.plan.cores}
    assert limits.table(found).count("best") == 3
    assert json.loads(json.dumps(found)) == found


def test_every_number_of_threads_is_tried_on_few_cores():
    assert limits.numbers_of_threads(3) == [1, 2, 3]
    assert limits.numbers_of_threads(12) == [1, 2, 4, 8, 12]


def test_eta_is_one_when_a_run_does_nothing_else():
    known = {"s_train": 30_000.0, "s_infer": 50_000.0, "s_env": 200_000.0, "s_learn": 1.0}
    alone = 1 / (3 / 30_000 + 1 / 50_000 + 1 / 200_000)
    assert limits.eta(alone, 3, known) == pytest.approx(1.0)
    assert limits.eta(alone / 4, 3, known) == pytest.approx(0.25)


def test_limits_refuse_what_they_cannot_measure():
    with pytest.raises(ConfigError, match="algo is 'cart'"):
        limits.read_setting(CONFIG, ["algo=cart"])
    with pytest.raises(ConfigError, match="treasure_num"):
        limits.read_setting(CONFIG, ["env.treasure_num=99"])


def agents_steps(agent, obs, count):
    """`count` gradient steps as the agent makes them: the one place here that uses its internals."""
    import torch

    from realm import returns
    from realm.algorithms.batch import Batch

    seen = {name: torch.from_numpy(array) for name, array in obs.items()}
    action = torch.multinomial(seen["legal"].float(), 1).squeeze(-1)
    advantage, target = (torch.randn(len(action)) for _ in range(2))
    with torch.no_grad():
        logits, value = agent.model(seen)
        old = returns.masked_log_softmax(logits, seen["legal"]).gather(-1, action[:, None]).squeeze(-1)
    rows = Batch(seen, None, action, old, old, value, advantage, target)
    for _ in range(count):
        agent.ppo.gradient_step(rows, agent.config.schedule(0))


def test_the_limits_step_is_diys_own_loss():
    """On the same rows, both ways to take steps lead to the same weights. But for the length of gradients, which the
    agent bounds for each network, so here it has no bound."""
    import torch

    setting = limits.read_setting(CONFIG, [*QUICK, "diy.precision=fp32", "diy.max_grad_norm=1e9"])
    obs, mine, other = limits.observations(setting, 16), setting.agent(), setting.agent()
    torch.manual_seed(0)
    step = limits.make_gradient_step(mine, setting.hyper, obs)
    for _ in range(8):
        step()
    torch.manual_seed(0)
    agents_steps(other, obs, 8)
    for one, two in zip(mine.model.parameters(), other.model.parameters(), strict=True):
        torch.testing.assert_close(one, two)
