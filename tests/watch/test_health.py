"""realm/watch/health.py: what looks wrong is named once, and healthy runs are left in peace.

`healthy.json` holds what two short runs reported every two seconds: [updates, env steps, numbers]. They are the zoo's
cartpole, which is solved halfway so that its critic has nothing left to explain, and the realm on `conf/local.toml`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path

import pytest

from realm.config.keys import AppConfig
from realm.config.load import RunConfig
from realm.contract import Report
from realm.watch.board import Board
from realm.watch.curves import Curves
from realm.watch.health import Health

Stream = list[tuple[int, int, dict[str, float]]]

HEALTHY: dict[str, Stream] = json.loads((Path(__file__).parents[1] / "healthy.json").read_text())
NAN = float("nan")
CONFIG = RunConfig(AppConfig(), {}, {}, {})


def warned(stream: Iterable[tuple[int, int, dict[str, float]]]) -> list[str]:
    health = Health()
    return [one for updates, env_steps, numbers in stream for one in health.check(numbers, updates, env_steps)]


def after(run: str, times: int, updates: int, **numbers: float) -> Stream:
    """A healthy run whose numbers change at its end, for so many observations of so many updates each."""
    stream = list(HEALTHY[run])
    for _ in range(times):
        update, env_steps, last = stream[-1]
        stream.append((update + updates, env_steps + 1000 * updates, {**last, **numbers}))
    return stream


@pytest.mark.parametrize("run", HEALTHY)
def test_a_healthy_run_is_left_in_peace(run: str) -> None:
    stream = HEALTHY[run]
    assert len(stream) > 15
    for begin in range(len(stream)):  # also if it was resumed at any moment
        assert warned(stream[begin:]) == []
    assert warned(after(run, 500, 10)) == []  # and if it stands there for long


TROUBLES = {
    "exploding loss": {"value_loss": 2e6, "loss": 1e6, "explained_variance": 0.5},
    "exploding gradient": {"grad_norm": 1e5},
    "the critic predicts nothing": {"explained_variance": -2.0, "value_loss": 3.0},
    "the policy runs away": {"approx_kl": 1.5},
    "the policy explores no more": {"entropy": 1e-4, "score": 250.0},
    "training changes nothing": {"lr": 0.0},
    "the score is at its least": {"score": -5.0},
}
SEEN = {
    "exploding loss": "value_loss is 2e+06 and was",
    "exploding gradient": "grad_norm is 1e+05 and was",
    "the critic predicts nothing": "explained_variance is -2.00, worse than",
    "the policy runs away": "approx_kl is 1.5",
    "the policy explores no more": "entropy is 0.0001 and was",
    "training changes nothing": "lr is 0",
    "the score is at its least": "the mean score stands at -5, and its highest was",
}


@pytest.mark.parametrize("run", HEALTHY)
@pytest.mark.parametrize("rule", TROUBLES)
def test_trouble_is_named_once_with_its_beginning_and_advice(rule: str, run: str) -> None:
    update, env_steps, _ = HEALTHY[run][-1]
    (warning,) = warned(after(run, 100, 25, **TROUBLES[rule]))
    assert warning.startswith(f"{rule}: {SEEN[rule]}")
    assert f", since update {update + 25:,} ({env_steps + 25_000:,} env steps); try " in warning


@pytest.mark.parametrize("rule", TROUBLES)
def test_what_passes_is_not_named(rule: str) -> None:
    """However often it comes: two observations in a row are not yet trouble."""
    stream = after("realm", 0, 0)
    for _ in range(50):
        update, env_steps, _ = stream[-1]
        good = {"lr": 1e-4, **HEALTHY["realm"][-1][2]}
        for numbers in ({**good, **TROUBLES[rule]}, {**good, **TROUBLES[rule]}, good):
            update += 1
            stream.append((update, env_steps, numbers))
    assert warned(stream) == []


@pytest.mark.parametrize("rule", ["the critic predicts nothing", "the policy explores no more", "the policy runs away"])
def test_some_troubles_are_named_after_many_updates_only(rule: str) -> None:
    assert warned(after("realm", 9, 1, **TROUBLES[rule])) == []
    assert len(warned(after("realm", 12, 20, **TROUBLES[rule]))) == 1


def test_all_at_once_are_named_one_by_one() -> None:
    everything = {name: value for numbers in reversed(TROUBLES.values()) for name, value in numbers.items()}
    everything |= {"explained_variance": -2.0, "score": -5.0}
    names = [warning.partition(":")[0] for warning in warned(after("cartpole", 100, 25, **everything))]
    assert sorted(names) == sorted(TROUBLES)


def test_what_is_missing_is_no_obstacle() -> None:
    """Agents of users report what they like; and where an update takes long, most observations have no number."""
    assert warned((update, update, {}) for update in range(1000)) == []
    assert warned((update, update, {"q": NAN, "gloss": 1e30, "td": math.inf}) for update in range(1000)) == []
    gaps: Stream = []
    for one in after("realm", 10, 5, grad_norm=1e5):
        gaps += [one, (one[0], one[1], {}), (one[0], one[1], {"score": 1350.0})]
    assert [warning.partition(":")[0] for warning in warned(gaps)] == ["exploding gradient"]
    # without value_loss nobody can say whether there is anything left to explain
    assert warned((update, update, {"explained_variance": -9.0}) for update in range(1000)) == []


def test_a_loss_that_is_no_number_explodes() -> None:
    (warning,) = warned((update, update, {"actor_loss": NAN if update > 50 else 0.3}) for update in range(100))
    assert warning.startswith("exploding loss: actor_loss is nan and was 0.3 at first, since update 51 ")


def test_an_entropy_of_continuous_actions_may_be_negative() -> None:
    assert (
        warned((update, update, {"entropy": 1.4 - 0.01 * update, "score": 0.1 * update}) for update in range(1000))
        == []
    )


def test_the_score_that_never_was_anything() -> None:
    """No episode has scored yet. Always the same score above 0 may be all that there is: a solved task, resumed."""
    (warning,) = warned((update, update, {"score": 0.0}) for update in range(1000))
    assert warning.startswith("the score is at its least: the mean score stands at 0, and its highest was 0, since ")
    assert warned((update, update, {"score": 500.0}) for update in range(1000)) == []


def test_warnings_are_in_the_terminal_and_in_a_file(tmp_path: Path, logged: list[str]) -> None:
    board, curves = Board(), Curves(tmp_path, CONFIG)
    (tmp_path / "log").mkdir()
    curves.write(board)  # before there is a learner
    assert list((tmp_path / "log").iterdir()) == []
    curves.begin(board, 1000)
    for update in range(1, 60):
        means = {"grad_norm": [2e4 if update > 20 else 2.0, 2], "value_loss": [0.5, 1]}
        board.take(Report("learner", 0, 1000 + 100 * update, {"updates": float(update)}, means), 1)
        curves.write(board)
    curves.close()
    (line,) = logged
    sentence = "exploding gradient: grad_norm is 1e+04 and was 1 at first, since update 21 (3,100 env steps); try "
    assert line.startswith(f"WARNING {sentence}")
    (kept,) = (tmp_path / "log" / "warnings.log").read_text().splitlines()
    assert kept.endswith(line.removeprefix("WARNING ").rstrip())


def test_a_warning_that_cannot_be_kept_is_shown_all_the_same(tmp_path: Path, logged: list[str]) -> None:
    (tmp_path / "log" / "warnings.log").mkdir(parents=True)
    board, curves = Board(), Curves(tmp_path, CONFIG)
    curves.begin(board, 0)
    for update in range(1, 10):
        board.take(Report("learner", 0, update, {"updates": float(update)}, {"loss": [NAN, 1]}), 1)
        curves.write(board)
    curves.close()
    assert [line.partition(":")[0] for line in logged] == ["WARNING exploding loss", "WARNING cannot write " + str(
        tmp_path / "log" / "warnings.log")]  # fmt: skip
