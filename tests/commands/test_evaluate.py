"""`realm eval` and `realm/learn/evaluation.py`: who played what, against a slow literal loop; regret and the oracle."""

from __future__ import annotations

import csv
import io
import json
import re
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from diy.config import Config
from diy.feature.definition import as_float32, make_envs
from realm.commands import main as cli
from realm.commands.evaluate import Request, histogram, make_console, write_json
from realm.commands.games import eval_options, load_game
from realm.config.load import EVAL_SEED
from realm.contract import Array, Arrays, PredictContext
from realm.env import commands, oracle, report
from realm.env import map as maps
from realm.env.commands import eval_report
from realm.env.layouts import Outcome, evaluate_layouts, plays_layouts
from realm.env.map import Map
from realm.env.options import Episode, OptionError
from realm.env.oracle import lattice
from realm.errors import ConfigError, UserCodeError
from realm.learn import judge
from tests.cluster import ROOT
from tests.console import end, realm, start

# ---- who played what ----


class Walker:
    """Walks by a hash of what it sees and of how long it has walked, so a wrong order or a lost `first` shows."""

    def __init__(self, num_envs: int) -> None:
        self.age = np.zeros(num_envs, np.int64)
        self.rows: list[int] = []

    def predict(self, obs: Arrays, context: PredictContext) -> tuple[Array, Arrays]:
        slot = context.slot
        assert len(slot) == len(context.first) == len(context.explore) == len(obs["features"])
        self.rows.append(len(slot))
        self.age[slot] = np.where(context.first, 0, self.age[slot] + 1)
        seen = np.floor(as_float32(obs["features"]) * 1000).astype(np.int64)
        number = seen @ (7919 * np.arange(seen.shape[1]) ** 2 % 1009) + self.age[slot] // 9 * 31
        action = np.where(number % 3 == 0, 2, number % 8)  # more to the north than elsewhere
        return np.where(obs["legal"][np.arange(len(slot)), 8] & (number % 50 == 0), action + 8, action), {}


