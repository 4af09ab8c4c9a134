"""Gradients without torch's graph, against those with it; and when the graph has to do."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from realm.algorithms import by_hand
from realm.algorithms.actor_critic import ActorCritic
from realm.algorithms.batch import Batch
from realm.algorithms.distributions import distribution_of
from realm.algorithms.losses import Loss, by_graph
from realm.algorithms.ppo import PPO
from realm.algorithms.settings import NetworkSettings
from realm.contract import ActionSpec, Field, Fields

N, ROWS = 5, 70
DISCRETE, CONTINUOUS = ActionSpec(n=N), ActionSpec(low=(-1.0, 0.0), high=(1.0, 4.0))
FIELDS: Fields = {"b": Field((3,), "float32"), "a": Field((2, 2), "float32")}
MASKED: Fields = {**FIELDS, "legal": Field((N,), "bool")}


def ppo_of(fields: Fields, action: ActionSpec, losses: Any = (), layer: str = "", **settings: Any) -> PPO:
    torch.manual_seed(0)
    chosen = NetworkSettings(**{"hidden": 9, "entropy_start": 0.03, "log_std": -0.4, **settings})
    network = ActorCritic(fields, action, chosen)
    with torch.no_grad():
        for parameter in network.parameters():  # far from where all logits are the same
            parameter += 0.3 * torch.randn_like(parameter)
    return PPO(network, chosen, torch.device("cpu"), 0, distribution_of(action), losses, layer=layer)


def minibatch_of(fields: Fields, action: ActionSpec) -> Batch:
    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape)

    torch.manual_seed(1)
    obs = {name: random(ROWS, *field.shape) for name, field in fields.items()}
    actions = torch.randint(N, (ROWS,)) if action.n else random(ROWS, 2)
    if "legal" in fields:
        obs["legal"] = (torch.rand(ROWS, N) < 0.5).index_fill_(0, torch.arange(10), False)
        obs["legal"][torch.arange(ROWS), actions] = True
    old = -1.0 + 0.3 * random(ROWS)
    return Batch(obs, None, actions, old, old + 0.1 * random(ROWS), random(ROWS), random(ROWS), random(ROWS))


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize(
    ("fields", "action", "bounded_mean"),
    [(FIELDS, DISCRETE, False), (MASKED, DISCRETE, False), (FIELDS, CONTINUOUS, False), (FIELDS, CONTINUOUS, True)],
)
def test_the_gradient_is_that_of_the_graph(
    fields: Fields, action: ActionSpec, bounded_mean: bool, activation: str
) -> None:
    ppo = ppo_of(fields, action, activation=activation, bounded_mean=bounded_mean)
    minibatch, now = minibatch_of(fields, action), ppo.settings.schedule(0)
    assert set(ppo.nets) == {part.adam for part in ppo.parts}
    for part in ppo.parts:
        ours = by_hand.gradient(ppo.nets[part.adam], ppo.settings, part, minibatch, ppo.distribution, now)
        found = [np.array(x.grad) for x in part.adam.parameters]
        theirs = by_graph(ppo.network, part, minibatch, ppo.distribution, now)
        assert set(ours) == set(theirs)
        for name, value in theirs.items():
            torch.testing.assert_close(ours[name], value, rtol=1e-5, atol=1e-6)
        for parameter, own in zip(part.adam.parameters, found, strict=True):
            assert parameter.grad is not None
            assert parameter.grad.abs().max() > 0
            np.testing.assert_allclose(own, parameter.grad.numpy(), rtol=1e-4, atol=1e-6)


def test_a_surrogate_beyond_the_clip_has_no_gradient() -> None:
    new, grad = np.log(np.array([0.5, 0.5, 1.5, 1.5], np.float32)), np.empty(4, np.float32)
    advantage = np.array([1, -1, 1, -1], np.float32)
    by_hand._surrogate(new, np.zeros(4, np.float32), advantage, 0.2, grad)
    np.testing.assert_allclose(grad, [-0.125, 0, 0, 0.375], rtol=1e-6)


def test_weights_that_are_loaded_later_are_the_ones_that_train() -> None:
    ppo, other = ppo_of(FIELDS, DISCRETE), ppo_of(FIELDS, DISCRETE, lr_start=0.1)
    minibatch, now = minibatch_of(FIELDS, DISCRETE), other.settings.schedule(0)
    other.gradient_step(minibatch, now)
    ppo.network.load_state_dict(other.network.state_dict())  # type: ignore[attr-defined]
    for part, same in zip(ppo.parts, other.parts, strict=True):
        ours = by_hand.gradient(ppo.nets[part.adam], ppo.settings, part, minibatch, ppo.distribution, now)
        theirs = by_graph(other.network, same, minibatch, other.distribution, now)
        torch.testing.assert_close(ours["loss"], theirs["loss"], rtol=1e-5, atol=1e-6)
        part.adam.step(0.1)
        for x, y in zip(part.adam.parameters, same.adam.parameters, strict=True):
            assert (x != y).any()


IMAGE: Fields = {"screen": Field((40, 40, 3), "uint8")}
EXTRA = [Loss("entropy_again", lambda minibatch, outputs: outputs.entropy.mean())]


@pytest.mark.parametrize(
    ("fields", "action", "options"),
    [
        (IMAGE, DISCRETE, {}),
        (FIELDS, ActionSpec(nvec=(2, 3)), {}),
        (FIELDS, DISCRETE, {"value_clip": 0.2}),
        (FIELDS, DISCRETE, {"shared_trunk": True}),
        (FIELDS, DISCRETE, {"decoupled": True, "advantage": "gae"}),
        (FIELDS, DISCRETE, {"losses": EXTRA}),
        (FIELDS, DISCRETE, {"layer": "actor_net.1.0.weight"}),
    ],
)
def test_what_only_the_graph_can_do_is_left_to_it(fields: Fields, action: ActionSpec, options: dict[str, Any]) -> None:
    ppo = ppo_of(fields, action, **options)
    by_graph_alone = [part for part in ppo.parts if part.adam not in ppo.nets]
    assert by_graph_alone
    if fields is not IMAGE and not {"value_clip", "shared_trunk", "decoupled"} & set(options):
        assert by_graph_alone == [part for part in ppo.parts if part.policy or part.layer is not None]


def test_a_network_of_ones_own_is_left_to_the_graph() -> None:
    class Own(ActorCritic):
        def actor(self, obs: Any) -> torch.Tensor:
            return 2 * super().actor(obs)

    settings = NetworkSettings()
    ppo = PPO(Own(FIELDS, DISCRETE, settings), settings, torch.device("cpu"), 0)
    assert not ppo.nets


def test_what_is_not_finite_makes_no_step() -> None:
    ppo = ppo_of(FIELDS, CONTINUOUS)
    minibatch, now = minibatch_of(FIELDS, CONTINUOUS), ppo.settings.schedule(0)
    before = {name: x.clone() for name, x in ppo.network.named_parameters()}
    spoiled = dataclasses.replace(minibatch, target=torch.full((ROWS,), torch.nan))
    policy, critic = (future.result() for future in ppo.gradient_step(spoiled, now))
    assert policy is not None
    assert critic is None
    for name, x in ppo.network.named_parameters():
        assert torch.equal(x, before[name]) == name.startswith("critic")
