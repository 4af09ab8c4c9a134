"""realm/launch/plan.py and realm/plan.py: every `auto` on every machine, and numbers that fit together."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import importlib.util
import json
import re
from typing import Any

import pytest

from realm.config.flow import check_flow
from realm.config.keys import AppConfig
from realm.config.plan import Machine, Plan, make_plan, slow_choices, this_machine
from realm.contract import ActionSpec, Field, Spec
from realm.data.buffer import make_replay_buffer
from realm.data.native import NativeStorage
from realm.errors import ConfigError

SMALL = Machine(cores=2, gpus=0, has_reverb=True)
LARGE = Machine(cores=32, gpus=0, has_reverb=True)
GPU = Machine(cores=16, gpus=1, has_reverb=False)
OFF_POLICY: dict[str, Any] = {"algorithm_on_policy_or_off_policy": "off-policy", "reverb_sampler": "Uniform"}


def plan(machine: Machine = SMALL, **keys: Any) -> Plan:
    return make_plan(AppConfig(**keys), machine)


def test_one_core_alternates_strictly() -> None:
    one = plan(Machine(1, 0, True))
    assert (one.workers, one.envs_per_worker, one.batch, one.round_size) == (1, 64, 64, 64)
    assert one.max_version_lag == 0
    assert one.preload == one.batch
    assert one.capacity >= one.batch + one.round_size
    assert (one.on_policy, one.sampler, one.ratio) == (True, "Fifo", 1.0)
    assert (one.backend, one.device, one.learner_threads, one.predict_local) == ("reverb", "cpu", 1, True)
    assert any(re.match(r"max_version_lag = 0: ", reason) for reason in one.why)


def test_who_asks_for_no_lag_gets_all_cores_for_play_and_then_for_training() -> None:
    for cores, remote in ((1, 2), (2, 2), (4, 2)):
        one = plan(Machine(cores, 0, True), max_version_lag=0)
        assert (one.workers, one.round_size, one.learner_threads) == (cores, 128 if cores > 2 else 64, cores)
        other = plan(Machine(cores, 0, True), max_version_lag=0, predict_local_or_remote="remote")
        assert (other.workers, other.learner_threads) == (remote, cores)


def test_two_cores_and_more_overlap() -> None:
    for cores, workers in ((2, 1), (4, 1), (8, 2), (32, 8), (128, 16)):
        one = plan(Machine(cores, 0, True))
        assert (one.workers, one.learner_threads) == (workers, max(2, cores - workers))
        assert (one.max_version_lag, one.publish_early) == ((1, False) if cores > 2 else (0, True))
        assert one.round_size == (128 if cores > 2 else 64)
        actor = plan(Machine(cores, 0, True), predict_local_or_remote="remote")
        assert actor.learner_threads == max(2, cores - workers - 1)
    assert plan(Machine(10, 1, True)).workers == 8


def test_weights_go_out_early_where_everybody_shares_two_cores() -> None:
    one = plan(SMALL)
    assert "max_version_lag = part: the next round is played beside the last steps on this one" in one.why
    assert slow_choices(AppConfig(), one) == []
    for keys in (
        {"algo": "tests.evaluated"},
        {"algo": "nowhere"},
        {"train_batch_size": 256},
        {"wrapper_type": "local"},
    ):
        other = plan(SMALL, **keys)  # whose agent cannot, whose rounds are no batch, or where nobody waits
        assert (other.max_version_lag, other.publish_early) == (1, False), keys
    for machine, threads in ((Machine(1, 0, True), 1), (SMALL, 2), (LARGE, 32 - 8), (GPU, 1)):
        asked = plan(machine, max_version_lag="part")
        assert (asked.max_version_lag, asked.publish_early) == (0, True)
        assert asked.learner_threads >= threads
        assert slow_choices(AppConfig(max_version_lag="part"), asked) == []
    assert plan(LARGE, flow="alternating", max_version_lag="part").learner_threads == 32 - 16


def test_a_gpu_is_used_and_reverb_only_where_it_is() -> None:
    one = plan(GPU)
    assert (one.device, one.backend) == ("cuda", "native")
    assert plan(Machine(2, 1, True)).max_version_lag == 1  # a GPU trains while the cores play
    assert plan(GPU, device="cpu").device == "cpu"
    assert (one.predict_local, plan(GPU, device="cpu").predict_local) == (False, True)
    assert plan(GPU, predict_local_or_remote="local").predict_local
    assert not plan(SMALL, predict_local_or_remote="remote").predict_local
    assert plan(SMALL, buffer_backend="native").backend == "native"


def test_one_process_needs_neither_reverb_nor_workers() -> None:
    one = plan(LARGE, wrapper_type="local", aisrv_count=7)
    assert (one.workers, one.backend, one.predict_local) == (1, "native", True)
    assert one.learner_threads == 32
    assert one.batch == one.round_size == one.envs_per_worker


def test_off_policy_is_free_of_versions() -> None:
    one = plan(**OFF_POLICY)
    assert (one.on_policy, one.max_version_lag) == (False, None)
    assert one.capacity >= 10 * one.batch


def test_what_was_asked_for_is_taken() -> None:
    asked: dict[str, Any] = {
        "aisrv_count": 3, "aisrv_connect_to_kaiwu_env_count": 5, "train_batch_size": 30, "replay_buffer_capacity": 90,
        "preload_ratio": 2.0, "max_version_lag": 2, "torch_num_threads": 7, "device": "cuda:1", "flow": "overlapping",
        "buffer_backend": "native", "predict_local_or_remote": "local", "max_unacked_rounds": 2,
        "reverb_sampler": "Fifo",
    }  # fmt: skip
    one = plan(GPU, **asked)
    assert (one.workers, one.envs_per_worker, one.batch, one.capacity, one.preload) == (3, 5, 30, 90, 45)
    assert (one.max_version_lag, one.learner_threads, one.device, one.backend) == (2, 7, "cuda:1", "native")
    assert (one.predict_local, one.max_unacked_rounds) == (True, 2)
    assert one.why == ()
    assert plan(max_version_lag="free").max_version_lag is None


def test_a_batch_that_is_no_whole_rounds_has_no_bound() -> None:
    assert plan(train_batch_size=100).max_version_lag is None
    assert plan(train_batch_size=256).max_version_lag == 1


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({"device": "cuda:1"}, "device is cuda:1, but there is no GPU .*allowed is auto or cpu"),
        ({"max_version_lag": "part", "train_batch_size": 256}, r"max_version_lag is part and .*256.*allowed is .*= 64"),
        ({**OFF_POLICY, "max_version_lag": "part"}, r"max_version_lag is part, .*allowed is free"),
        ({"max_version_lag": 0, "train_batch_size": 256}, r"max_version_lag is 0 .*256.*allowed is .*= 64"),
        ({"max_version_lag": 3, "train_batch_size": 100}, r"train_batch_size is 100, .*lag 3 .*multiple of 64"),
        ({"replay_buffer_capacity": 127}, r"replay_buffer_capacity is 127, .*64 .*at least 128"),
        ({"replay_buffer_capacity": 1000}, r"training starts at 500 .*1000 / preload_ratio 2.*only 64"),
        ({"production_consume_ratio": 2.0}, r"production_consume_ratio is 2, .*allowed is 1 "),
        ({"reverb_sampler": "Uniform"}, r"reverb_sampler is Uniform, .*allowed is Fifo"),
        ({**OFF_POLICY, "reverb_sampler": "Fifo"}, r"reverb_sampler is Fifo, .*Uniform or Prioritized"),
        ({**OFF_POLICY, "max_version_lag": 2}, r"max_version_lag is 2, .*allowed is free"),
        ({**OFF_POLICY, "reverb_remover": "Lifo"}, r"reverb_remover is Lifo"),
    ],
)
def test_what_cannot_work_is_said_with_numbers(keys: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text) as caught:
        plan(**keys)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("cores", [1, 2, 3, 4, 5, 8, 17, 64, 256])
@pytest.mark.parametrize("gpus", [0, 1, 8])
def test_defaults_work_on_every_machine(cores: int, gpus: int) -> None:
    modes: list[dict[str, Any]] = [
        {}, OFF_POLICY, {"wrapper_type": "local"}, {"wrapper_type": "local", **OFF_POLICY}, {"flow": "overlapping"},
        {"flow": "alternating"}, {"max_version_lag": "free"}, {"aisrv_count": 3},
        {"aisrv_count": 5, "flow": "alternating"}, {"aisrv_connect_to_kaiwu_env_count": 7}, {"train_batch_size": 1000},
        {"train_batch_size": 10}, {"predict_local_or_remote": "local"}, {"max_version_lag": 1}, {"max_version_lag": 4},
        {"max_version_lag": "part"},
    ]  # fmt: skip
    for keys in modes:
        one = plan(Machine(cores, gpus, has_reverb=True), **keys)
        check_flow(
            policy="on-policy" if one.on_policy else "off-policy", sampler=one.sampler, remover=one.remover,
            capacity=one.capacity, preload_ratio=one.capacity / one.preload, train_batch_size=one.batch,
            ratio=one.ratio, round_size=one.round_size, max_version_lag=one.max_version_lag,
        )  # fmt: skip
        assert one.workers >= 1
        assert one.envs_per_worker >= 1
        assert 1 <= one.learner_threads <= cores
        assert one.batch <= one.preload <= one.capacity
        assert one.device == ("cuda" if gpus else "cpu")
        for reason in one.why:
            key = reason.partition(" = ")[0]
            assert key in AppConfig.__dataclass_fields__, reason
            assert key not in keys, f"{reason}: but it was asked for"


def test_reverb_where_it_is_not() -> None:
    with pytest.raises(ConfigError, match=r"buffer_backend is reverb, which is not installed .*auto or native"):
        plan(GPU, buffer_backend="reverb")
    assert plan(GPU, buffer_backend="reverb", wrapper_type="local").backend == "native"


def test_torch_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_there(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", none_there)
    with pytest.raises(ConfigError, match=r"^torch is not installed"):
        this_machine()


def test_the_learner_has_all_cores_only_while_everybody_waits() -> None:
    assert plan(SMALL, flow="alternating").learner_threads == 2
    for lag in (1, "free"):  # two in any case where there are two cores: one for the policy, one for the critic
        assert plan(SMALL, flow="alternating", max_version_lag=lag).learner_threads == 2
    assert plan(LARGE, flow="alternating", max_version_lag=1).learner_threads == 32 - 16
    assert plan(SMALL, flow="alternating", max_version_lag=1, wrapper_type="local").learner_threads == 2


def test_this_machine() -> None:
    machine = this_machine()
    assert machine.cores >= 1
    assert machine.gpus >= 0
    assert machine.has_reverb == (importlib.util.find_spec("reverb") is not None)


def test_a_plan_survives_json() -> None:
    for one in (plan(), plan(GPU, **OFF_POLICY), plan(wrapper_type="local")):
        assert Plan.from_json(json.loads(json.dumps(one.to_json()))) == one


def test_a_plans_buffer_has_its_numbers() -> None:
    spec = Spec({"x": Field((2,), "float32")}, ActionSpec(n=3), {}, chunk_length=2)
    one = dataclasses.replace(plan(max_version_lag=1, train_batch_size=256), backend="native")
    buffer = make_replay_buffer(one, spec, "run", 0)
    assert isinstance(buffer.storage, NativeStorage)
    limiter = buffer.limiter
    assert (limiter.once, limiter.capacity, limiter.preload, limiter.batch) == (True, one.capacity, one.preload, 256)
    assert (limiter.ratio, limiter.ahead) == (one.ratio, one.round_size)
    assert buffer.fields == spec.sample_fields


def test_the_sampler_follows_the_policy() -> None:
    assert plan().sampler == "Fifo"
    assert plan(algorithm_on_policy_or_off_policy="off-policy").sampler == "Uniform"


@pytest.mark.parametrize(
    ("machine", "keys", "word"),
    [
        (SMALL, {"aisrv_count": 16}, "aisrv_count is 16"),
        (SMALL, {"torch_num_threads": 16}, "torch_num_threads is 16"),
        (SMALL, {"aisrv_count": 1, "aisrv_connect_to_kaiwu_env_count": 4}, "there are 4 environments in all"),
        (SMALL, {"predict_local_or_remote": "remote"}, "predict_local_or_remote is remote"),
        (GPU, {"predict_local_or_remote": "local"}, "predict_local_or_remote is local"),
        (GPU, {"predict_batch_size": 2}, "predict_batch_size is 2"),
        (SMALL, {"max_version_lag": 0}, "max_version_lag is 0"),
        (LARGE, {"max_version_lag": 0}, "max_version_lag is 0"),
    ],
)
def test_slow_choices_are_warned_of(machine: Machine, keys: dict[str, Any], word: str) -> None:
    app = AppConfig(**keys)
    (sentence,) = slow_choices(app, make_plan(app, machine))
    assert sentence.startswith(word)


@pytest.mark.parametrize("machine", [SMALL, LARGE, GPU, Machine(1, 0, False)])
@pytest.mark.parametrize("wrapper_type", ["local", "remote"])
def test_the_tuner_chooses_nothing_slow(machine: Machine, wrapper_type: Any) -> None:
    app = AppConfig(wrapper_type=wrapper_type)
    assert slow_choices(app, make_plan(app, machine)) == []