def layouts_of_all_kinds(number: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(3)
    found = []
    for n in range(number):
        start, end, *rest = rng.permutation(np.arange(1, 16)).tolist()
        if n % 2:
            start, end, rest = 12, 11, [3, 5, 10, 14]  # a short way to the north
        conf = {"start": start, "end": end, "treasure_random": 0, "treasure_id": sorted(rest[: int(rng.integers(4))])}
        found.append(conf | {"max_step": int(rng.integers(2, 300))})
    return found


def played_literally(layouts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One environment, one layout after the other."""
    found = []
    for layout in layouts:
        envs, walker = make_envs(1, 0, Config(), {}), Walker(1)
        obs, _ = envs.reset(seed=0, options={"usr_conf": layout})
        first, actions, over = np.ones(1, np.bool_), [], False
        while not over:
            action, _ = walker.predict(obs, PredictContext(np.zeros(1, np.int64), first, np.zeros(1, np.float32)))
            actions.append(int(action[0]))
            obs, _, terminated, truncated, info = envs.step(action)
            first = terminated | truncated
            over = bool(first[0])
        found.append({name: values[0] for name, values in info["episode"].items()} | {"actions": actions})
    return found


@pytest.mark.slow
def test_every_layout_is_played_once_and_told_from_the_others() -> None:
    layouts = layouts_of_all_kinds(40)
    literal = played_literally(layouts)
    # the walker is a good judge: its episodes end in all ways, at many lengths
    assert len({one["length"] for one in literal}) > 30
    assert {bool(one["reached_end"]) for one in literal} == {False, True}
    assert len({one["missed"] for one in literal}) >= 3
    for num_envs in (1, 7, 60):
        check_all_are_played(num_envs, layouts, literal)


def check_all_are_played(num_envs: int, layouts: list[dict[str, Any]], literal: list[dict[str, Any]]) -> None:
    envs, walker, shown = make_envs(num_envs, 0, Config(), {"treasure_num": 13}), Walker(num_envs), []
    played = evaluate_layouts(
        envs, walker.predict, layouts, seed=5, show=lambda *done: shown.append(done), keep_actions=True
    )
    assert played.steps.tolist() == [one["length"] for one in literal]
    assert played.score.tolist() == [one["score"] for one in literal]
    assert played.missed.tolist() == [one["missed"] for one in literal]
    assert played.reached_end.tolist() == [one["reached_end"] for one in literal]
    assert [one.tolist() for one in played.actions] == [one["actions"] for one in literal]
    assert played.stats["turn"].tolist() == list(range(40))
    for name in ("treasures", "flashes", "buffs", "walls"):
        assert played.stats[name].tolist() == [one[name] for one in literal]
    assert [played.steps.dtype, played.score.dtype, played.reached_end.dtype] == [np.int64, np.float64, np.bool_]
    assert (shown[0], shown[-1]) == ((0, num_envs), (40, sum(walker.rows))), "before the first episode ends, too"
    # who has nothing left to play is not acted for: fewer rows than a full batch at each step
    assert sum(walker.rows) < num_envs * len(walker.rows) or num_envs == 1
    # the same environments once more, as a run's evaluation does
    again = evaluate_layouts(envs, Walker(num_envs).predict, layouts[:7], seed=6)
    assert again.steps.tolist() == played.steps[:7].tolist()
    assert again.actions == []


def test_environments_that_do_not_report() -> None:
    class Silent:
        num_envs, metadata = 2, {"layouts": True}

        def __init__(self, info: dict[str, Any]) -> None:
            self.info = info

        def reset(self, *, seed: int, options: dict[str, Any]) -> tuple[Arrays, dict[str, Any]]:
            return {"x": np.zeros(2)}, {}

        def step(self, action: Array) -> tuple[Any, ...]:
            return {"x": np.zeros(2)}, np.zeros(2), np.ones(2, np.bool_), np.zeros(2, np.bool_), self.info

    def predict(obs: Arrays, context: PredictContext) -> tuple[Array, Arrays]:
        return np.zeros(len(context.slot), np.int64), {}

    with pytest.raises(UserCodeError, match=r"without info\['episode'\]"):
        evaluate_layouts(Silent({}), predict, [[3]])
    with pytest.raises(UserCodeError, match="must have 'turn'"):
        evaluate_layouts(Silent({"episode": {"score": np.zeros(2)}, "_episode": np.ones(2, np.bool_)}), predict, [[3]])
    assert plays_layouts(Silent({}))
    assert plays_layouts(make_envs(1, 0, Config(), {}))
    assert not plays_layouts(object())


# ---- layouts ----


def test_all_layouts_and_all_sets() -> None:
    every = report.all_layouts({"treasure_num": 9, "start": 4, "end": 15, "max_step": 700, "map": "default"})
    assert len(every) == len(set(every)) == 715
    assert {(one.start, one.end, one.max_step, len(one.treasure_id or ())) for one in every} == {(4, 15, 700, 9)}
    assert not {4, 15} & {i for one in every for i in one.treasure_id or ()}
    assert len(report.all_layouts({"treasure_id": [3, 4], "treasure_random": 0})) == 78
    sets = report.all_sets({})
    assert len(sets) == len(set(sets)) == 8192
    assert sets[0].treasure_id == tuple(range(3, 16))
    assert sets[-1].treasure_id == ()
    with pytest.raises(OptionError, match="treasure_num is 14"):
        report.all_layouts({"treasure_num": 14})


def test_a_sample_is_not_what_the_best_model_was_chosen_by() -> None:
    env, episodes = {"treasure_num": 9}, 256  # more environments than the evaluator has
    assert Request().seed == cli._parser().parse_args(["eval"]).seed == EVAL_SEED
    assert not set(range(EVAL_SEED, EVAL_SEED + episodes)) & set(range(judge._SEED, judge._SEED + episodes))
    assert report.sampled_layouts(env, episodes, EVAL_SEED) != report.sampled_layouts(env, episodes, judge._SEED)


def test_a_sample_is_what_the_environment_draws() -> None:
    env = {"treasure_num": 6, "treasure_random": 1, "start": 3, "map": "default", "own": 1}
    sample = report.sampled_layouts(env, 300, 8)
    assert len(sample) == 300
    assert sample == report.sampled_layouts(env, 300, 8) != report.sampled_layouts(env, 300, 9)
    assert {(one.start, one.treasure_num, len(set(one.treasure_id or ()))) for one in sample} == {(3, 6, 6)}
    assert len(set(sample)) > 250  # of 1 716
    listed = report.sampled_layouts({"layouts": [[3], {"treasure_id": [9, 5], "start": 4}], "max_step": 9}, 3, 0)
    assert listed == [Episode(2, 1, 9, 1, (3,)), Episode(4, 1, 9, 2, (5, 9)), Episode(2, 1, 9, 1, (3,))]


# ---- regret ----

TREASURES = (3, 7)


@pytest.fixture
def coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds on the coarser lattice, in a quarter of the time."""
    monkeypatch.setattr(oracle, "make_oracle", partial(oracle.make_oracle, fine=lattice.FINE))


@pytest.mark.slow
def test_the_shipped_bounds_are_what_the_oracle_computes() -> None:
    """To a step: the coarser lattice says up to one less, in a quarter of the time."""
    ids = [point for point in range(1, 16) if point not in (2, 1)]
    with np.load(report.shipped_bounds(maps.default(), 2, 1, ids, 2000)) as shipped:
        steps = shipped["steps"]
    assert len(steps) == 8192
    shares: list[float] = []
    some = oracle.make_oracle(maps.default(), treasures=(3, 7, 9, 11, 15), fine=lattice.FINE, report=shares.append)
    places = [sum(1 << ids.index(i) for i in oracle.set_ids(some, part)) for part in range(32)]
    less = steps[places] - some.steps
    assert set(less.tolist()) <= {0, 1}, less
    assert shares == sorted(shares)
    assert len(shares) > 20
    assert 0 < shares[0] < 0.1 < 0.5 < shares[-1] <= 1


def test_shipped_bounds_answer_for_the_default_map_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any) -> None:
        raise AssertionError("the oracle was asked")

    monkeypatch.setattr(oracle, "make_oracle", never)
    layouts = report.all_layouts({"treasure_num": 9, "treasure_random": 1})
    limits = report.bound_limits(maps.default(), layouts, None)
    assert len(limits.score) == 715
    assert (limits.steps > 0).all()
    ids = [point for point in range(1, 16) if point not in (2, 1)]
    default = maps.default()
    assert report.shipped_bounds(Map(default.road, default.points), 2, 1, ids, 2000).is_file()
    moved = default.points.copy()
    moved[5, 0] += 1  # a unit
    others = [(maps.generate(1), 2, 1, ids, 2000), (Map(default.road, moved), 2, 1, ids, 2000)]
    others += [(default, 3, 1, ids, 2000), (default, 2, 1, ids, 1999), (default, 2, 1, ids[1:], 2000)]
    assert not [one for one in others if report.shipped_bounds(*one).exists()]


@pytest.mark.slow
@pytest.mark.usefixtures("coarse")
def test_nobody_beats_the_oracles_bound(tmp_path: Path) -> None:
    """Not even the oracle's own play, which comes near it."""
    map_, cache = maps.default(), tmp_path / oracle.CACHE
    known = oracle.make_oracle(map_, treasures=TREASURES)
    sets = [(), (3,), TREASURES]
    runs = [oracle.solve(known, ids, tries=1, width=100).run for ids in sets]
    layouts = [Episode(2, 1, 2000, len(ids), ids) for ids in sets]
    most = max(len(run.actions) for run in runs)
    script = np.array([np.pad(run.actions, (0, most - len(run.actions))) for run in runs])  # [E, T]
    now = iter(script.T)

    def predict(obs: Arrays, context: PredictContext) -> tuple[Array, Arrays]:
        return next(now)[context.slot], {}

    envs = make_envs(len(sets), 0, Config(), {})
    played = evaluate_layouts(envs, predict, [report.as_option(one) for one in layouts])
    assert played.steps.tolist() == [run.steps for run in runs]
    assert played.reached_end.all()
    limits = report.bound_limits(map_, layouts, cache)
    lost, more = report.regret(played, limits), report.excess(played, limits)
    assert limits.score.tolist() == [oracle.bound(known, ids).score for ids in sets]
    assert limits.steps.tolist() == [known.steps[oracle.set_index(known, ids)] for ids in sets]
    assert (lost >= 0).all()
    assert (lost < 20).all()
    assert (more >= 0).all()
    assert np.allclose(more, 100 * (played.steps / limits.steps - 1))
    # the play of the oracle, broader here than above
    own = report.executed_limits(map_, layouts, cache)
    assert (own.score <= limits.score).all()
    assert (report.regret(played, own) >= 0).all()
    assert (limits.steps <= own.steps).all()
    assert (own.steps <= played.steps).all()
    counted: list[tuple[int, int]] = []
    kept = report.executed_limits(map_, layouts, cache, lambda *done: counted.append(done))
    assert [one.tolist() for one in kept] == [one.tolist() for one in own]
    assert counted == [(3, 0)]
    longer = [Episode(2, 1, limit, 1, (3,)) for limit in (2000, 2100, 2000, 30)]  # by start, end and max_step
    others = report.executed_limits(map_, longer, cache, lambda *done: counted.append(done))
    assert counted[1:] == [(1, 1), (1, 1), (3, 2), (3, 2), (4, 3), (4, 3)]
    assert others.steps.tolist() == [own.steps[1]] * 3 + [0]
    assert others.score.tolist() == pytest.approx([own.score[1], own.score[1] + 20, own.score[1], 0])
    # from the cache, from a damaged one, and without one
    assert {one.name.split("-")[0] for one in cache.iterdir()} == {"bounds", "oracle", "played"}
    for one in cache.iterdir():
        one.write_bytes(one.read_bytes()[:50])
    again = report.executed_limits(map_, layouts, cache)
    assert [one.tolist() for one in again] == [one.tolist() for one in own]
    for folder in (cache, cache, Path("/proc/no/such")):
        again = report.bound_limits(map_, layouts, folder)
        assert [one.tolist() for one in again] == [one.tolist() for one in limits]
    # when time is short not all is worth taking, or nothing possible
    short = [Episode(2, 1, limit, 2, TREASURES) for limit in (20, int(limits.steps[2]) - 1, int(limits.steps[2]))]
    few = report.bound_limits(map_, short, cache)
    assert few.score.tolist() == [oracle.bound(known, TREASURES, one.max_step).score for one in short]
    assert few.score[0] == 0
    assert few.steps.tolist() == [0, 0, limits.steps[2]]


def test_the_table_literally() -> None:
    rng = np.random.default_rng(0)
    numbers = [2, 0, 2, 3, 2, 0]
    layouts = [Episode(2, 1, 500, n, tuple(range(3, 3 + n))) for n in numbers]
    steps, missed = rng.integers(100, 300, 6), np.array([0, 0, 1, 1, 0, 0])
    reached = np.array([True, True, True, True, False, True])
    played = Outcome(steps, reached * rng.uniform(100, 900, 6), missed, reached, {}, [])
    limits = report.Limits(np.full(6, 1000.0), np.array([90, 80, 70, 60, 50, 0]))
    table = report.rows(layouts, played, limits)
    assert [row.treasures for row in table] == [0, 2, 3, None]
    for row, k in zip(table, ([1, 5], [0, 2, 4], [3], range(6)), strict=True):
        k = list(k)
        lost = [1000 - played.score[i] for i in k]
        more = [100 * (steps[i] / limits.steps[i] - 1) for i in k if reached[i] and missed[i] == 0 and limits.steps[i]]
        assert row.episodes == len(k)
        assert row.worst == k[int(np.argmax(lost))]
        mean = [row.reached_end, row.missed, row.steps, row.score, row.regret]
        assert np.allclose(mean, [np.mean(one[k]) for one in (reached, missed, steps, played.score)] + [np.mean(lost)])
        assert row.worst_regret == max(lost)
        assert (row.excess, row.worst_excess) == ((np.mean(more), max(more)) if more else (None, None))
    assert report.worst_layouts(played, limits, 2)[0] == 4
    assert len(report.rows(layouts[3:4], Outcome(*(one[3:4] for one in played[:4]), {}, []),
                           report.Limits(*(one[3:4] for one in limits)))) == 1  # fmt: skip

    names, worst = ["greedy actions", "sampled actions"], report.worst_layouts(played, limits, 6)
    both = eval_report.Findings(maps.default(), layouts, limits, names, [played, played], [table, table], worst)
    for width in (80, 120, 200):
        out = io.StringIO()
        console = Console(width=width, file=out)
        views = eval_report._tables(both, console)
        assert len(views) == (3 if width < 200 else 1)
        for view in (*views, eval_report._worst_table(both)):
            console.print(view)
        text = out.getvalue()
        assert "\u2026" not in text  # nothing is cut
        assert text.count(f"{table[-1].score:,.2f}") == 2
        assert max(map(len, text.splitlines())) <= width


def test_a_narrow_terminal_wraps_tables_and_cuts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    for columns, width in (("40", 80), ("132", 132)):
        monkeypatch.setenv("COLUMNS", columns)
        assert make_console().width == width


# ---- the command ----


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (Request(episodes=-1), "--episodes -1: must be a number from 1"),
        (Request(json=ROOT), "cannot be written; it must be a file in a folder that you can write to"),
        (Request(options={"worst": -1}), "--worst -1: must be a number from 0 to 60"),
        (Request(options={"out": Path("eval.jpg")}), "--out eval.jpg: the name must end in .png"),
        (Request(options={"out": Path("no/folder/eval.png")}), "--out no/folder/eval.png: there is no folder"),
        (Request(options={"all": True}, episodes=3), "--episodes 3: cannot be given with --all or --sets"),
        (Request(options={"no_oracle": True, "executed": True}), "--no-oracle: cannot be given with --executed"),
        (Request(options={"best_of": 3}), "--best-of: is not an option of 'back_to_the_realm'"),
    ],
)
def test_what_cannot_be_done_is_refused_first(request_: Request, text: str) -> None:
    def check(request: Request) -> None:
        """As `evaluate_model` does."""
        game = "back_to_the_realm"
        options = eval_options(game, load_game(game), request.options)
        request.check()
        commands.prepare_eval(options, request, 7)

    with pytest.raises(ConfigError) as caught:
        check(request_)
    assert text in str(caught.value)
    check(Request())


