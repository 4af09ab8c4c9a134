"""realm/algorithms: TD3, SAC and Q-learning, each against a slow version that goes row by row."""

from __future__ import annotations

import copy
import dataclasses
import io
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from realm.algorithms import networks, q_learning, sac, td3
from realm.algorithms.continuous import Networks, Scale, both_values
from realm.algorithms.networks import MLP, Encoder, follow
from realm.algorithms.q_learning import Dueling, NoisyLinear
from realm.algorithms.rows import importance, to_rows
from realm.algorithms.settings import EncoderSettings, between
from realm.chunk import ChunkBuilder
from realm.contract import (
    ActionSpec,
    Draw,
    Field,
    PredictContext,
    SampleInfo,
    Spec,
    Transitions,
    Version,
    arrays_to_transitions,
    chunk_to_arrays,
)
from realm.data.memory import ReplayMemory
from realm.policy.local_policy import LocalPolicy
from realm.zoo.dqn.algorithm.agent import Agent as DQNAgent
from realm.zoo.dqn.config import Config as DQNConfig
from realm.zoo.sac.algorithm.agent import Agent as SACAgent
from realm.zoo.sac.config import Config as SACConfig
from realm.zoo.td3.algorithm.agent import Agent as TD3Agent
from realm.zoo.td3.config import Config as TD3Config

OBS, ACTIONS, ROWS = 5, 3, 24
RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    """Whatever ran in this process before: where a gradient is near 0, a step of Adam is all rounding."""
    RNG.bit_generator.state = np.random.default_rng(1).bit_generator.state
    torch.manual_seed(0)


def floats(*shape: int, rng: np.random.Generator = RNG) -> Any:
    return rng.normal(size=shape).astype(np.float32)


def batch(discrete: bool, rng: np.random.Generator = RNG) -> Transitions:
    """Rows with the three kinds of end: none, terminated (discount 0), a time limit (a discount as ever)."""
    low, high = np.array([-2.0, 0.0, -1.0]), np.array([2.0, 5.0, 1.0])
    action = rng.integers(0, ACTIONS, ROWS) if discrete else (low + rng.random((ROWS, 3)) * (high - low))
    ids = np.zeros(ROWS, np.int64)
    return Transitions(
        obs={"state": floats(ROWS, OBS, rng=rng)},
        action=action if discrete else action.astype(np.float32),
        reward=floats(ROWS, rng=rng),
        discount=np.where(rng.random(ROWS) < 0.3, 0.0, 0.97).astype(np.float32),
        next_obs={"state": floats(ROWS, OBS, rng=rng)},
        extra={}, step={}, version=np.zeros((ROWS, 2), np.int64), worker=ids, incarnation=ids, env=ids, seq=ids,
    )  # fmt: skip


def spec(discrete: bool) -> Spec:
    action = ActionSpec(n=ACTIONS) if discrete else ActionSpec(low=(-2.0, 0.0, -1.0), high=(2.0, 5.0, 1.0))
    return Spec({"state": Field((OBS,), "float32")}, action, {}, 4, draw=Draw())


INFO = SampleInfo(np.arange(ROWS, dtype=np.uint64), RNG.random(ROWS) + 0.1, np.ones(ROWS, np.int64), size=ROWS)


def plain_adam(network: nn.Module, lr: float) -> torch.optim.Adam:
    return torch.optim.Adam(network.parameters(), lr)


def near(a: nn.Module, b: nn.Module, tolerance: float = 1e-6) -> None:
    for one, other in zip(a.parameters(), b.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=tolerance)


def near_all(a: Any, b: Any) -> None:
    for one, other in zip(a, b, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-3)


def plain(net: MLP, x: torch.Tensor) -> torch.Tensor:
    """torch's own layers, one after the other."""
    return nn.Sequential.forward(net, x)


