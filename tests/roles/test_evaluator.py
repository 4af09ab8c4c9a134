"""realm/roles/evaluator.py and realm/best.py: the share of CPU time, and which model is kept."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import gymnasium
import numpy as np
import pytest
import torch

from realm.config.load import RunConfig, load_config
from realm.contract import Agent, Array, Arrays, Evaluation, PredictContext, Version
from realm.errors import ConfigError, RunError, Stopped, UserCodeError
from realm.learn import checkpoint
from realm.learn.best import BestModel
from realm.learn.evaluation import EpisodeStatistics, evaluate, guarded, reported
from realm.learn.judge import Judge, add_line, next_due
from realm.learn.results import best_model, evaluated, main_statistic, means_of
from realm.roles.evaluator import Budget
from realm.rollout.rounds import Count, RestartingEnvs
from realm.user import load_definition, load_hyper
from realm.wire.codec import Message, WireError, parsed
from tests.cluster import ROOT

SETTING: dict[str, Any] = {"env": {"treasures": (1, 2)}, "episodes": 4}


class Clocks:
    """A process that works and rests."""

    def __init__(self, cpu: float = 0.0) -> None:
        self.cpu, self.wall = cpu, 1000.0

    def budget(self, rate: float, period_s: float = 0.0) -> Budget:
        return Budget(rate, period_s, lambda: self.cpu, lambda: self.wall)

    def work(self, cpu: float, wall: float) -> None:
        self.cpu += cpu
        self.wall += wall


def test_rest_is_as_long_as_the_share_asks_for() -> None:
    clocks = Clocks()
    budget = clocks.budget(0.05 * 2)
    assert budget.rest_s() == 0
    clocks.work(cpu=3.0, wall=4.0)
    assert budget.rest_s() == pytest.approx(26)
    clocks.work(cpu=0.1, wall=26.0)  # to rest is not for free, either
    clocks.work(cpu=1.0, wall=1.0)
    assert budget.rest_s() == pytest.approx(10)


def test_what_the_start_took_is_free_and_what_waiting_saved_is_not_kept() -> None:
    clocks = Clocks(cpu=4.0)
    budget = clocks.budget(0.5)
    clocks.work(cpu=2.0, wall=2.0)  # the first piece of work compiles
    assert budget.rest_s() == 0
    clocks.work(cpu=4.0, wall=4.0)
    assert budget.rest_s() == pytest.approx(4)
    clocks.work(cpu=0.0, wall=4.0)
    clocks.work(cpu=1.0, wall=100.0)
    assert budget.rest_s() == 0
    clocks.work(cpu=2.0, wall=1.0)
    assert budget.rest_s() == pytest.approx(3)


def test_an_account_lasts_a_period_at_least() -> None:
    clocks = Clocks()
    budget = clocks.budget(0.5, 2.0)
    for _ in range(2):
        clocks.work(cpu=0.1, wall=0.1)
        assert budget.rest_s() == pytest.approx(1.9)
        clocks.work(cpu=0.0, wall=1.9)


@pytest.mark.parametrize("share", [0.01, 0.05, 0.5, 1.0])
def test_the_share_is_kept_whatever_comes(share: float) -> None:
    random = np.random.default_rng(0)
    clocks = Clocks(cpu=2.0)
    budget = clocks.budget(share * 4)
    budget.rest_s()
    started = clocks.wall
    for _ in range(200):
        wall = float(random.exponential(5))
        clocks.work(cpu=wall * float(random.uniform(0, 2)), wall=wall)
        rest = budget.rest_s()
        resting = 0.002 * rest  # for the reports
        clocks.work(cpu=0.0, wall=rest)
        assert clocks.cpu - 2.0 <= share * 4 * (clocks.wall - started) * 1.000001
        clocks.work(cpu=resting, wall=float(random.exponential(1)))  # waits for a model


def test_by_which_statistic_models_are_compared() -> None:
    one = np.ones(3)
    assert main_statistic({"length": one, "r": one, "score": one}) == "score"
    assert main_statistic({"length": one, "r": one}) == "r"
    assert main_statistic({"length": one, "won": one}) == "length"
    with pytest.raises(UserCodeError, match="no statistic"):
        main_statistic({})


# --- the best model


def agent(bias: float) -> Agent:
    model = torch.nn.Linear(1, 1)
    torch.nn.init.constant_(model.bias, bias)
    return cast(Agent, SimpleNamespace(model=model, save_model=dict))


def offer(best: BestModel, version: tuple[int, int], score: float) -> bool:
    one = Evaluation(Version(*version), 100 * version[1], "score", score, 0.0, Version(0, 0), {"score": score})
    return best.offer(agent(version[1]), one, "cafe", {"cpu_s": 1.5})


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_best_may_be_chosen_by_a_list_of_statistics(tmp_path: Path) -> None:
    def shown(best: BestModel, update: int, cleared: float, least: float, score: float) -> bool:
        means = {"cleared": cleared, "score_least": least, "score": score}
        one = Evaluation(Version(1, update), update, "score", score, 0.0, Version(0, 0), means)
        return best.offer(agent(update), one, "cafe", {})

    by, folder = ("cleared", "score_least"), tmp_path / "best_ckpt"
    best = BestModel(folder, SETTING, by)
    assert shown(best, 1, 50.0, 3.0, 9.0)
    assert not shown(best, 2, 40.0, 8.0, 99.0)
    assert shown(best, 3, 50.0, 4.0, 5.0)
    best = BestModel(folder, SETTING, by)  # a resume
    assert not shown(best, 4, 50.0, 4.0, 5.0)
    assert shown(best, 5, 50.0, 4.0, 6.0)
    assert (best.version, best.score) == ((1, 5), 6.0)
    with pytest.raises(ConfigError, match=r"names 'clear', but an evaluation has .*did you mean 'cleared'"):
        shown(BestModel(tmp_path / "other", SETTING, ("clear",)), 1, 1.0, 1.0, 1.0)
    (folder / "model.ckpt-1-5.json").write_text(json.dumps({"score": 6.0, "setting": SETTING, "means": {}}))
    assert BestModel(folder, SETTING, by).score == -math.inf  # damaged: unknown
    assert BestModel(folder, {**SETTING, "episodes": 5}, by).score == -math.inf
    assert names(tmp_path) == ["best_ckpt"]


def test_the_best_is_kept_and_found(tmp_path: Path) -> None:
    folder = tmp_path / "best_ckpt"
    best = BestModel(folder, SETTING)
    assert (best.version, best.score) == ((0, 0), -math.inf)
    assert not offer(best, (1, 0), math.nan)
    assert offer(best, (1, 10), -5.0)
    assert not offer(best, (1, 20), -5.0)  # who is first stays
    assert offer(best, (1, 30), 7.0)
    assert not offer(best, (2, 25), 6.9)
    assert (best.version, best.score) == ((1, 30), 7.0)
    assert names(folder) == ["model.ckpt-1-30", "model.ckpt-1-30.json"]
    found = checkpoint.find(folder, "latest")
    assert (found.version, found.env_steps, found.schema) == ((1, 30), 3000, "cafe")
    loaded = torch.nn.Linear(1, 1)
    checkpoint.load_bytes(loaded, found.weights)
    assert loaded.bias.item() == 30
    body = json.loads((folder / "model.ckpt-1-30.json").read_text())
    assert (body["version"], body["score"], body["statistic"], body["cpu_s"]) == ([1, 30], 7.0, "score", 1.5)

    again = BestModel(folder, SETTING)  # a resume, or a restart of the evaluator
    assert (again.version, again.score) == ((1, 30), 7.0)
    assert not offer(again, (2, 26), 6.0)
    assert offer(again, (2, 27), 8.0)
    assert names(folder) == ["model.ckpt-2-27", "model.ckpt-2-27.json"]


def test_scores_of_other_episodes_are_not_compared(tmp_path: Path) -> None:
    folder = tmp_path / "best_ckpt"
    assert offer(BestModel(folder, SETTING), (1, 10), 100.0)
    best = BestModel(folder, {**SETTING, "episodes": 5})
    assert best.score == -math.inf
    assert names(tmp_path) == ["best_ckpt"]  # a run that ends before an evaluation keeps the best that it had
    assert offer(best, (1, 20), 1.0)
    assert offer(best, (1, 21), 2.0)
    assert offer(BestModel(folder, SETTING), (1, 30), 1.0)
    assert names(tmp_path) == ["best_ckpt", "best_ckpt.1", "best_ckpt.2"]
    assert checkpoint.find(tmp_path / "best_ckpt.1", "latest").version == (1, 10)


def test_killed_between_the_files_of_a_model(tmp_path: Path) -> None:
    folder = tmp_path / "best_ckpt"
    offer(BestModel(folder, SETTING), (1, 10), 1.0)
    (folder / "model.ckpt-1-20.json").write_text("{}")
    (folder / ".model.ckpt-1-15.json.4711").write_text("{")
    (folder / ".writing-model.ckpt-1-20").mkdir()
    best = BestModel(folder, SETTING)
    assert (best.version, best.score) == ((1, 10), 1.0)
    assert offer(best, (1, 30), 2.0)
    assert names(folder) == ["model.ckpt-1-30", "model.ckpt-1-30.json"]


@pytest.mark.parametrize("text", ["", "[]", '{"score": "high", "setting": {}}', '{"setting": {}}'])
def test_a_best_whose_score_is_lost_counts_as_unknown(tmp_path: Path, text: str) -> None:
    folder = tmp_path / "best_ckpt"
    offer(BestModel(folder, SETTING), (1, 10), 1.0)
    (folder / "model.ckpt-1-10.json").write_text(text)
    best = BestModel(folder, SETTING)
    assert best.score == -math.inf
    assert offer(best, (1, 20), 0.5)


def test_a_damaged_best_counts_as_unknown(tmp_path: Path) -> None:
    folder = tmp_path / "best_ckpt"
    offer(BestModel(folder, SETTING), (1, 10), 1.0)
    (folder / "model.ckpt-1-10" / "model.safetensors").write_bytes(b"nothing")
    assert BestModel(folder, SETTING).score == -math.inf


def test_a_model_that_could_not_be_written_is_not_the_best(tmp_path: Path) -> None:
    folder = tmp_path / "best_ckpt"
    folder.write_text("no folder")
    best = BestModel(folder, SETTING)
    with pytest.raises(OSError, match=r"best_ckpt"):
        offer(best, (1, 10), 1.0)
    assert best.score == -math.inf
    folder.unlink()
    assert offer(best, (1, 20), 0.5)


def test_a_model_of_few_episodes_is_the_best_only_until_another_has_played_all(tmp_path: Path) -> None:
    best = BestModel(tmp_path / "best_ckpt", SETTING)
    one = Evaluation(Version(1, 3), 300, "score", 50.0, 0.0, Version(0, 0), {"score": 50.0})
    assert best.offer(agent(3), one, "cafe", {}, few=True)
    again = BestModel(tmp_path / "best_ckpt", SETTING)  # also after a restart
    assert (again.version, again.score) == ((1, 3), 50.0)
    assert not offer(again, (1, 9), math.nan)
    assert offer(again, (1, 10), 7.0)
    assert not again.offer(agent(3), one, "cafe", {}, few=True)
    assert not offer(again, (1, 20), 6.0)


@pytest.mark.parametrize("text", ["", "{}", '{"version": [1, 0], "statistic": "r", "best": 1, "score": 1}'])
def test_the_untrained_policy_is_the_best_of_nothing(tmp_path: Path, text: str) -> None:
    assert offer(BestModel(tmp_path / "best_ckpt", SETTING), (1, 0), 0.0)
    lines = tmp_path / "evaluations.jsonl"
    lines.write_text(text)
    assert (best_model(tmp_path), evaluated(tmp_path)) == (None, None)
    lines.write_text('{"version": [1, 7], "statistic": "r", "best": 1, "score": 0}')  # it was better than a trained one
    best = best_model(tmp_path)
    assert best is not None
    assert (best.version.update, evaluated(tmp_path)) == (0, ("r", 1.0, 0.0))


# --- environments of all kinds


class Small(gymnasium.Env[Array, int]):
    """Ends after `length` steps (0: never), each with a reward of 1; the step `fails_at` of an object goes wrong."""

    observation_space = gymnasium.spaces.Box(-1, 1, (4,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, length: int = 5, fails_at: int = 0, how: str = "raise") -> None:
        self.length, self.fails_at, self.how, self.made = length, fails_at, how, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(4, np.float32), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.made, self.steps = self.made + 1, self.steps + 1
        over = self.steps == self.length
        if self.made != self.fails_at:
            return np.zeros(4, np.float32), 1.0, over, False, {"half": self.steps / 2}
        if self.how == "raise":
            raise ConnectionError("lost the connection")
        if self.how == "exit":
            raise SystemExit(3)
        obs = {"nan": np.full(4, np.nan, np.float32), "shape": np.zeros(3, np.float32), "none": None}
        return obs[self.how], 1.0, over, False, {}


gymnasium.register("Small-v0", Small)


def small(*settings: str, count: Count = lambda name, amount: None) -> tuple[RunConfig, list[Small], RestartingEnvs]:
    """Four environments as the settings say: the configuration, each alone, and all behind the guard."""
    config = load_config(ROOT / "conf" / "classic.toml", ["env.id=Small-v0", *settings])
    hyper, definition = load_hyper(config.app.algo, config.hyper), load_definition(config.app.algo)
    made = definition.make_envs(4, 0, hyper, config.env)
    ones = [one.unwrapped for one in made.unwrapped.envs]
    return config, ones, guarded(config, made, definition.spec(made, hyper), 0, count)


def played(episodes: int, *settings: str) -> tuple[EpisodeStatistics, list[float]]:
    """An evaluation of environments as the settings say, and how many episodes each failure cost."""
    lost = list[float]()
    config, _, envs = small(*settings, count=lambda name, amount: lost.append(amount))
    return evaluate(config, envs, Judged().predict, episodes, 0.0, 0, most_steps=40), lost


def test_an_environment_that_has_played_its_episodes_stands_still() -> None:
    (config, ones, envs), lengths = small(), [3, 5, 30, 10]
    for one, length in zip(ones, lengths, strict=True):
        one.length = length
    for again in (1, 2):
        found = evaluate(config, envs, Judged().predict, 8, 0.0, 0)
        assert sorted(found.statistics["l"].tolist()) == sorted(2 * lengths)
        assert [one.made for one in ones] == [2 * again * length for length in lengths]


@pytest.mark.parametrize("how", ["raise", "exit", "nan", "shape", "none"])
def test_an_episode_in_which_an_environment_fails_is_played_again(how: str) -> None:
    """Each environment fails in its third episode, and as often again as it is made again."""
    found, lost = played(14, "env.fails_at=12", f"env.how={how}")
    assert {name: set(found.statistics[name].tolist()) for name in ("r", "l")} == {"r": {5.0}, "l": {5.0}}
    assert (len(found.statistics["r"]), found.cut, found.ended) == (14, "", 14)
    assert sum(lost) >= 4


def test_environments_that_fail_at_once_are_given_up_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("realm.rollout.rounds._PAUSE_S", 0.0)
    with pytest.raises(RunError, match=r"failed 3 times in a row.*lost the connection"):
        played(4, "env.fails_at=2")


@pytest.mark.parametrize(
    ("settings", "returns", "lengths", "says"),
    [
        (["env.length=0"], [40.0] * 4, [40.0] * 4, "did not end within 40 steps and was cut"),
        (["env.length=41"], [40.0] * 4, [40.0] * 4, "did not end within 40 steps and was cut"),
        (
            ["env.length=0", "env.max_episode_steps=7"],
            [7.0] * 6,
            [7.0] * 6,
            "",
        ),  # a limit of its own, also a longer one
        (["env.length=0", "env.max_episode_steps=60"], [60.0] * 6, [60.0] * 6, ""),
        (["env.length=1"], [1.0] * 6, [1.0] * 6, ""),  # over at the first step
        (["env.length=40"], [40.0] * 6, [40.0] * 6, ""),
    ],
)
def test_an_episode_of_any_length_comes_to_an_end(
    settings: list[str], returns: list[float], lengths: list[float], says: str
) -> None:
    found, _ = played(6, *settings)
    assert (found.statistics["r"].tolist(), found.statistics["l"].tolist()) == (returns, lengths)
    assert says in found.cut
    assert bool(found.cut) == bool(says)
    assert found.truncated == (6 if "env.max_episode_steps" in str(settings) else 0)  # by gymnasium's TimeLimit


def test_an_episode_that_is_cut_is_counted_as_the_others_are() -> None:
    """With what `log_info` names, and by the environment's own rewards."""
    config, ones, envs = small("env.reward_scale=0.1", 'log_info=["half"]')
    for one, length in zip(ones, [5, 0, 7, 0], strict=True):
        one.length = length
    found = evaluate(config, envs, Judged().predict, 4, 0.0, 0, most_steps=40)
    assert {name: values.tolist() for name, values in found.statistics.items()} == {
        "r": [5.0, 7.0, 40.0, 40.0], "l": [5.0, 7.0, 40.0, 40.0], "half": [2.5, 3.5, 20.0, 20.0],
    }  # fmt: skip
    assert "so it does not count" not in found.cut


