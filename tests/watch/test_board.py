"""realm/launch/board.py: sums over processes and restarts, rates that are never negative, the status."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest
from loguru import logger

from realm.config.plan import Plan
from realm.contract import Evaluation, Report, Version, curve_name
from realm.watch import board as module
from realm.watch.board import GAUGES, RECENT_EPISODES, Board
from realm.watch.status import Scored, Status
from realm.watch.summary import bypasses, shares, write_summary
from realm.wire.codec import Message, WireError
from realm.wire.control import parse_report


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Clock:
    one = Clock()
    monkeypatch.setattr(module, "time", one)
    return one


@pytest.fixture
def board(time: Clock) -> Board:
    return Board(started_at=time.now)


def take(
    board: Board, role: str = "aisrv", index: int = 0, incarnation: int = 1, env_steps: int = 0,
    means: dict[str, list[float]] | None = None, **totals: float,
) -> None:  # fmt: skip
    board.take(Report(role, index, env_steps, totals, means or {}), incarnation)


def test_totals_add_up_over_processes_and_restarts(board: Board) -> None:
    take(board, index=0, env_steps=5, actions=10)
    take(board, index=0, env_steps=5, actions=100)  # since its start: replaces what it said before
    take(board, index=1, actions=7)
    assert board.total("aisrv", "actions") == 107
    take(board, index=0, incarnation=2, actions=3)  # killed and started again: counts from 0
    assert board.total("aisrv", "actions") == 110
    take(board, index=0, incarnation=1, actions=101)  # its forerunner's last report comes late
    assert board.total("aisrv", "actions") == 111
    assert board.total("aisrv", "absent") == board.total("learner", "actions") == 0
    assert board.of_process("aisrv", 0, 2) == {"actions": 3}
    assert board.of_process("aisrv", 5, 1) == {}
    assert board.processes() == {
        "aisrv-0.1": {"actions": 101},
        "aisrv-0.2": {"actions": 3},
        "aisrv-1.1": {"actions": 7},
    }


def test_levels_count_for_living_processes_only(board: Board) -> None:
    assert {"size", "rss_mb", "version_update"} <= GAUGES
    take(board, "buffer", size=500, inserted=500, rss_mb=100)
    take(board, "buffer", incarnation=2, size=20, inserted=20, rss_mb=90)
    assert board.total("buffer", "size") == 20
    assert board.total("buffer", "inserted") == 520
    take(board, "aisrv", 0, rss_mb=100)
    take(board, "aisrv", 1, rss_mb=150)
    assert board.total("aisrv", "rss_mb") == 250


def test_env_steps_are_the_learners(board: Board) -> None:
    take(board, "learner", env_steps=4000)
    take(board, "aisrv", env_steps=9999)
    assert board.env_steps == 4000
    take(board, "learner", incarnation=2)  # one that could not even start
    assert board.env_steps == 4000
    board.begin(3500)  # back at its last checkpoint
    assert board.env_steps == 3500
    take(board, "learner", incarnation=3, env_steps=3600)
    assert board.env_steps == 3600


def test_before_the_first_batch_env_steps_are_what_came_into_the_buffer(board: Board) -> None:
    """The learner knows of none, and reports come in any order: no step counts twice, and none is taken back."""
    board.begin(500)
    take(board, "buffer", new_env_steps=300)
    assert board.env_steps == 800
    take(board, "buffer", new_env_steps=700, warm_up_left=300)
    take(board, "learner", env_steps=500)
    assert board.env_steps == 1200
    assert board.status("running", 256, 0, 0.0).warm_up_left == 300
    take(board, "buffer", new_env_steps=0, warm_up_left=0)  # of the first batch the learner has said nothing yet
    assert board.env_steps == 1200
    take(board, "buffer", new_env_steps=900)
    take(board, "learner", env_steps=1600)
    assert board.env_steps == 1600
    assert board.status("running", 256, 0, 0.0).warm_up_left == 0
    take(board, "buffer", new_env_steps=40)  # from then on they count when a batch tells them
    assert board.env_steps == 1600
    take(board, "buffer", incarnation=2, new_env_steps=0)
    board.begin(900)  # a learner that was started again
    take(board, "buffer", incarnation=2, new_env_steps=20)
    assert board.env_steps == 920


def test_where_workers_play_on_a_living_run_shows_what_they_have_played() -> None:
    """In a long update the learner tells nothing; a learner that begins again counts from its checkpoint."""
    board, none = Board(plays_on=True), (256, 0, 0.0)

    def played(index: int, env_steps: int, incarnation: int = 1) -> None:
        board.take(Report("aisrv", index, 0, {"env_steps": env_steps}, {}), incarnation)

    board.begin(500)
    played(0, 40)
    played(1, 60)
    take(board, "learner", env_steps=550)
    assert board.status("running", *none).env_steps == 600
    played(1, 200)
    assert (board.status("running", *none).env_steps, board.env_steps) == (740, 550)
    assert board.status("stopped", *none).env_steps == 550, "what is trained on, as in its last checkpoint"
    board.begin(510)
    played(1, 30, incarnation=2)
    assert board.status("running", *none).env_steps == 540
    board.plays_on = False
    assert board.status("running", *none).env_steps == 510


def test_rates_and_the_remaining_time_count_from_the_first_step(board: Board, time: Clock) -> None:
    time.now += 20  # of a start
    board.begin(0)
    board.trains_since = time.now
    time.now += 2
    board.take(Report("aisrv", 0, 0, {"env_steps": 2000.0, "cpu_s": 18.0}, {}), 1)
    board.count(2000, 0)
    values = board.curves()
    assert values["system/env_steps_per_s"] == pytest.approx(1000)
    assert values["system/aisrv/cpu_share"] == pytest.approx(18 / 22)  # of the process, which began with the run
    assert board.status("running", 0, 1_000_000, 0.0).remaining_s == pytest.approx(998)


@pytest.mark.parametrize(
    ("statistic", "curve"),
    [
        ("r", "return"),
        ("l_sampled", "length_sampled"),
        ("r_sampled_median", "return_sampled_median"),
        ("t", ""),
        ("turn", ""),
        ("r_foot", "r_foot"),
        ("turn_rate", "turn_rate"),
        ("t_goal", "t_goal"),
        ("sold", "sold"),
    ],
)
def test_what_a_statistic_is_called(statistic: str, curve: str) -> None:
    assert curve_name(statistic) == curve


def test_curves(board: Board, time: Clock) -> None:
    time.now += 1
    take(board, "learner", env_steps=100, means={"loss": [6.0, 3]}, updates=10, busy_s=0.5, pid=123)
    take(board, "aisrv", 0, means={"episode/score": [300.0, 2]}, env_steps=400)
    take(board, "aisrv", 1, means={"episode/score": [900.0, 1]}, env_steps=600)
    time.now += 1
    take(board, "learner", env_steps=200, means={"loss": [2.0, 1]}, updates=20, busy_s=1.0, pid=123)
    take(board, "buffer", size=50)
    values = board.curves()
    assert values["learner/loss"] == pytest.approx(8 / 4)
    assert values["episode/score"] == pytest.approx(400)  # a mean over episodes, not over workers
    assert values["system/learner/updates_per_s"] == pytest.approx(10)
    assert values["system/learner/busy_share"] == pytest.approx(0.5)
    assert values["system/buffer/size"] == 50
    assert not any("pid" in name for name in values)

    time.now += 4
    take(board, "learner", incarnation=2, env_steps=150, updates=2, busy_s=0.1)  # restarted
    values = board.curves()
    assert values["system/learner/updates_per_s"] == pytest.approx(2 / 4)
    assert "learner/loss" not in values  # nothing new, no point in the curve
    assert "episode/score" not in values
    assert all(value >= 0 for name, value in values.items() if name.endswith(("_per_s", "_share")))


def test_rates_of_env_steps_come_from_the_workers_totals(board: Board, time: Clock) -> None:
    time.now += 2
    board.take(Report("aisrv", 0, 500, {"env_steps": 500}, {}), 1)
    board.take(Report("aisrv", 1, 300, {"env_steps": 300}, {}), 1)
    assert board.curves()["system/env_steps_per_s"] == pytest.approx(400)
    time.now += 1
    assert board.curves()["system/env_steps_per_s"] == 0


@pytest.mark.parametrize("every_s", [2.0, 0.5])
def test_the_displayed_speed_is_that_of_the_last_minute(board: Board, time: Clock, every_s: float) -> None:
    """An update takes 20 s; then a round of 2,000 steps comes at once. However often curves are written."""
    seen, steps = [], 0
    for tick in range(1, int(400 / every_s) + 1):
        time.now += every_s
        steps += 2_000 if tick * every_s % 20 == 0 else 0
        board.take(Report("aisrv", 0, steps, {"env_steps": steps}, {}), 1)
        board.curves()
        if tick * every_s >= 200:
            seen.append(board.status("running", 0, 0, 0.0).env_steps_per_s)
    assert min(seen) > 80
    assert max(seen) < 125


def test_curves_twice_at_once_do_not_divide_by_zero(board: Board) -> None:
    take(board, updates=1)
    assert all(value == value for value in (board.curves() | board.curves()).values())


def test_a_recent_mean_is_of_the_last_episodes_one_by_one(board: Board) -> None:
    random, episodes = Random(4), list[float]()
    for _ in range(200):
        mean, count = float(random.randrange(-50, 1400)), random.choice([1, 2, 7, 60, 199, 200, 201, 450])
        take(board, means={"episode/score": [mean * count, count]})
        episodes += [mean] * count
        last = episodes[-RECENT_EPISODES:]
        assert board.recent("episode/score") == pytest.approx(sum(last) / len(last))


def test_the_means_of_the_live_display(board: Board) -> None:
    take(board, means={"episode/score": [100.0, 1]})
    assert board.recent("episode/score") == 100
    take(board, index=1, means={"episode/score": [300.0, 1]})
    assert board.recent("episode/score") == 200
    take(board, means={"episode/score": [500.0 * 1000, 1000]})
    assert board.recent("episode/score") == 500
    take(board, "learner", means={"loss": [1.0, 1]})
    assert board.recent("learner/loss") == 1
    assert board.recent_of("learner") == {"loss": 1.0}
    assert board.recent("absent") is None


def test_one_nan_does_not_stay_in_a_running_mean(board: Board) -> None:
    take(board, "learner", means={"loss": [float("nan"), 1]})
    assert board.recent("learner/loss") is None
    take(board, "learner", means={"loss": [1.0, 1]})
    for bad in ("nan", "inf", "-inf"):
        take(board, "learner", means={"loss": [float(bad), 1]})
    assert board.recent("learner/loss") == 1
    take(board, means={"episode/score": [float("nan"), 1]})
    assert board.recent("episode/score") is None
    take(board, means={"episode/score": [7.0, 1]})
    assert board.recent("episode/score") == 7


def test_what_went_past_its_role(board: Board) -> None:
    plan = cast(Plan, SimpleNamespace(predict_local=False))
    take(board, "aisrv", actions=12)
    take(board, "actor", actions=10, models_loaded=2)
    take(board, "evaluator", models_loaded=1)
    take(board, "learner", items_trained=4)
    take(board, "buffer", sampled=8)
    take(board, "model_pool", served=3)
    assert bypasses(board, plan, {}) == {"actions": 2, "samples": 0, "checkpoints": 0}
    take(board, "aisrv", incarnation=2, actions=1)  # who used less than it was given went past nobody
    assert bypasses(board, plan, {}) == {"actions": 3, "samples": 0, "checkpoints": 0}
    take(board, "actor", incarnation=2, actions=0)  # its forerunner, killed, may have given more than it reported
    take(board, "buffer", incarnation=2, sampled=0)
    assert bypasses(board, plan, {}) == {"actions": None, "samples": None, "checkpoints": 0}
    assert bypasses(board, cast(Plan, SimpleNamespace(predict_local=True)), {})["actions"] == 0
    assert bypasses(board, plan, {"aisrv-1.1": "far"})["actions"] == 0


def test_the_account_at_the_end(board: Board, tmp_path: Path) -> None:
    take(board, "aisrv", actions=12)
    take(board, "actor", actions=10)
    take(board, "buffer", sampled=0)
    take(board, "buffer", incarnation=2, sampled=0)
    said: list[str] = []
    sink = logger.add(said.append, format="{message}")
    try:
        write_summary(tmp_path, board, cast(Plan, SimpleNamespace(predict_local=False)), "finished", {})
    finally:
        logger.remove(sink)
    assert [sentence.split(" did not ")[0] for sentence in said] == ["2 actions"]
    assert json.loads((tmp_path / "summary.json").read_text())["bypassed"] == {
        "actions": 2, "samples": None, "checkpoints": 0,
    }  # fmt: skip


def test_each_hosts_share(board: Board) -> None:
    """Of all processes that a host had; models come to its pool alone."""
    told: list[tuple[str, int, int, dict[str, float]]] = [
        ("aisrv", 0, 1, {"env_steps": 7, "wire/bytes_out": 70, "wire/bytes_in": 9}),
        ("aisrv", 1, 1, {"env_steps": 5, "wire/bytes_out": 50, "wire/bytes_in": 9}),
        ("aisrv", 1, 2, {"env_steps": 2, "wire/bytes_out": 20, "wire/bytes_in": 9}),
        ("model_pool", 1, 1, {"wire/bytes_in": 400, "wire/bytes_out": 9}),
    ]
    for role, index, incarnation, totals in told:
        board.take(Report(role, index, 0, totals, {}), incarnation)
    ran = {"aisrv-1.1": "beta", "model_pool-1.1": "beta", "aisrv-1.2": "gamma"}
    assert shares(board, ran) == {
        "beta": {"env_steps": 5, "up": 50, "down": 400},
        "gamma": {"env_steps": 2, "up": 20, "down": 0},
    }


def test_the_status(board: Board, time: Clock) -> None:
    empty = board.status("starting", 256, 0, 0.0)
    assert (empty.env_steps, empty.score, empty.evaluation, empty.best, empty.remaining_s) == (
        0,
        None,
        None,
        None,
        None,
    )
    time.now += 100
    board.take(Report("aisrv", 0, 0, {"env_steps": 200_000, "episodes": 1500}, {"episode/score": [1150.04, 1]}), 1)
    take(board, "learner", env_steps=150_000, means={"policy_lag_updates": [1.5, 3]}, version_update=1234)
    take(board, "buffer", size=100)
    board.curves()
    board.evaluation = Evaluation(Version(1, 12), 900, "score", 980.04, 1001.0, Version(2, 9), {})
    status = board.status("running", 256, 0, 0.0)
    assert status == Status(
        "running", 150_000, 0, 2000.0, 1234, 1500, "score", 1150.04, 1, Scored("score", 980.04, 1, 12),
        Scored("score", 1001.0, 2, 9), 0.5, 100, 256, 100.0, None,
    )  # fmt: skip
    assert board.status("running", 256, 350_000, 0.0).remaining_s == 100
    assert board.status("running", 256, 350_000, 80.0).remaining_s == 80  # training has not begun
    board.trains_since = time.now - 50
    assert board.status("running", 256, 350_000, 80.0).remaining_s == 30  # whichever comes first
    assert board.status("running", 256, 100_000, 0.0).remaining_s == 0
    for _ in range(3000):  # a learner that was stopped: nothing moves, and the rate falls for ever
        time.now += 2
        board.curves()
        remaining = board.status("running", 256, 350_000, 0.0).remaining_s
        assert remaining is None or remaining < 1e8
    assert remaining is None
    assert msgspec.convert(json.loads(json.dumps(msgspec.to_builtins(status))), Status) == status


def test_a_report_crosses_the_wire() -> None:
    meta = {"role": "aisrv", "index": 1, "env_steps": 5, "totals": {"rounds": 2.0}, "means": {"loss": [1.5, 2]}}
    assert parse_report(Message("report", 1, meta)) == Report("aisrv", 1, 5, {"rounds": 2.0}, {"loss": [1.5, 2]})
    wrongs = (
        {"totals": {"rounds": "2"}},
        *({"means": {"loss": pair}} for pair in ([1, 0], [1, "2"], ["1", 2], [1], 5)),
    )
    for wrong in wrongs:
        with pytest.raises(WireError, match=r"report from .*: Expected `(float|array|object)"):
            parse_report(Message("report", 1, {**meta, **wrong}))
