"""The encoder of images."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from loguru import logger

from realm.algorithms.networks import Encoder, use_bf16
from realm.algorithms.settings import EncoderSettings
from realm.contract import Field

CPU = torch.device("cpu")


@pytest.fixture
def said() -> Iterator[list[str]]:
    lines: list[str] = []
    number = logger.add(lines.append, format="{message}")  # type: ignore[arg-type]
    use_bf16.cache_clear()
    yield lines
    use_bf16.cache_clear()
    logger.remove(number)


def test_gradients_of_images_are_computed_in_bfloat16_and_actions_are_not() -> None:
    torch.manual_seed(1)
    picture = {"state": Field((40, 40, 1), "uint8")}
    exact, rough = (Encoder(picture, EncoderSettings(channels=(8,), precision=one)) for one in ("fp32", "bf16"))
    rough.load_state_dict(exact.state_dict())
    obs = {"state": torch.randint(0, 255, (64, 40, 40, 1), dtype=torch.uint8)}
    with torch.no_grad():
        assert torch.equal(exact(obs), rough(obs))
    for one in (exact, rough):
        seen = one(obs)
        assert seen.dtype == torch.float32
        seen.square().mean().backward()
    for name, own in exact.named_parameters():
        other = dict(rough.named_parameters())[name].grad
        assert other is not None
        assert own.grad is not None
        assert other.dtype == torch.float32
        assert 0 < float((other - own.grad).norm() / own.grad.norm()) < 0.02


@pytest.mark.parametrize(("precision", "fast", "slow"), [("fp32", 0, 0), ("auto", 1, 0), ("bf16", 1, 1)])
def test_a_cpu_that_is_slow_in_bfloat16_gets_it_if_asked_with_a_warning(
    precision: str, fast: bool, slow: bool, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    assert use_bf16(precision, CPU) == fast
    assert not said
    use_bf16.cache_clear()
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    assert [use_bf16(precision, CPU) for _ in range(2)] == [slow] * 2
    assert said == ['bfloat16 is slow on this cpu; precision = "auto" uses it where it is fast\n'] * slow