@pytest.mark.slow
@pytest.mark.system
@pytest.mark.usefixtures("coarse")
def test_eval_of_the_realm_with_its_oracle(tmp_path: Path) -> None:
    layouts = [Episode(2, 1, 300, len(TREASURES), TREASURES)]
    limit = report.bound_limits(maps.default(), layouts, tmp_path / oracle.CACHE)  # where the command looks for it
    train = start("train_test.py", "--set", f"log_dir={tmp_path}", "--set", "run_name=tiny",
                  "--set", "env.treasure_random=0", "--set", "env.treasure_id=[3,7]", "--set", "env.treasure_num=2",
                  "--set", "env.max_step=300", "--set", "max_env_steps=1000")  # fmt: skip
    code, _, err = end(train)
    assert code == 0, err
    file, picture = tmp_path / "eval.json", tmp_path / "eval.png"
    code, out, err = realm("eval", tmp_path / "tiny", "--episodes", "5", "--both", "--worst", "2",
                           "--json", file, "--csv", rows := tmp_path / "eval.csv", "--out", picture,
                           cwd=tmp_path)  # fmt: skip
    assert (code, err) == (0, "")
    assert "5 episodes as [env] has them, greedy actions and sampled actions, seed 2000000" in out
    assert "the oracle's bound" in out
    assert re.search(r"^ +2 +5 +\d", out, re.MULTILINE)
    content = json.loads(file.read_text())
    episodes, table = content["episodes"], content["table"]
    assert episodes["explore"] == [0.0] * 5 + [1.0] * 5
    assert episodes["treasure_id"] == [[3, 7]] * 10
    assert {len(values) for values in episodes.values()} == {10}
    names, *lines = csv.reader(rows.read_text().splitlines())
    assert names == list(episodes)
    assert [[float(line[names.index(name)]) for line in lines] for name in ("explore", "score")] == [
        episodes["explore"],
        episodes["score"],
    ]
    assert [(row["explore"], row["treasures"], row["episodes"]) for row in table] == [(0.0, 2, 5), (1.0, 2, 5)]
    assert np.allclose(table[0]["score"], np.mean(episodes["score"][:5]))
    assert np.allclose(episodes["regret"], limit.score - episodes["score"])
    assert min(episodes["regret"]) >= 0
    assert len(set(episodes["length"][:5])) == 1  # the same layout, and nothing is drawn
    with Image.open(picture) as image:
        assert image.size[0] == 3 * 720
    code, out, err = realm("eval", tmp_path / "tiny", "--episodes", "5", "--no-oracle", cwd=tmp_path / "tiny")
    assert (code, err) == (0, "")
    assert "reached_end" in out
    assert "regret" not in out
    assert not (tmp_path / "tiny" / oracle.CACHE).exists()
    drawn = ("--set", "env.treasure_random=1", "--set", "env.treasure_num=13")  # the run's are two that are fixed
    asked = ("--all", "--no-oracle", *drawn, "--json", out_file := tmp_path / "all.json")
    code, out, err = realm("eval", tmp_path / "tiny", *asked, cwd=tmp_path / "tiny")
    assert code == 0, err
    assert "all 1 layouts of 13 treasures, greedy actions" in out
    assert "without the oracle" in out
    assert "regret" not in out
    assert "regret" not in out_file.read_text()
    assert [row["episodes"] for row in json.loads(out_file.read_text())["table"]] == [1]
    assert not (tmp_path / "tiny" / oracle.CACHE).exists()
    code, out, err = realm("eval", tmp_path / "tiny", "--all", "--set", "env.treasure_num=14", cwd=tmp_path)
    assert (code, out) == (2, "")
    assert "treasure_num" in err
    assert len(err.splitlines()) == 1


