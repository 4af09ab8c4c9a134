"""How a project's code is called: the five methods below any decorators, and a workflow that calls exit()."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from realm.errors import RunError, UserCodeError
from realm.kaiwu import methods, train_workflow
from realm.kaiwu.methods import METHODS, Side, act_as, checked_answers, is_wrapped, plain, wrapper
from realm.kaiwu.train_workflow import _exit_is_return, _Through

CALLS: list[str] = []


def plain_decorator(function: Any) -> Any:
    """As people write it, without functools.wraps."""

    def inner(*args: Any, **kwargs: Any) -> Any:
        CALLS.append("before")
        return function(*args, **kwargs)

    return inner


def tidy_decorator(function: Any) -> Any:
    return functools.wraps(function)(plain_decorator(function))


class Base:
    @wrapper("exploit")
    def exploit(self, list_obs_data: Any) -> Any:
        return [self.predict([one])[0] for one in list_obs_data]

    @wrapper("save_model")
    def save_model(self, path: Any = None, id: Any = "1") -> Any:
        return "own"

    load_model = wrapper("load_model")(lambda self, path=None, id="1": "own")


class Agent(Base):
    @plain_decorator
    @wrapper("predict")
    def predict(self, list_obs_data: Any) -> Any:
        return list(list_obs_data)

    @tidy_decorator
    @wrapper("learn")
    def learn(self, list_sample_data: Any) -> Any:
        return "own"

    @wrapper("save_model")
    def save_model(self, path: Any = None, id: Any = "1") -> Any:
        return [super().save_model(path, id)]


class Elsewhere(Side):
    def predict(self, agent: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
        return ["elsewhere"]

    learn = save_model = predict


@pytest.fixture(autouse=True)
def side(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(methods, "_side", Side())
    act_as(Elsewhere())
    CALLS.clear()


def test_wrappers_are_found_and_work_below_other_decorators() -> None:
    agent = Agent()
    assert all(is_wrapped(getattr(Agent, name), name) for name in METHODS)
    assert not is_wrapped(Agent.predict, "learn")
    assert not is_wrapped(plain_decorator(len), "predict")
    assert agent.predict([1]) == agent.learn([1]) == agent.save_model() == ["elsewhere"]
    assert CALLS == ["before", "before"]
    assert plain(agent, "predict", [1]) == [1]
    assert plain(agent, "learn", [1]) == "own"
    assert CALLS == ["before"] * 4
    assert plain(agent, "save_model", path="x", id="2") == ["own"], "its parent's is called, too"
    assert plain(agent, "exploit", [1, 2]) == ["elsewhere"] * 2, "another method goes where the process says"


def test_answers_are_as_many_as_were_asked_for() -> None:
    assert checked_answers(Agent.exploit, (1, 2), 2) == (1, 2)
    with pytest.raises(UserCodeError, match=r"methods.py:\d+: Agent.exploit got 2 ObsData and returned 1 th"):
        checked_answers(Agent.exploit, [1], 2)
    with pytest.raises(UserCodeError, match="returned NoneType"):
        checked_answers(Agent.exploit, None, 1)


def test_only_time_in_which_it_plays_counts_as_time_without_learn(
    monkeypatch: pytest.MonkeyPatch, logged: list[str]
) -> None:
    """Not a wait of minutes in learn, predict or a debugger, nor a machine that slept."""
    now = [0.0]
    monkeypatch.setattr(train_workflow.time, "monotonic", lambda: now[0])
    calls = train_workflow._Calls(None, SimpleNamespace(tick=lambda: None))  # type: ignore[arg-type]

    def play(seconds: float, step_s: float) -> None:
        for _ in range(round(seconds / step_s)):
            now[0] += step_s
            calls.tick()

    calls.load_model(None, None)
    for _ in range(3):
        play(50, 0.1)
        calls.mark_learnt()
        now[0] += 300  # it stood in learn
        calls.tick()
    play(7 * 3600, 3600)
    assert logged == []
    play(70, 0.1)
    play(70, 0.1)
    assert logged == ["WARNING the workflow has not called agent.learn for a minute"]


def test_a_bare_except_cannot_keep_a_workflow_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    config = SimpleNamespace(root=Path(__file__).parent)
    monkeypatch.setattr(train_workflow, "current", lambda: SimpleNamespace(config=config))
    monkeypatch.setattr(train_workflow, "_TICK_EVERY_S", 0.0)

    def end() -> None:
        raise RunError("the run ends")

    calls = train_workflow._Calls(None, SimpleNamespace(tick=end))  # type: ignore[arg-type]
    turns: list[int] = []

    def workflow() -> None:
        while True:
            try:
                turns.append(1)
                assert len(turns) < 1000
                calls.tick()
            except:  # noqa: E722
                continue

    before = sys.gettrace()
    try:
        with pytest.raises(_Through, match="the run ends"):
            workflow()
    finally:
        sys.settrace(before)
    assert 1 < len(turns) < 100


def test_a_workflow_that_exits_without_an_error_has_finished() -> None:
    with _exit_is_return():
        raise SystemExit
    with pytest.raises(SystemExit), _exit_is_return():
        raise SystemExit("no map")