class TestMLP:
    @pytest.mark.parametrize("by", ["onednn", "mkl"])
    @pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh])
    @pytest.mark.parametrize("kept", ["all", "the weights", "the input"])
    def test_values_and_gradients_are_those_of_torchs_own_layers(
        self, kept: str, activation: type[nn.ReLU], by: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Of rows that lie apart in memory, too; float32's rounding differs."""
        if by == "onednn" and not networks._has_avx512():
            pytest.skip("torch calls oneDNN where the CPU has AVX-512")
        monkeypatch.setattr(networks, "_MANY", 0 if by == "onednn" else 1 << 60)
        for rows, *sizes in ((1, 1, 1), (7, 33, 5, 3), (256, 256, 100, 30, 2), (1000, 20, 256, 1)):
            net = MLP(sizes, activation).requires_grad_(kept != "the input")
            x = torch.tensor(floats(rows, 2 * sizes[0]))[:, ::2].requires_grad_(kept != "the weights")
            grad = torch.tensor(floats(rows, sizes[-1]))
            of = [one for one in (x, *net.parameters()) if one.requires_grad]
            mine, theirs = net(x), plain(net, x)
            near_all((mine, *torch.autograd.grad(mine, of, grad)), (theirs, *torch.autograd.grad(theirs, of, grad)))

    def test_it_takes_every_input_that_torchs_own_layers_do(self) -> None:
        net = MLP((512, 512, 4))
        for x in (floats(2, 16, 512), floats(512), floats(0, 512), floats(16, 512), floats(4, 2**10, 512)):
            near_all((net(torch.tensor(x)),), (plain(net, torch.tensor(x)),))
        assert copy.deepcopy(net).bfloat16()(torch.tensor(floats(16, 512)).bfloat16()).dtype == torch.bfloat16
        assert copy.deepcopy(net).double()(torch.tensor(floats(16, 512)).double()).dtype == torch.float64
        with torch.autocast("cpu", torch.bfloat16):
            assert net(torch.tensor(floats(16, 512))).dtype == torch.bfloat16

    @pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
    def test_an_export_has_torchs_own_layers(self) -> None:
        graph = str(torch.jit.trace(MLP((512, 512, 4)), torch.tensor(floats(16, 512))).inlined_graph)
        assert graph.count("aten::linear") == 2
        assert "PythonOp" not in graph


class TestTD3:
    def test_smoothing_and_targets_row_by_row(self) -> None:
        action, noise = torch.tensor(floats(ROWS, 3)).tanh(), torch.tensor(floats(ROWS, 3)) * 3
        smooth = td3.smoothed(action, noise.clone(), 0.2, 0.5)
        reward, discount, values = torch.tensor(floats(ROWS)), torch.rand(ROWS), torch.tensor(floats(2, ROWS))
        target = td3.targets(reward, discount, values)
        for n in range(ROWS):
            for a in range(3):
                shift = min(0.5, max(-0.5, 0.2 * float(noise[n, a])))
                assert float(smooth[n, a]) == pytest.approx(min(1.0, max(-1.0, float(action[n, a]) + shift)), abs=1e-6)
            expected = float(reward[n]) + float(discount[n]) * min(float(values[0, n]), float(values[1, n]))
            assert float(target[n]) == pytest.approx(expected, abs=1e-6)

    def test_updates_are_those_of_a_plain_loop(self) -> None:
        config = TD3Config(hidden=16, minibatch_size=8, lr=1e-2, tau=0.1)
        agent = TD3Agent(spec(False), config, "cpu", 3)
        literal, target = copy.deepcopy(agent.model), copy.deepcopy(agent.model)
        actor_adam, critic_adam = plain_adam(literal.actor_net, 1e-2), plain_adam(literal.critic_nets, 1e-2)
        generator = torch.Generator().manual_seed(3)
        scale, batches = Scale(spec(False).action), [batch(False) for _ in range(2)]
        # three steps each, so the second call begins just before a step of the actor
        priorities = np.concatenate([np.asarray(agent.learn(rows, INFO)[1]) for rows in batches])
        weight = torch.tensor(importance(INFO.probability, ROWS, 0.4))
        for step in range(6):
            if step % 3 == 0:
                rows, noises = batches[step // 3], torch.randn(ROWS, 3, generator=generator)
            part = slice(8 * (step % 3), 8 * (step % 3) + 8)
            obs, then = ({"state": torch.tensor(one["state"][part])} for one in (rows.obs, rows.next_obs))
            action = torch.tensor(scale.back(rows.action[part]))
            with torch.no_grad():
                next_action = (target.actor(then) + (0.2 * noises[part]).clamp(-0.5, 0.5)).clamp(-1, 1)
                value = both_values(target, then, next_action).min(0).values
                goal = torch.tensor(rows.reward[part]) + torch.tensor(rows.discount[part]) * value
            values = both_values(literal, obs, action)
            errors = ((values[0] - goal).abs() + (values[1] - goal).abs()) / 2
            np.testing.assert_allclose(priorities[8 * step : 8 * step + 8], errors.detach(), rtol=1e-4, atol=1e-5)
            loss = sum((weight[part] * (one - goal) ** 2).mean() for one in values)
            critic_adam.zero_grad()
            loss.backward()
            critic_adam.step()
            if step % 2:
                actor_adam.zero_grad()
                (-both_values(literal, obs, literal.actor(obs))[0].mean()).backward()
                actor_adam.step()
                for one, other in zip(target.parameters(), literal.parameters(), strict=True):
                    one.data += 0.1 * (other.data - one.data)
        near(agent.model, literal, 1e-5)
        near(agent.td3.target, target, 1e-5)

    def test_critics_are_held_for_the_policys_loss_alone(self) -> None:
        agent = TD3Agent(spec(False), TD3Config(hidden=8), "cpu", 0)
        first, *others = agent.model.critic_nets.parameters()
        first.requires_grad_(False)  # by its user, for good
        with agent.td3.critics.held():
            assert not any(weight.requires_grad for weight in agent.model.critic_nets.parameters())
            assert all(weight.requires_grad for weight in agent.model.actor_net.parameters())
        assert all(weight.requires_grad for weight in others)
        assert not first.requires_grad

    def test_exploration(self) -> None:
        agent = TD3Agent(spec(False), TD3Config(random_steps=100, explore_noise=0.3), "cpu", 0)
        obs = {"state": np.repeat(floats(1, OBS), 4000, 0)}
        explore = np.repeat([0.0, 1.0], 2000).astype(np.float32)
        at_first, later = agent.td3.act(obs, explore, 99), agent.td3.act(obs, explore, 100)
        assert (at_first[:2000] == later[:2000]).all()
        assert (np.ptp(later[:2000], 0) == 0).all()
        low, high = np.array([-2, 0, -1]), np.array([2, 5, 1])
        for actions in (at_first, later):
            assert ((actions >= low) & (actions <= high)).all()
        np.testing.assert_allclose(at_first[2000:].mean(0), (low + high) / 2, atol=0.3)
        np.testing.assert_allclose(at_first[2000:].std(0), (high - low) / math.sqrt(12), rtol=0.1)
        assert (later[2000:].std(0) < at_first[2000:].std(0)).all()


class TestSAC:
    def test_density_is_that_of_the_squashed_gaussian(self) -> None:
        moments, noise = torch.tensor(floats(ROWS, 6)), torch.tensor(floats(ROWS, 3))
        action, log_density = sac.squashed(moments, noise)
        for n in range(ROWS):
            total = 0.0
            for a in range(3):
                std = math.exp(-5 + 3.5 * (math.tanh(float(moments[n, 3 + a])) + 1))
                u = float(moments[n, a]) + std * float(noise[n, a])
                assert float(action[n, a]) == pytest.approx(math.tanh(u), abs=1e-5)
                normal = -0.5 * float(noise[n, a]) ** 2 - math.log(std * math.sqrt(2 * math.pi))
                # log(1 - tanh(u)^2), in double precision and not where it would vanish
                total += normal - math.log(max(1 / math.cosh(min(max(u, -300), 300)) ** 2, 1e-300))
            assert float(log_density[n]) == pytest.approx(total, rel=1e-3, abs=1e-3)

    def test_a_saturated_action_has_a_finite_density(self) -> None:
        moments = torch.tensor([[50.0, -50.0, 0.0, 2.0, 2.0, -9.0]], requires_grad=True)
        _, log_density = sac.squashed(moments, torch.ones(1, 3))
        log_density.sum().backward()
        assert torch.isfinite(log_density).all()
        assert moments.grad is not None
        assert torch.isfinite(moments.grad).all()

    def test_updates_are_those_of_a_plain_loop(self) -> None:
        config = SACConfig(hidden=16, minibatch_size=12, lr=1e-2, tau=0.1)
        agent = SACAgent(spec(False), config, "cpu", 5)
        literal, target = copy.deepcopy(agent.model), copy.deepcopy(agent.model)
        actor_adam, critic_adam = plain_adam(literal.actor_net, 1e-2), plain_adam(literal.critic_nets, 1e-2)
        log_alpha = torch.zeros((), requires_grad=True)
        alpha_adam = torch.optim.Adam([log_alpha], 1e-2)
        generator = torch.Generator().manual_seed(5)
        rows = batch(False)
        _, priorities = agent.learn(rows, INFO)
        assert priorities is not None
        noises, weight = torch.randn(2, ROWS, 3, generator=generator), importance(INFO.probability, ROWS, 0.4)
        whole = to_rows(rows, Scale(spec(False).action).back(rows.action), weight, torch.device("cpu"))
        for place in whole.parts(12):
            part, noise = whole.at(place), noises[:, place]
            alpha = log_alpha.exp().detach()
            with torch.no_grad():
                action, density = sac.squashed(literal.actor(part.next_obs), noise[0])
                value = both_values(target, part.next_obs, action).min(0).values - alpha * density
                goal = part.reward + part.discount * value
            values = both_values(literal, part.obs, part.action)
            errors = ((values[0] - goal).abs() + (values[1] - goal).abs()) / 2
            np.testing.assert_allclose(priorities[place], errors.detach(), rtol=1e-4, atol=1e-5)
            loss = sum((part.weight * (one - goal) ** 2).mean() for one in values)
            critic_adam.zero_grad()
            loss.backward()
            critic_adam.step()
            action, density = sac.squashed(literal.actor(part.obs), noise[1])
            actor_adam.zero_grad()
            (alpha * density - both_values(literal, part.obs, action).min(0).values).mean().backward()
            actor_adam.step()
            alpha_adam.zero_grad()
            (-log_alpha * (density.detach() - 3.0)).mean().backward()  # eq. 18 with the target -3
            alpha_adam.step()
            follow(target.critic_nets.parameters(), literal.critic_nets.parameters(), 0.1)
        near(agent.model, literal, 1e-5)
        near(agent.sac.target.critic_nets, target.critic_nets, 1e-5)
        assert agent.sac.log_temperature.item() == pytest.approx(log_alpha.item(), abs=1e-5)


@pytest.mark.parametrize(
    ("agent", "config", "discrete"),
    [(TD3Agent, TD3Config, False), (SACAgent, SACConfig, False), (DQNAgent, DQNConfig, True)],
)
def test_the_learning_rate_falls(agent: Any, config: Any, discrete: bool) -> None:
    one = agent(spec(discrete), config(hidden=16, minibatch_size=12, lr=1e-2, lr_end=0.0, lr_steps=100), "cpu", 5)
    for env_steps, lr in ((0, 1e-2), (50, 5e-3), (100, 0.0), (900, 0.0)):
        before = copy.deepcopy(one.model.state_dict())
        metrics, _ = one.learn(batch(discrete), dataclasses.replace(INFO, env_steps=env_steps))
        assert metrics["lr"] == pytest.approx(lr)
        same = all(torch.equal(before[name], weight) for name, weight in one.model.state_dict().items())
        assert same == (lr == 0)


class TestQLearning:
    @pytest.mark.parametrize("double", [False, True])
    @pytest.mark.parametrize("masked", [False, True])
    def test_targets_row_by_row(self, double: bool, masked: bool) -> None:
        target, own = torch.tensor(floats(ROWS, 4)), torch.tensor(floats(ROWS, 4))
        reward, discount = torch.tensor(floats(ROWS)), torch.rand(ROWS)
        legal = torch.rand(ROWS, 4) < 0.6
        legal[:, 2] = True
        given = q_learning.targets(reward, discount, target, own if double else None, legal if masked else None)
        for n in range(ROWS):
            actions = [a for a in range(4) if not masked or bool(legal[n, a])]
            chooses = own if double else target
            best = max(actions, key=lambda a: float(chooses[n, a]))
            expected = float(reward[n]) + float(discount[n]) * float(target[n, best])
            assert float(given[n]) == pytest.approx(expected, abs=1e-6)

    @pytest.mark.parametrize("huber", [0.0, 0.7])
    def test_the_gradient_is_that_of_the_loss(self, huber: float) -> None:
        error, weight = torch.tensor(floats(ROWS), requires_grad=True), torch.rand(ROWS)
        loss = q_learning.loss_value(error, weight, huber)
        loss.backward()
        assert error.grad is not None
        torch.testing.assert_close(q_learning.loss_gradient(error.detach(), weight, huber), error.grad)
        total = 0.0
        for x, w in zip(error.tolist(), weight.tolist(), strict=True):
            total += w * (x**2 if not huber else 0.5 * x**2 if abs(x) < huber else huber * (abs(x) - huber / 2))
        assert loss.item() == pytest.approx(total / ROWS, rel=1e-5)

    def test_importance_row_by_row(self) -> None:
        p = RNG.random(50) / 50
        literal = [(1 / (1000 * one)) ** 0.7 for one in p]
        np.testing.assert_allclose(importance(p, 1000, 0.7), np.array(literal) / max(literal), rtol=1e-5)
        np.testing.assert_allclose(importance(np.full(9, 0.01), 100, 1.0), 1.0)

    def test_schedules(self) -> None:
        assert [between(1.0, 0.1, 100, now) for now in (0, 50, 100, 900)] == pytest.approx([1.0, 0.55, 0.1, 0.1])

    def test_dueling_and_noisy_layers(self) -> None:
        x = torch.tensor(floats(7, OBS))
        head = Dueling(OBS, 4)
        value, advantage = head.value(x), head.advantage(x)
        torch.testing.assert_close(head(x), value + advantage - advantage.mean(1, keepdim=True))
        layer, generator = NoisyLinear(OBS, 4), torch.Generator().manual_seed(0)
        quiet = x @ layer.weight.T + layer.bias
        torch.testing.assert_close(layer(x), quiet)
        layer.draw_noise(generator)
        again = torch.Generator().manual_seed(0)
        e_in, e_out = torch.randn(OBS, generator=again), torch.randn(4, generator=again)
        f_in, f_out = e_in.sign() * e_in.abs().sqrt(), e_out.sign() * e_out.abs().sqrt()
        weight = layer.weight + layer.weight_sigma * f_out[:, None] * f_in[None, :]
        torch.testing.assert_close(layer(x), x @ weight.T + layer.bias + layer.bias_sigma * f_out)
        layer.quiet()
        torch.testing.assert_close(layer(x), quiet)

    @pytest.mark.parametrize("masked", [False, True])
    @pytest.mark.parametrize(
        "options",
        [{}, {"double": False}, {"dueling": True}, {"noisy": True}, {"noisy": True, "dueling": True, "double": False}],
    )
    def test_updates_are_those_of_a_plain_loop(self, options: dict[str, bool], masked: bool) -> None:
        config = DQNConfig(hidden=16, minibatch_size=8, lr=1e-2, target_every=2, max_grad_norm=0.5, **options)
        agent = DQNAgent(spec(True), config, "cpu", 1)
        literal, target = copy.deepcopy(agent.model), copy.deepcopy(agent.model)
        adam, generator = plain_adam(literal, 1e-2), torch.Generator().manual_seed(1)
        rows = batch(True)
        legal = np.ones((ROWS, ACTIONS), np.bool_)
        if masked:
            legal[:, 0] = False
            rows.next_obs["legal"] = legal
        _, priorities = agent.learn(rows, INFO)
        assert priorities is not None
        weight = torch.tensor(importance(INFO.probability, ROWS, 0.4))
        for step in range(3):
            part = slice(8 * step, 8 * step + 8)
            obs, then = ({"state": torch.tensor(one["state"][part])} for one in (rows.obs, rows.next_obs))
            if config.noisy:
                for network in (target, literal):
                    for layer in network.modules():
                        if isinstance(layer, NoisyLinear):
                            layer.draw_noise(generator)
            with torch.no_grad():
                chooses = (literal if config.double else target).values(then)
                best = chooses.masked_fill(~torch.tensor(legal[part]), -torch.inf).argmax(1)
                goal = (
                    torch.tensor(rows.reward[part])
                    + torch.tensor(rows.discount[part]) * target.values(then)[torch.arange(8), best]
                )
            value = literal.values(obs)[torch.arange(8), torch.tensor(rows.action[part])]
            np.testing.assert_allclose(priorities[part], (value - goal).abs().detach().numpy() + 1e-6, atol=1e-5)
            losses = nn.functional.smooth_l1_loss(value, goal, reduction="none")
            adam.zero_grad()
            (weight[part] * losses).mean().backward()
            nn.utils.clip_grad_norm_(literal.parameters(), 0.5)
            adam.step()
            if step == 1:
                target = copy.deepcopy(literal)
        near(agent.model, literal, 1e-5)
        near(agent.q_learning.target, target, 1e-5)

    def test_exploration(self) -> None:
        config = DQNConfig(epsilon_start=1.0, epsilon_end=0.2, epsilon_steps=100)
        agent = DQNAgent(spec(True), config, "cpu", 0)
        obs = {"state": np.repeat(floats(1, OBS), 6000, 0), "legal": np.tile([True, False, True], (6000, 1))}
        explore = np.repeat([0.0, 0.5, 1.0], 2000).astype(np.float32)
        action = agent.q_learning.act(obs, explore, 50)
        best = action[0]
        assert (action != 1).all()
        # half of the random actions are the best one, too
        for begin, share in ((0, 0.0), (2000, 0.15), (4000, 0.3)):
            assert (action[begin : begin + 2000] != best).mean() == pytest.approx(share, abs=0.05)


def test_noise_is_for_the_rows_that_explore_alone() -> None:
    agent = DQNAgent(spec(True), DQNConfig(hidden=8, noisy=True), "cpu", 0).q_learning
    for layer in agent.noisy:
        nn.init.constant_(layer.weight_sigma, 30.0)
    obs = {"state": floats(2000, OBS)}
    best = agent.act(obs, np.zeros(2000, np.float32), 0)
    explore = np.repeat([0.0, 1.0], 1000).astype(np.float32)
    action = agent.act(obs, explore, 0)
    assert (action[:1000] == best[:1000]).all()
    assert (action[1000:] != best[1000:]).mean() > 0.2


@pytest.mark.parametrize(
    ("make", "discrete"),
    [
        (lambda seed: TD3Agent(spec(False), TD3Config(hidden=8, minibatch_size=8), "cpu", seed), False),
        (lambda seed: SACAgent(spec(False), SACConfig(hidden=8, minibatch_size=8), "cpu", seed), False),
        (lambda seed: DQNAgent(spec(True), DQNConfig(hidden=8, minibatch_size=8), "cpu", seed), True),
        (lambda seed: DQNAgent(spec(True), DQNConfig(hidden=8, dueling=True, noisy=True), "cpu", seed), True),
    ],
)
def test_a_restored_agent_learns_and_explores_on_to_the_bit(make: Any, discrete: bool) -> None:
    stream = [batch(discrete) for _ in range(4)]
    whole, first, second = make(1), make(1), make(2)
    for rows in stream:
        whole.learn(rows, INFO)
    for rows in stream[:2]:
        first.learn(rows, INFO)
    second.model.load_state_dict(first.model.state_dict())
    second.load_model(saved(first))
    for rows in stream[2:]:
        second.learn(rows, INFO)
    context = PredictContext(np.arange(ROWS), np.zeros(ROWS, np.bool_), np.ones(ROWS, np.float32), 10**9)
    actions = [one.predict(stream[0].obs, context)[0] for one in (whole, second)]
    assert (actions[0] == actions[1]).all()
    for one, other in zip(whole.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(one, other)


def saved(agent: Any) -> Any:
    """Its state through a file, read as a checkpoint is: tensors and plain data alone."""
    stream = io.BytesIO()
    torch.save(agent.save_model(), stream)
    return torch.load(io.BytesIO(stream.getvalue()), weights_only=True)


@pytest.mark.parametrize(
    ("make", "discrete"),
    [
        (lambda seed: TD3Agent(spec(False), TD3Config(hidden=8, minibatch_size=8), "cpu", seed).td3, False),
        (lambda seed: SACAgent(spec(False), SACConfig(hidden=8, minibatch_size=8), "cpu", seed).sac, False),
        (lambda seed: DQNAgent(spec(True), DQNConfig(hidden=8, minibatch_size=8), "cpu", seed).q_learning, True),
    ],
)
def test_weights_that_are_loaded_before_the_first_update_are_the_targets_too(make: Any, discrete: bool) -> None:
    """As `preload_model` does: of two that differ in what they were made with, nothing is left then."""
    rows, one, other = batch(discrete), make(1), make(2)
    other.network.load_state_dict(one.network.state_dict())
    other.generator.set_state(one.generator.get_state())
    one.update(rows, INFO)
    other.update(rows, INFO)

    def weights(algorithm: Any) -> list[torch.Tensor]:
        of_target = algorithm.target.parameters() if discrete else algorithm.target_weights
        return [*algorithm.network.parameters(), *of_target]

    for weight, twin in zip(weights(one), weights(other), strict=True):
        assert torch.equal(weight, twin)


@pytest.mark.parametrize("make", [td3.TD3, sac.SAC])
def test_targets_have_the_buffers_of_the_network(make: Any) -> None:
    """Such as the running statistics of a BatchNorm, which no parameter holds."""
    actions = spec(False).action.field.size
    settings = TD3Config(hidden=8, minibatch_size=8) if make is td3.TD3 else SACConfig(hidden=8, minibatch_size=8)
    network = Networks(spec(False).obs, actions, actions if make is td3.TD3 else 2 * actions, 8, settings)
    network.register_buffer("running", torch.zeros(3))
    network.register_buffer("count", torch.zeros((), dtype=torch.int64))
    one = make(network, spec(False).action, settings, torch.device("cpu"), 0)
    network.running += 5.0
    network.count += 7
    one.update(batch(False), INFO)
    assert (one.target.running.tolist(), one.target.count.item()) == ([5.0] * 3, 7)


def test_a_temperature_of_the_settings_outlives_a_resume() -> None:
    def made(temperature: float) -> SACAgent:
        return SACAgent(spec(False), SACConfig(hidden=8, temperature=temperature), "cpu", 0)

    learned = made(0.0)
    learned.learn(batch(False), INFO)
    for settings, log_temperature in ((0.25, math.log(0.25)), (0.0, learned.sac.log_temperature.item())):
        resumed = made(settings)
        resumed.load_model(saved(learned))
        assert resumed.sac.log_temperature.item() == pytest.approx(log_temperature)


@pytest.mark.parametrize("make", [TD3Agent, SACAgent, DQNAgent])
def test_without_bootstrapping_at_a_time_limit_this_fails(make: Any) -> None:
    """Two worlds of one state each, a reward of 1 a step, and an episode that ends with each step. Where a time limit
    ends it the state is worth 1 + 0.5 + 0.25 + ... = 2; where a terminal state does, 1."""
    discrete = make is DQNAgent
    action = ActionSpec(n=2) if discrete else ActionSpec(low=(-1.0,), high=(1.0,))
    own = Spec({"state": Field((1,), "float32")}, action, {}, 1, draw=Draw(1, 0.5))
    memory = ReplayMemory(own, 64, False, 1.0, 0)
    items = {name: np.ones((64, *one.shape), one.dtype) for name, one in own.sample_fields.items()}
    items["env"][:] = np.arange(64)
    items["action"][:] = RNG.integers(0, 2, (64, 1)) if discrete else RNG.random((64, 1, 1)) * 2 - 1
    items["obs.state"][:32] = -1.0
    items["truncated"][:32], items["terminated"][:32] = True, False
    items["truncated"][32:], items["terminated"][32:] = False, True
    memory.add(items)
    config: dict[Any, Any] = {
        TD3Agent: TD3Config(hidden=16, minibatch_size=16, lr=1e-2, tau=0.2),
        SACAgent: SACConfig(hidden=16, minibatch_size=16, lr=1e-2, tau=0.2, temperature=1e-6),
        DQNAgent: DQNConfig(hidden=16, minibatch_size=16, lr=1e-2, target_every=5),
    }
    agent = make(own, config[make], "cpu", 0)
    for _ in range(20):
        rows, info = memory.sample(16 * 10)
        agent.learn(arrays_to_transitions(rows), info)
    state, actions = {"state": torch.tensor([[-1.0], [1.0]])}, torch.zeros(2, 1)
    with torch.no_grad():
        values = agent.model.values(state).T if discrete else both_values(agent.model, state, actions)
    np.testing.assert_allclose(values.numpy(), [[2.0, 1.0]] * 2, atol=0.1)


def test_actions_without_bounds_are_refused() -> None:
    with pytest.raises(ValueError, match="continuous actions with finite bounds"):
        Scale(ActionSpec(low=(-math.inf,), high=(1.0,)))
    with pytest.raises(ValueError, match="continuous actions with finite bounds"):
        Scale(ActionSpec(n=3))
    with pytest.raises(ValueError, match="low below high"):
        Scale(ActionSpec(low=(0.0, 1.0), high=(1.0, 1.0)))


def test_actions_are_within_bounds_that_float32_rounds() -> None:
    """Of all bounds with two decimals, as float32 and as float64 has them."""
    low, high = np.arange(-2, 2, 0.01), np.arange(-1.5, 2.5, 0.01)
    ends = torch.tensor([[-1.0], [1.0], [0.0]]).expand(3, len(low))
    for dtype in (np.float32, np.float64):
        least, most = low.astype(dtype), high.astype(dtype)
        scale = Scale(ActionSpec(low=tuple(least), high=tuple(most)))
        for action in (scale.out(ends.numpy()), scale.out_tensor(ends).numpy()):
            assert action.dtype == np.float32
            assert ((action >= least) & (action <= most)).all()
            np.testing.assert_allclose(action, [low, high, (low + high) / 2], atol=1e-6)


def test_frames_are_the_same_where_it_acts_and_where_it_learns() -> None:
    """An episode of 9 steps: what `predict` saw at each step is the row that the memory's `look_back` cuts out."""
    config = DQNConfig(frames=3, chunk_length=5)
    x, before = Field((2,), "float32"), Field((2, 2), "float32")
    own = Spec({"x": x}, ActionSpec(n=2), {}, 5, state={"x": before}, draw=Draw(1, 0.9, look_back=2))
    agent, seen = DQNAgent(own, config, "cpu", 0), []
    agent.q_learning.act = lambda obs, *_: seen.append(obs["x"][0]) or np.zeros(1, np.int64)  # type: ignore
    policy = LocalPolicy(agent, own, 1, lambda: (Version(1, 0), 0, 0))  # type: ignore[arg-type]
    memory, chunks = ReplayMemory(own, 64, False, 1.0, 0), ChunkBuilder(own, {"x": np.zeros((1, 2), np.float32)})
    obs = np.zeros((1, 2), np.float32)
    for step in range(1, 16):
        prediction = policy.predict({"x": obs}, chunks.first)
        obs = np.full((1, 2), step, np.float32)
        over = np.array([step == 9])
        chunks.step(prediction, np.ones(1), over, over & False, {"x": obs})
        if chunks.full:
            memory.add(chunk_to_arrays(chunks.take()))
    rows = arrays_to_transitions(memory.sample(300)[0])
    drawn = {tuple(one[:, 0]) for one in rows.obs["x"]}
    acted = {tuple(one[:, 0]) for one in seen}
    assert drawn == acted - {(7.0, 8.0, 9.0)}  # the final observation is asked about, too, but its action is ignored
    assert {(0.0, 0.0, 0.0), (0.0, 0.0, 1.0), (10.0, 10.0, 10.0), (12.0, 13.0, 14.0)} <= drawn
    stacked = Encoder({"x": x}, EncoderSettings(frames=3))({"x": torch.from_numpy(rows.obs["x"])})
    assert torch.equal(stacked, torch.from_numpy(rows.obs["x"].reshape(300, 6)))


@pytest.mark.parametrize(("make", "config"), [(TD3Agent, TD3Config(policy_delay=1)), (SACAgent, SACConfig())])
def test_images_go_through_one_encoder_that_the_critics_train(make: Any, config: Any) -> None:
    """One gradient step of each, against torch's own, of two frames of a picture."""
    config = dataclasses.replace(config, hidden=8, frames=2, channels=(4,), minibatch_size=ROWS, lr=1e-2)
    picture = Field((40, 40, 1), "uint8")
    own = dataclasses.replace(spec(False), obs={"state": picture}, draw=Draw(look_back=1))
    agent = make(own, config, "cpu", 3)
    literal, target = copy.deepcopy(agent.model), copy.deepcopy(agent.model)
    rng = np.random.default_rng(0)
    obs, then = ({"state": rng.integers(0, 255, (ROWS, 2, 40, 40, 1), np.uint8)} for _ in range(2))
    rows = dataclasses.replace(batch(False, rng), obs=obs, next_obs=then)
    agent.learn(rows, INFO)

    drawn = torch.randn((1 if make is TD3Agent else 2, ROWS, 3), generator=torch.Generator().manual_seed(3))
    of_critics = torch.optim.Adam([*literal.critic_nets.parameters(), *literal.encoder.parameters()], 1e-2)
    of_actor, scale = plain_adam(literal.actor_net, 1e-2), Scale(own.action)
    seen, after = ({"state": torch.from_numpy(one["state"])} for one in (obs, then))
    with torch.no_grad():
        if make is TD3Agent:
            action = (target.actor(target.encode(after)) + (0.2 * drawn[0]).clamp(-0.5, 0.5)).clamp(-1, 1)
            bonus: Any = 0.0
        else:
            action, bonus = sac.squashed(literal.actor(literal.encode(after)), drawn[0])
        value = both_values(target, target.encode(after), action).min(0).values - bonus
        goal = torch.tensor(rows.reward) + torch.tensor(rows.discount) * value
    features = literal.encode(seen)
    values = both_values(literal, features, torch.tensor(scale.back(rows.action)))
    weight = torch.tensor(importance(INFO.probability, ROWS, 0.4))
    sum((weight * (one - goal) ** 2).mean() for one in values).backward()
    of_critics.step()
    fixed = {name: x.detach() for name, x in features.items()}
    if make is TD3Agent:
        loss = -both_values(literal, fixed, literal.actor(fixed))[0].mean()
    else:
        action, density = sac.squashed(literal.actor(fixed), drawn[1])
        loss = (density - both_values(literal, fixed, action).min(0).values).mean()
    of_actor.zero_grad()
    loss.backward()
    of_actor.step()
    near(agent.model, literal, 1e-4)  # a hundredth of a step: Adam's first one divides by the gradient, also a tiny one
    state, again = agent.save_model(), make(own, config, "cpu", 4)
    again.model.load_state_dict(agent.model.state_dict())
    again.load_model(state)
    for one in (agent, again):
        one.learn(rows, INFO)
    near(again.model, agent.model, 0.0)
    none, (before, now) = np.zeros(ROWS, np.float32), np.split(obs["state"], 2, 1)
    context = PredictContext(np.arange(ROWS), none > 0, none, 10**6, {"state": before})
    known, _, memory = agent.predict({"state": now[:, 0]}, context)
    inputs = {"state": now[:, 0], "state.state": before, "first": none > 0}
    greedy = agent.greedy({name: torch.from_numpy(x) for name, x in inputs.items()})
    np.testing.assert_allclose(greedy["action"].detach(), known, atol=1e-5)
    assert (memory["state"] == now).all()