def test_a_round_without_a_column_leaves_it_empty(tmp_path: Path) -> None:
    request = Request(explores=(0.0, 1.0), json=tmp_path / "all.json", csv=tmp_path / "all.csv")
    checkpoint: Any = SimpleNamespace(path=tmp_path, version=(1, 0), env_steps=10)
    candidate: Any = SimpleNamespace(request=request, checkpoint=checkpoint)
    write_json(candidate, [{"r": [1.0, 2.0]}, {"r": [3.0], "x": [0.5]}], {})
    assert (tmp_path / "all.csv").read_text().splitlines() == ["explore,r,x", "0.0,1.0,", "0.0,2.0,", "1.0,3.0,0.5"]
    assert json.loads((tmp_path / "all.json").read_text())["episodes"]["x"] == [None, None, 0.5]


def test_a_histogram_has_a_line_for_each_value_where_they_are_few() -> None:
    assert histogram("score", np.array([21.0, -20.0, 21.0, 20.0])).splitlines()[1:] == [
        f"-20.00  {'#' * 20} 1",
        f" 20.00  {'#' * 20} 1",
        f" 21.00  {'#' * 40} 2",
    ]
    assert histogram("score", np.array([np.nan])).splitlines() == ["episodes by score"]
    many = histogram("score", np.array([*range(20), 100.0, np.nan, -np.inf])).splitlines()[1:]
    assert len(many) == 10
    assert many[0].split() == ["0.00", "to", "10.00", "#" * 40, "10"]
    assert many[5].split() == ["50.00", "to", "60.00", "0"]
    assert many[-1].split() == ["90.00", "to", "100.00", "#" * 4, "1"]
