"""The encoder of images, and the end of a policy's network."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from loguru import logger

from realm.algorithms.actor_critic import ActorCritic
from realm.algorithms.attention import attention_network
from realm.algorithms.batch import STATE
from realm.algorithms.networks import Encoder, Obs, use_bf16
from realm.algorithms.recurrent import GRUNetwork
from realm.algorithms.settings import EncoderSettings, NetworkSettings
from realm.contract import ActionSpec, Field

CPU = torch.device("cpu")


@pytest.fixture
def said() -> Iterator[list[str]]:
    lines: list[str] = []
    number = logger.add(lines.append, format="{message}")  # type: ignore[arg-type]
    use_bf16.cache_clear()
    yield lines
    use_bf16.cache_clear()
    logger.remove(number)


@pytest.mark.parametrize(("side", "usual"), [(36, 2), (63, 2), (64, 3), (84, 3)])
@pytest.mark.parametrize("channels", [(), (8,), (8, 8, 8)])
def test_an_image_has_as_many_convolutions_as_channels_say(side: int, usual: int, channels: tuple[int, ...]) -> None:
    encoder = Encoder({"state": Field((side, side, 1), "uint8")}, EncoderSettings(channels=channels))
    convolutions = [one for one in encoder.modules() if isinstance(one, torch.nn.Conv2d)]
    assert len(convolutions) == (len(channels) or usual)


@pytest.mark.parametrize("channels", [1, 3])
def test_gradients_go_through_images_with_channels_last_in_memory(channels: int) -> None:
    """Frames of a replay memory, one after another, are stacked along channels, and then copied: it pays there."""
    encoder = Encoder({"x": Field((36, 37, channels), "uint8")}, EncoderSettings(frames=4))
    frames, images = torch.randint(256, (2, 4, 36, 37, channels)).to(torch.uint8), list[torch.Tensor]()
    encoder.cnns["0"].register_forward_pre_hook(lambda _, inputs: images.append(inputs[0]))
    features = encoder({"x": frames})
    with torch.no_grad():
        torch.testing.assert_close(encoder({"x": frames}), features)
    assert images[0].is_contiguous(memory_format=torch.channels_last)
    for image in images:
        torch.testing.assert_close(image * 255, torch.cat([*frames.float().unbind(1)], -1).permute(0, 3, 1, 2))


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


@pytest.mark.parametrize("memory", ["none", "shared", "gru", "attention"])
def test_bounded_means_stay_in_the_range_and_are_the_tanh_of_the_others(memory: str) -> None:
    made = {"none": ActorCritic, "shared": ActorCritic, "gru": GRUNetwork, "attention": attention_network}[memory]
    fields, action = {"obs": Field((3,), "float32")}, ActionSpec(low=(0.0, -3.0), high=(2.0, 3.0))

    def outputs(bounded: bool) -> torch.Tensor:
        torch.manual_seed(0)
        shared = memory == "shared"
        own = NetworkSettings(hidden=8, memory_steps=4, log_std=-0.5, bounded_mean=bounded, shared_trunk=shared)
        network = made(fields, action, own)
        with torch.no_grad():
            for name, parameter in network.named_parameters():
                parameter *= 1.0 if name.endswith("log_std") else 2000.0
        torch.manual_seed(1)
        obs: Obs = {"obs": torch.randn(6, 3)}
        if memory not in ("none", "shared"):
            rows = {"memory": torch.zeros(6, 8)} if memory == "gru" else {
                "rows": torch.zeros(6, 1, 4, 16), "age": torch.zeros(6, dtype=torch.int64)
            }  # fmt: skip
            obs = {"obs": obs["obs"][:, None], "first": torch.ones(6, 1, dtype=torch.bool)}
            obs |= {STATE + name: x for name, x in rows.items()}
        return network.actor(obs).flatten(0, -2)

    mean, log_std = outputs(True).chunk(2, -1)
    free, _ = outputs(False).chunk(2, -1)
    assert free.abs().max() > 3, "far from the range"
    torch.testing.assert_close(mean, free.tanh())
    assert (log_std == -0.5).all()
