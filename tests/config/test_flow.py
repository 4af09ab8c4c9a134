"""realm/flow.py: refused numbers name themselves, advice is enough, and what is accepted never stalls the limiter."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest

from realm.config.flow import check_flow, check_warm_up
from realm.data.buffer import Limiter
from realm.errors import ConfigError
from tests.backends import plan_of

ON: dict[str, Any] = {
    "on_policy": True, "sampler": "Fifo", "remover": "Fifo", "capacity": 16, "preload_ratio": 2.0,
    "batch": 8, "ratio": 1.0, "envs_per_worker": 8, "max_version_lag": 0,
}  # fmt: skip
OFF: dict[str, Any] = {
    "on_policy": False, "sampler": "Uniform", "remover": "Fifo", "capacity": 1000, "preload_ratio": 10.0,
    "batch": 64, "ratio": 4.0, "envs_per_worker": 8, "max_version_lag": None,
}  # fmt: skip


@pytest.mark.parametrize(
    "numbers",
    [
        ON,
        ON | {"max_version_lag": "part"},
        ON | {"max_version_lag": 3, "batch": 24, "capacity": 48},
        ON | {"max_version_lag": None, "remover": "Uniform"},
        OFF,
        OFF | {"sampler": "Prioritized", "remover": "MinHeap", "ratio": 0.25},
        OFF | {"preload_ratio": 1.0},
        OFF | {"capacity": 20},  # less than a batch: samples are drawn again
    ],
)
def test_what_works(numbers: dict[str, Any]) -> None:
    check_flow(plan_of(**numbers), numbers["preload_ratio"])


@pytest.mark.parametrize(
    ("numbers", "start", "numbers_named"),
    [
        (ON | {"ratio": 2.0}, "production_consume_ratio is 2,", []),
        (ON | {"sampler": "Uniform"}, "reverb_sampler is Uniform,", []),
        (ON | {"warm_up_steps": 5000}, "warm_up_steps is 5000, but on-policy training", []),
        (OFF | {"sampler": "Fifo"}, "reverb_sampler is Fifo,", []),
        (OFF | {"sampler": "MaxHeap"}, "reverb_sampler is MaxHeap,", []),
        (OFF | {"remover": "Lifo"}, "reverb_remover is Lifo,", ["1000"]),
        (OFF | {"max_version_lag": 2}, "max_version_lag is 2,", []),
        (ON | {"batch": 4}, "max_version_lag is 0 (strict on-policy) and train_batch_size is 4,", ["8"]),
        (
            ON | {"max_version_lag": "part", "batch": 4},
            "max_version_lag is part and train_batch_size is 4,",
            ["8"],
        ),
        (OFF | {"max_version_lag": "part"}, "max_version_lag is part,", []),
        (ON | {"capacity": 15}, "replay_buffer_capacity is 15, too small", ["8", "16"]),
        (ON | {"preload_ratio": 1.0, "max_version_lag": None}, "training starts at 16 samples", ["8", "2.0"]),
        (ON | {"capacity": 32}, "training starts at 16 samples", ["8", "4.0"]),
    ],
)
def test_what_does_not(numbers: dict[str, Any], start: str, numbers_named: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        check_flow(plan_of(**numbers), numbers["preload_ratio"])
    text = str(caught.value)
    assert text.startswith(start)
    assert " must be " in text.partition("; ")[2]
    assert "\n" not in text
    assert set(numbers_named) <= set(re.findall(r"[0-9.]*[0-9]", text.removeprefix(start)))


def test_a_warm_up_that_cannot_be() -> None:
    for limit in (1, 300, 5000):
        with pytest.raises(ConfigError, match=rf"^max_env_steps is {limit}, .* warm_up_steps, 5000 .* at least 5001"):
            check_warm_up(limit, 5000)
        check_warm_up(limit, 0)
    for limit in (901, 1900):
        with pytest.raises(ConfigError, match=rf"^max_env_steps is {limit}, .* goes on from 900 with .* at least 1901"):
            check_warm_up(limit, 1000, 900)
    with pytest.raises(ConfigError, match=r"^max_env_steps is 300, .* after preload_ratio, 1000 env steps; .*smaller"):
        check_warm_up(300, 1000, key="preload_ratio")
    for limit in (0, 900, 1901):  # none; reached already; enough
        check_warm_up(limit, 1000, 900)
    for limit, warm_up in ((0, 5000), (5001, 5000), (1, 0)):
        check_warm_up(limit, warm_up)


def _random_numbers(draw: random.Random) -> tuple[dict[str, Any], int]:
    workers, envs = draw.randint(1, 4), draw.randint(1, 6)
    on_policy = draw.random() < 0.6
    lag = draw.choice([None, 0, 1, 2, 5]) if on_policy else None
    batch = workers * envs if lag == 0 or draw.random() < 0.3 else draw.randint(1, 60)
    if lag and draw.random() < 0.7:
        batch = workers * envs * draw.randint(1, 4)
    numbers = (ON if on_policy else OFF) | {
        "capacity": draw.randint(1, 200),
        "preload_ratio": draw.choice([1.0, 1.3, 2.0, 5.0, 50.0]),
        "batch": batch,
        "ratio": 1.0 if on_policy else draw.choice([0.1, 0.7, 1.0, 3.0, 40.0]),
        "envs_per_worker": workers * envs,
        "max_version_lag": lag,
    }
    return numbers, envs


def test_what_is_accepted_does_not_stall() -> None:
    """Workers and learner take their turns by chance, under the real limiter, with the slowest gate of versions."""
    draw, accepted = random.Random(1), 0
    for _ in range(1500):
        numbers, envs = _random_numbers(draw)
        try:
            check_flow(plan_of(**numbers), numbers["preload_ratio"])
        except ConfigError:
            continue
        accepted += 1
        plan = plan_of(**numbers)
        batch, capacity, on_policy = plan.batch, plan.capacity, plan.on_policy
        workers = plan.round_size // envs
        limiter = Limiter(on_policy, capacity, plan.preload, batch, plan.ratio, plan.round_size)
        lag, cost = numbers["max_version_lag"], plan.round_size
        bucket = None if lag is None else (lag + 1) * batch  # credits of a worker, as in policy/gate.py
        credits, size, updates = [bucket or 0] * workers, 0, 0
        while updates < 8:
            able = [
                one for one in range(workers)
                if (bucket is None or credits[one] >= cost) and limiter.room(size) >= min(envs, max(1, limiter.whole))
            ]  # fmt: skip
            may_train = limiter.may_sample(batch, size)
            assert able or may_train, f"stalled after {updates} updates: {numbers}"
            if may_train and (not able or draw.random() < 0.5):
                limiter.sampled += batch
                size -= batch if on_policy else 0
                updates, credits = updates + 1, [min(one + batch, bucket or 0) for one in credits]
            else:
                one = draw.choice(able)
                credits[one] -= cost
                part = min(envs, limiter.room(size))  # the rest of a round as large as the memory would follow
                limiter.inserted += part
                size = size + part if on_policy else min(size + part, capacity)
            assert size <= capacity
    assert accepted > 200


def test_advice_is_enough() -> None:
    draw, followed = random.Random(2), 0
    for _ in range(1500):
        numbers, _envs = _random_numbers(draw)
        for _ in range(4):
            try:
                check_flow(plan_of(**numbers), numbers["preload_ratio"])
                break
            except ConfigError as error:
                advice = str(error).rpartition("; ")[2]
                number = float(re.findall(r"[0-9.]*[0-9]", advice)[0])
                keys = ("preload_ratio", "multiple", "capacity")
                key = next((one for one in keys if one in advice), "capacity")
                numbers["batch" if key == "multiple" else key] = number if key == "preload_ratio" else int(number)
                followed += 1
        else:
            raise AssertionError(f"four times advised in vain: {numbers}")
    assert followed > 200
