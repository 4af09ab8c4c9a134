"""Folders of runs, their models, and how well these play: for tools/study/judge.py and tools/study/control.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from realm.config.load import RunConfig, load_config, settings_of
from realm.env import report
from realm.env.layouts import evaluate_layouts
from realm.env.oracle import CACHE
from realm.errors import ConfigError
from realm.learn.checkpoint import load, load_bytes
from realm.learn.evaluation import Player, load_player
from realm.learn.results import Saved, models_in, newest_in
from realm.user import hyper_of
from realm.watch.progress import counting
from tools import common

TREASURES = 9
KEPT_ENV = ("map", "start", "end", "max_step")
NUM_ENVS = 512
EVALUATION_SEED = 0  # of sampled actions alone: layouts are fixed

# ---- folders of runs ----


def refuse_other_setting(run: Path, config: RunConfig) -> None:
    """Refuse a run's folder of another configuration, its limits apart: its curve would be of both."""
    if not (run / "config.toml").exists():
        return
    # with its defaults, too: a setting that is new since then is no other configuration
    both = (load_config(run / "config.toml"), config)
    then, now = (settings_of(_without_limits(common.effective(one))) for one in both)
    if differ := [key for key in now | then if then.get(key) != now.get(key)]:
        change = f"{differ[0]} was {then.get(differ[0], 'not set')} and is {now.get(differ[0], 'not set')}"
        raise ConfigError(f"{run} was made with another configuration ({change}); move it away or take another --out")


def _without_limits(config: RunConfig) -> RunConfig:
    return replace(config, app=replace(config.app, max_seconds=0.0, max_env_steps=0, run_name=""))


def saved_models(folder: Path) -> list[Saved]:
    """Those of a folder, oldest first; what a start of the run has saved again is left out."""
    saved = [one for _, path in models_in(folder) if (one := newest_in(path))]
    return list({one.env_steps: one for one in saved}.values())[::-1]


# ---- how well a model plays ----


def judged_env(env: Mapping[str, Any]) -> dict[str, Any]:
    """The table [env] of a run made one for judging: its map, start and end, nine treasures."""
    kept = {key: env[key] for key in KEPT_ENV if key in env}
    if isinstance(kept.get("map"), list):
        maps = len(kept["map"])
        raise ConfigError(f"[env] has {maps} maps, models are judged on one")
    return {**kept, "treasure_random": 1, "treasure_num": TREASURES}


def check_judged(config: RunConfig) -> None:
    """Refuse a configuration whose models cannot be judged, before one is trained."""
    hyper_of(config)
    env = judged_env(config.env)
    report.resolve_map(env)
    report.all_layouts(env)


def figures(layouts: Sequence[Any], played: Any, limits: Any) -> dict[str, Any]:
    """What became of some layouts, in numbers. limits: what the oracle reaches in them."""
    row = report.rows(layouts, played, limits)[-1]
    return {
        "regret": row.regret,
        "worst_regret": row.worst_regret,
        "missed": int(played.missed.sum()),
        "whole": float((played.reached_end & (played.missed == 0)).mean()),  # share in which nothing was left
    }


class Examiner:
    """Plays the models of one run on all layouts of nine treasures, and on all sets."""

    def __init__(self, run: Path) -> None:
        self.config = load_config(run / "config.toml")
        self._env = judged_env(self.config.env)
        self._map = report.resolve_map(self._env)
        self._nine = report.all_layouts(self._env)
        self._executed: Any = None
        self._player: Player | None = None

    def nine(self, model: Path, explore: float = 0.0) -> dict[str, Any]:
        """Figures of the layouts of nine treasures against the oracle's own play; `bound` has those against its
        bound."""
        if self._executed is None:
            with counting("the oracle's own play", len(self._nine), "layouts") as show:
                self._executed = report.executed_limits(self._map, self._nine, CACHE, show)
        played = self._play(model, self._nine, explore)
        bound = figures(self._nine, played, report.bound_limits(self._map, self._nine, CACHE))
        return {**figures(self._nine, played, self._executed), "bound": bound}

    def sets(self, model: Path) -> dict[str, Any]:
        """Figures of all sets of treasures against the oracle's bound, as `bound`."""
        layouts = report.all_sets(self._env)
        played = self._play(model, layouts, 0.0)
        return {"bound": figures(layouts, played, report.bound_limits(self._map, layouts, CACHE))}

    def _play(self, model: Path, layouts: Sequence[Any], explore: float) -> Any:
        checkpoint = load(model)
        if self._player is None:
            self._player = load_player(replace(self.config, env=self._env), checkpoint, NUM_ENVS, EVALUATION_SEED)
        player = self._player
        load_bytes(player.agent.model, checkpoint.weights)
        options = [report.as_option(one) for one in layouts]
        return evaluate_layouts(player.envs, player.predict, options, explore, EVALUATION_SEED)