def test_a_recorder_around_each_environment_reports_the_same() -> None:
    one = gymnasium.wrappers.RecordEpisodeStatistics(Small(length=2))
    envs = gymnasium.vector.SyncVectorEnv([lambda: one])
    envs.reset(seed=0)
    envs.step(np.zeros(1, np.int64))
    told = reported(envs.step(np.zeros(1, np.int64))[4])
    assert {name: values[0] for name, values in told.items() if name != "t"} == {"r": 2.0, "l": 2}


def test_the_first_evaluation_is_short_and_endless_ones_stay_so(
    tmp_path: Path, logged: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("realm.learn.judge.MOST_STEPS", 200)
    monkeypatch.setattr("realm.learn.judge._ENDLESS_STEPS", 50)

    def lines(folder: str, *settings: str) -> list[tuple[int, int, float]]:
        one, _ = judge(tmp_path / folder, "env.id=Small-v0", "eval_episodes=20", *settings)
        for update in range(3):
            one.judge(Version(1, update), 10 * update, 0)
        one.close()
        told = [json.loads(line) for line in (tmp_path / folder / "evaluations.jsonl").read_text().splitlines()]
        return [(line["episodes"], line["ended"], line["means"]["l"]) for line in told]

    for folder in ("short", "steps", "endless"):
        (tmp_path / folder).mkdir()
    assert lines("short") == [(8, 8, 5), (16, 16, 5), (20, 20, 5)]
    assert lines("steps", "eval_every_steps=10") == [(8, 8, 5), (20, 20, 5), (20, 20, 5)]
    assert lines("endless", "env.length=0") == [(8, 0, 50), (8, 0, 50), (8, 0, 50)]
    assert sum("did not end within" in line for line in logged) == 1
    assert json.loads((tmp_path / "endless" / "evaluations.jsonl").read_text().splitlines()[-1])["best"] == 50


# --- what it leaves and says


def test_a_line_after_a_torn_one(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    add_line(path, {"a": 1})
    add_line(path, {"a": 2})
    with path.open("a") as file:
        file.write('{"a": ')
    add_line(path, {"a": 3})
    assert path.read_text() == '{"a": 1}\n{"a": 2}\n{"a": \n{"a": 3}\n'


class Judged:
    """Pushes the cart to the left, or where the pole falls to, and notes what it is told of its weights."""

    def __init__(self) -> None:
        self.model, self.told = torch.nn.Linear(1, 1), set[tuple[float, int, int]]()

    def save_model(self) -> dict[str, Any]:
        return {}

    def predict(self, obs: Arrays, context: PredictContext) -> tuple[Array, Arrays]:
        self.told |= {(float(explore), context.env_steps, context.memory_size) for explore in context.explore}
        return ((context.explore > 0) & (obs["state"][:, 2] > 0)).astype(np.int64), {}


def judge(run_dir: Path, *settings: str, tick: Callable[[], None] = lambda: None) -> tuple[Judge, Judged]:
    config = load_config(ROOT / "conf" / "classic.toml", ["eval_episodes=6", *settings])
    hyper, definition = load_hyper(config.app.algo, config.hyper), load_definition(config.app.algo)
    spec = definition.spec(definition.make_envs(1, 0, hyper, config.env), hyper)
    agent = Judged()
    return Judge(config, cast(Agent, agent), spec, run_dir, tick), agent


def test_both_halves_know_the_model_and_tell_their_spread(tmp_path: Path) -> None:
    one, agent = judge(tmp_path, "eval_actions=both")
    means = one.judge(Version(1, 5), 700, 40).means
    assert agent.told == {(0.0, 700, 40), (1.0, 700, 40)}
    one.judge(Version(1, 6), 800, 50)
    assert {told[1:] for told in agent.told} == {(700, 40), (800, 50)}
    for name in ("r", "r_sampled"):
        assert means[f"{name}_least"] <= means[f"{name}_median"] <= means[f"{name}_greatest"]
        assert means[f"{name}_least"] < means[name] < means[f"{name}_greatest"]
        assert means[f"{name}_deviation"] > 0
    assert means["r_greatest"] < means["r_sampled_greatest"]


def test_a_best_model_that_cannot_be_written_costs_no_line(tmp_path: Path, logged: list[str]) -> None:
    one, _ = judge(tmp_path)
    (tmp_path / "best_ckpt").write_text("no folder")
    assert one.judge(Version(1, 5), 700, 40).score > 0
    assert "cannot write the best model, of update 5" in logged[-2]
    assert len((tmp_path / "evaluations.jsonl").read_text().splitlines()) == 1


def test_who_goes_on_with_a_run_keeps_to_its_stretches(tmp_path: Path) -> None:
    def due(*env_steps: int) -> list[int]:
        """At which of these a new process judges first."""
        one, _ = judge(tmp_path, "eval_every_steps=1000")
        return [steps for steps in env_steps if one.is_due(steps)]

    one, _ = judge(tmp_path, "eval_every_steps=1000")
    assert one.last is None
    for steps in (0, 500, 990, 1010, 1990):
        if one.is_due(steps):
            one.judge(Version(1, steps), steps, 0)
    assert one.last == 1010
    assert due(1010, 1500, 1990, 2010) == [2010]
    assert due(2010) == [2010]  # it was stopped before it could
    assert due(700, 990, 1000) == [1000]  # a crash took steps back
    (tmp_path / "evaluations.jsonl").write_text('{"env_steps": 3500}\n{"env_st')
    assert due(3600, 3990, 4000) == [4000]
    (tmp_path / "evaluations.jsonl").write_text('{"env_steps": "many"}\n')
    assert due(10) == [10]
    every_model, _ = judge(tmp_path)
    assert every_model.is_due(10)
    assert every_model.is_due(10)


def test_a_tick_that_raises_gives_up(tmp_path: Path) -> None:
    def stop() -> None:
        raise Stopped

    one, agent = judge(tmp_path, tick=stop)
    with pytest.raises(Stopped):
        one.judge(Version(1, 5), 700, 40)
    assert agent.told == set()
    assert not list(tmp_path.iterdir())


def test_models_are_due_at_whole_multiples() -> None:
    assert [next_due(steps, 50) for steps in (0, 1, 49, 50, 51, 120)] == [50, 50, 50, 100, 100, 150]
    assert next_due(777, 0) == 0


def test_spread_of_a_statistic() -> None:
    assert means_of({"r": np.array([4.0, 0.0, 2.0, 10.0]), "l": np.arange(3)}) == {
        "r": 4.0, "l": 1.0, "r_median": 3.0, "r_deviation": pytest.approx(math.sqrt(14)),
        "r_least": 0.0, "r_greatest": 10.0,
    }  # fmt: skip


def test_an_evaluation_crosses_the_wire() -> None:
    one = Evaluation(Version(1, 20), 2000, "score", 1.5, 2, Version(1, 10), {"score": 1.5, "length": 3})
    meta = json.loads(json.dumps(dataclasses.asdict(one)))
    assert parsed(Message("evaluated", 1, meta), Evaluation) == one
    for wrong in ({"score": "1.5"}, {"best": None}, {"means": {"score": []}}, {"version": [1]}, {"env_steps": 1.5}):
        with pytest.raises(WireError):
            parsed(Message("evaluated", 1, {**meta, **wrong}), Evaluation)
