"""realm/config/plan.py: every `auto` on every machine, and numbers that fit together."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import importlib.util
from pathlib import Path
from typing import Any

import pytest

from diy.config import preferred
from realm.config import plan as plan_module
from realm.config.keys import AppConfig
from realm.config.load import RunConfig, load_config, to_toml
from realm.config.plan import (
    Decided,
    Machine,
    Plan,
    decide,
    make_plan,
    slow_choices,
    stale_choice,
    this_machine,
    with_replay,
)
from realm.contract import ActionSpec, Field, Spec
from realm.data.buffer import make_replay_buffer
from realm.data.native import NativeStorage
from realm.errors import ConfigError

SMALL = Machine(cores=2, gpus=0, has_reverb=True)
LARGE = Machine(cores=32, gpus=0, has_reverb=True)
GPU = Machine(cores=16, gpus=1, has_reverb=False)
OFF_POLICY: dict[str, Any] = {"algorithm_on_policy_or_off_policy": "off-policy", "reverb_sampler": "Uniform"}


def plan(machine: Machine = SMALL, **keys: Any) -> Plan:
    return make_plan(decide(AppConfig(**keys), machine, preferred).app, machine.cores)


def why(machine: Machine = SMALL, **keys: Any) -> dict[str, str]:
    return decide(AppConfig(**keys), machine, preferred).why


def test_one_core_alternates_strictly() -> None:
    one = plan(Machine(1, 0, True))
    assert (one.workers, one.envs_per_worker, one.batch, one.round_size) == (1, 64, 64, 64)
    assert one.max_version_lag == 0
    assert one.preload == one.batch
    assert one.capacity >= one.batch + one.round_size
    assert (one.on_policy, one.sampler, one.ratio) == (True, "Fifo", 1.0)
    assert (one.backend, one.device, one.learner_threads, one.predict_local) == ("reverb", "cpu", 1, True)
    assert why(Machine(1, 0, True))["max_version_lag"] == "every batch is of one version"
    measured = why(Machine(1, 0, True))["aisrv_connect_to_kaiwu_env_count"]
    assert measured.startswith("diy prefers it, as measured on two cores")
    assert "AVX-512" in measured  # the kind of CPU


def test_hosts_get_a_worker_for_each_core_or_their_share() -> None:
    three = Machine(2, 0, False, host_cores=(4, 8))
    alone, decided = decide(AppConfig(), Machine(2, 0, False)), decide(AppConfig(), three)
    assert decided.dealt == (alone.app.aisrv_count, 4, 8)
    assert decided.app.aisrv_count == sum(decided.dealt)
    assert decided.app.torch_num_threads == alone.app.torch_num_threads  # only its own workers share the head's cores
    assert decided.why["aisrv_count"].startswith("1 here (")
    for count in (1, 5, 13, 40):
        dealt = decide(AppConfig(aisrv_count=count), three).dealt
        assert sum(dealt) == count
        assert all(abs(one - count * share / 13) < 1 for one, share in zip(dealt, (1, 4, 8), strict=True))
    assert alone.dealt == (alone.app.aisrv_count,)
    assert decide(AppConfig(max_version_lag=0), Machine(2, 0, False, host_cores=(2,))).dealt == (2, 2)
    many = plan(Machine(2, 0, False, host_cores=(64,)))
    assert not any("aisrv_count" in one for one in slow_choices(AppConfig(), many, here=1))


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
        assert actor.learner_threads == max(2, cores - workers - (workers > 1))
    assert plan(Machine(10, 1, True)).workers == 8


def test_weights_go_out_early_where_everybody_shares_two_cores() -> None:
    one = plan(SMALL)
    assert why()["max_version_lag"] == "workers collect the next round while the learner finishes this update"
    assert slow_choices(AppConfig(), one) == []
    for keys in ({"train_batch_size": 256}, {"wrapper_type": "local"}):
        other = plan(SMALL, **keys)  # rounds are no batch, or nobody waits
        assert (other.max_version_lag, other.publish_early) == (1, False), keys
    other = make_plan(decide(AppConfig(), SMALL).app, 2)  # a package that prefers nothing
    assert (other.max_version_lag, other.publish_early, other.round_size) == (1, False, 64)
    for machine, threads in ((Machine(1, 0, True), 1), (SMALL, 2), (LARGE, 32 - 8), (GPU, 1)):
        asked = plan(machine, max_version_lag="part")
        assert (asked.max_version_lag, asked.publish_early) == (0, True)
        assert asked.learner_threads >= threads
        assert slow_choices(AppConfig(max_version_lag="part"), asked) == []
    assert plan(LARGE, flow="alternating", max_version_lag="part").learner_threads == 32 - 16


def test_samples_of_any_age_are_warned_of_unless_they_were_asked_for() -> None:
    cases: list[tuple[dict[str, Any], bool]] = [
        ({"train_batch_size": 7}, True),
        ({"train_batch_size": 7, "wrapper_type": "local"}, True),
        ({"train_batch_size": 7, "max_version_lag": "free"}, False),
        ({"train_batch_size": 128}, False),
        ({"algorithm_on_policy_or_off_policy": "off-policy"}, False),
    ]
    for keys, warns in cases:
        decided = decide(AppConfig(**keys), SMALL)
        sentence = stale_choice(decided, make_plan(decided.app, 2))
        assert ("train_batch_size 7 is not a whole number of rounds" in sentence) == warns, keys
        assert not warns or "Choose train_batch_size = 64" in sentence


def test_a_gpu_is_used_and_reverb_only_where_it_is() -> None:
    one = plan(GPU)
    assert (one.device, one.backend) == ("cuda", "native")
    assert plan(Machine(2, 1, True)).max_version_lag == 1  # a GPU trains while the cores play
    assert plan(GPU, device="cpu").device == "cpu"
    assert (one.predict_local, plan(GPU, device="cpu").predict_local) == (False, True)
    assert plan(GPU, predict_local_or_remote="local").predict_local
    assert not plan(LARGE, predict_local_or_remote="remote").predict_local


def test_an_actor_on_the_cpu_serves_one_worker_with_many_environments() -> None:
    assert not plan().predict_local
    off_policy = {"algorithm_on_policy_or_off_policy": "off-policy", "aisrv_connect_to_kaiwu_env_count": 64}
    for keys in ({"aisrv_count": 2}, {"aisrv_connect_to_kaiwu_env_count": 63}, off_policy, {"flow": "alternating"}):
        assert plan(**keys).predict_local, keys
    assert plan(LARGE).predict_local
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


def test_off_policy_one_environment_and_one_thread_are_enough() -> None:
    for machine in (SMALL, LARGE):
        decided = decide(AppConfig(**OFF_POLICY, train_batch_size=5120), machine)
        one = make_plan(decided.app, machine.cores)
        assert (one.envs_per_worker, one.learner_threads, decided.app.dump_model_freq) == (1, 1, 0)
        assert not [sentence for sentence in slow_choices(decided.app, one) if "environments in all" in sentence]
    assert decide(AppConfig(), SMALL).app.dump_model_freq == 100
    assert make_plan(decide(AppConfig(**OFF_POLICY, device="cuda"), GPU).app).learner_threads > 1


def test_a_replay_memory_is_as_large_as_is_of_use() -> None:
    decided = decide(AppConfig(**OFF_POLICY), SMALL)
    for step, usable, steps in ((130, 16 << 30, 1_000_000), (8000, 4 << 30, 268_435), (8000, 1000, 32)):
        app = with_replay(decided, step, usable, 256).app
        assert (app.replay_buffer_capacity, app.warm_up_steps) == (steps, min(1000, steps // 2))
        assert app.train_batch_size == min(256, steps)
    short = decide(AppConfig(**OFF_POLICY, max_env_steps=300), SMALL)
    assert make_plan(with_replay(short, 130, 16 << 30, 1).app).warm_up_steps == 150
    with pytest.raises(ConfigError, match="max_env_steps is 300"):
        make_plan(decide(AppConfig(**OFF_POLICY, max_env_steps=300, warm_up_steps=300), SMALL).app)
    many = decide(AppConfig(**OFF_POLICY, wrapper_type="local", aisrv_connect_to_kaiwu_env_count=300), SMALL)
    assert with_replay(many, 130, 16 << 30, 128).app.train_batch_size == 128  # no gradient step of what is left over
    asked = decide(AppConfig(**OFF_POLICY, replay_buffer_capacity=500, warm_up_steps=0, train_batch_size=8), SMALL)
    assert with_replay(asked, 130, 16 << 30, 256) == asked


def test_what_was_asked_for_is_taken() -> None:
    asked: dict[str, Any] = {
        "aisrv_count": 3, "aisrv_connect_to_kaiwu_env_count": 5, "train_batch_size": 30, "replay_buffer_capacity": 90,
        "preload_ratio": 2.0, "max_version_lag": 2, "torch_num_threads": 7, "device": "cuda:0", "flow": "overlapping",
        "buffer_backend": "native", "predict_local_or_remote": "local",
        "reverb_sampler": "Fifo", "warm_up_steps": 0, "dump_model_freq": 5,
    }  # fmt: skip
    one = plan(GPU, **asked)
    assert (one.workers, one.envs_per_worker, one.batch, one.capacity, one.preload) == (3, 5, 30, 90, 45)
    assert (one.max_version_lag, one.learner_threads, one.device, one.backend) == (2, 7, "cuda:0", "native")
    assert one.predict_local
    assert why(GPU, **asked) == {}
    assert plan(max_version_lag="free").max_version_lag is None


def test_a_batch_that_is_no_whole_rounds_has_no_bound() -> None:
    assert plan(train_batch_size=100).max_version_lag is None
    assert plan(train_batch_size=256).max_version_lag == 1


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({"device": "cuda:1"}, "device is cuda:1, but there is no GPU .*must be auto or cpu"),
        ({"max_version_lag": "part", "train_batch_size": 256}, r"max_version_lag is part and .*256.*must be 64"),
        ({**OFF_POLICY, "max_version_lag": "part"}, r"max_version_lag is part, .*must be free"),
        ({"max_version_lag": 0, "train_batch_size": 256}, r"max_version_lag is 0 .*256.*must be 64"),
        ({"max_version_lag": 3, "train_batch_size": 100}, r"train_batch_size is 100, .*lag 3 .*multiple of 64"),
        ({"replay_buffer_capacity": 127}, r"replay_buffer_capacity is 127, .*64 .*at least 128"),
        ({"replay_buffer_capacity": 1000}, r"training starts at 500 .*1000 / preload_ratio 2.*only 64"),
        ({"production_consume_ratio": 2.0}, r"production_consume_ratio is 2, .*must be 1 "),
        ({"reverb_sampler": "Uniform"}, r"reverb_sampler is Uniform, .*must be Fifo"),
        ({**OFF_POLICY, "reverb_sampler": "Fifo"}, r"reverb_sampler is Fifo, .*Uniform or Prioritized"),
        ({**OFF_POLICY, "max_version_lag": 2}, r"max_version_lag is 2, .*must be free"),
        ({**OFF_POLICY, "reverb_remover": "Lifo"}, r"reverb_remover is Lifo"),
    ],
)
def test_what_cannot_work_is_said_with_numbers(keys: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text) as caught:
        plan(**keys)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("visible", "there"), [(None, 3), ("", 0), ("-1", 0), ("2", 1), ("0, 1", 2), ("0,-1,1", 1), ("0,1,2,3,4", 3)]
)
def test_gpus_that_are_hidden_do_not_count(
    visible: str | None, there: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("nvidia0", "nvidia1", "nvidia2", "nvidiactl"):
        (tmp_path / name).touch()
    monkeypatch.setattr(plan_module, "Path", lambda path: tmp_path if path == "/dev" else Path(path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert plan_module.gpus() == there


@pytest.mark.parametrize(
    ("gpus", "keys", "text"),
    [
        (1, {}, r"^learner_count is 2, device auto, and there are 1 GPUs, one for a learner; it must be at most that"),
        (0, {}, r"there are 0 GPUs.*or device cpu for tests$"),
        (2, {"device": "cuda:1"}, r"device cuda:1, and .*with device auto"),
        (
            2,
            {"aisrv_count": 1, "aisrv_connect_to_kaiwu_env_count": 9},
            r"a batch has 9 chunks.*divide train_batch_size$",
        ),
        (2, {"aisrv_count": 1, "aisrv_connect_to_kaiwu_env_count": 1}, r"a batch has 1 chunks"),
    ],
)
def test_learners_that_cannot_train_as_one(gpus: int, keys: dict[str, Any], text: str) -> None:
    machine = dataclasses.replace(SMALL, gpus=gpus)
    with pytest.raises(ConfigError, match=text):
        plan(machine, learner_count=2, **keys)
    assert plan(dataclasses.replace(SMALL, gpus=2), learner_count=2).learners == 2
    for other in ({"wrapper_type": "local"}, {"algorithm_on_policy_or_off_policy": "off-policy"}):
        with pytest.raises(ValueError, match=r"^learner_count is 2, but .*; it must be 1$"):
            AppConfig(learner_count=2, **other)  # type: ignore[arg-type]


def test_devices_that_are_not_here() -> None:
    with pytest.raises(ConfigError, match=r"^device is cuda:1, but the GPUs here end with cuda:0"):
        decide(AppConfig(device="cuda:1"), GPU)
    with pytest.raises(ConfigError, match=r"^device is mps, which only macOS has"):
        decide(AppConfig(device="mps"), SMALL)


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
        one = plan(Machine(cores, gpus, has_reverb=True), **keys)  # whose numbers work together
        assert one.workers >= 1
        assert one.envs_per_worker >= 1
        assert 1 <= one.learner_threads <= cores
        assert one.batch <= one.preload <= one.capacity
        assert one.device == ("cuda" if gpus else "cpu")
        reasons = why(Machine(cores, gpus, has_reverb=True), **keys)
        assert not reasons.keys() & keys.keys(), "it was asked for"
        assert all(reasons.values())


def test_reverb_where_it_is_not() -> None:
    with pytest.raises(ConfigError, match=r"buffer_backend is reverb, which is not installed .*must be auto or native"):
        plan(GPU, buffer_backend="reverb")
    assert plan(GPU, buffer_backend="reverb", wrapper_type="local").backend == "native"


def test_reverb_where_others_could_reach_its_port() -> None:
    """It is not chosen there; who asks for it gets it, with a warning at the start."""
    refused = Machine(cores=2, gpus=0, has_reverb=True, own_network=False)
    assert plan(refused).backend == "native"
    assert "no network namespace" in why(refused)["buffer_backend"]
    reverb = AppConfig(buffer_backend="reverb")
    assert [decide(reverb, machine).own_network for machine in (SMALL, refused)] == [True, False]
    assert decide(reverb, refused).app.buffer_backend == "reverb"
    for keys in ({"buffer_backend": "native"}, {"wrapper_type": "local"}):
        assert not decide(AppConfig(**keys), SMALL).own_network


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


@pytest.mark.parametrize("machine", [SMALL, LARGE, GPU])
@pytest.mark.parametrize("keys", [{}, OFF_POLICY, {"wrapper_type": "local", "aisrv_count": 7}, {"max_version_lag": 0}])
def test_a_runs_own_configuration_gives_the_same_plan(machine: Machine, keys: dict[str, Any], tmp_path: Path) -> None:
    """What was decided is in its config.toml, so nothing is decided again when a role reads it, or years later."""
    decided = decide(AppConfig(**keys), machine, preferred)
    path = tmp_path / "config.toml"
    path.write_text(to_toml(RunConfig(decided.app, {}, {}, {}), decided.why))
    again = load_config(path).app
    assert again == decided.app
    other = Machine(machine.cores * 2, 1, not machine.has_reverb)
    if again.buffer_backend == "native":
        assert decide(again, other, preferred) == Decided(decided.app, {}, False, decided.dealt)
    assert make_plan(again, machine.cores) == make_plan(decided.app, machine.cores)
    for key, reason in decided.why.items():
        assert f"{key} = " in path.read_text()
        assert f"  # auto: {reason}" in path.read_text()


def test_an_undecided_configuration_has_no_plan() -> None:
    with pytest.raises(ConfigError, match="is still"):
        make_plan(AppConfig(), 2)


def test_a_plans_buffer_has_its_numbers() -> None:
    spec = Spec({"x": Field((2,), "float32")}, ActionSpec(n=3), {}, chunk_length=2)
    one = dataclasses.replace(plan(max_version_lag=1, train_batch_size=256), backend="native")
    buffer = make_replay_buffer(one, spec, "run", 0)
    assert isinstance(buffer.storage, NativeStorage)
    limiter = buffer.limiter
    assert (limiter.on_policy, limiter.capacity, limiter.preload, limiter.batch) == (
        True,
        one.capacity,
        one.preload,
        256,
    )
    assert (limiter.ratio, limiter.headroom) == (one.ratio, one.round_size)
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
        (LARGE, {"predict_local_or_remote": "remote"}, "predict_local_or_remote is remote"),
        (GPU, {"predict_local_or_remote": "local"}, "predict_local_or_remote is local"),
        (GPU, {"predict_batch_size": 2}, "predict_batch_size is 2"),
        (SMALL, {"max_version_lag": 0}, "max_version_lag is 0"),
        (LARGE, {"max_version_lag": 0}, "max_version_lag is 0"),
    ],
)
def test_slow_choices_are_warned_of(machine: Machine, keys: dict[str, Any], word: str) -> None:
    app = AppConfig(**keys)
    (sentence,) = slow_choices(app, plan(machine, **keys))
    assert sentence.startswith(word)


@pytest.mark.parametrize("machine", [SMALL, LARGE, GPU, Machine(1, 0, False)])
@pytest.mark.parametrize("wrapper_type", ["local", "remote"])
def test_the_tuner_chooses_nothing_slow(machine: Machine, wrapper_type: Any) -> None:
    app = AppConfig(wrapper_type=wrapper_type)
    assert slow_choices(app, plan(machine, wrapper_type=wrapper_type)) == []
