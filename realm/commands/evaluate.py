"""The command `realm eval`: plays a trained model, prints how well it does, and writes that to files if asked to.

`evaluate_model` is called by the command line, and by `realm start` with run_mode = "eval". It prints statistics of
the episodes of any environment. A game may print a report of its own (`game.EvaluatingGame`), for which it gets an
`Candidate` and the helpers below.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from loguru import logger
from rich.console import Console
from rich.table import Table

from realm.apart import apart
from realm.commands.files import check_file, writing
from realm.commands.game import EvaluatingGame, eval_options, load_game
from realm.config.load import EVAL_SEED, RunConfig
from realm.errors import ConfigError, plain
from realm.files import from_here
from realm.learn.evaluate import Predict, evaluate, load_player
from realm.learn.outcome import main_statistic
from realm.rollout.rounds import close
from realm.user import folder_of
from realm.watch.progress import Show, Stillness, counting
from realm.watch.status import named

if TYPE_CHECKING:
    from realm.learn.checkpoint import Checkpoint

NUM_ENVS = 256
LOG_WIDTH = 200  # columns where no terminal is: nothing is wrapped there
ROUNDS = {0.0: "greedy actions", 1.0: "sampled actions"}  # by `explore`


@dataclass(frozen=True)
class Request:
    """What an evaluation shall do with its model."""

    episodes: int = 0  # 0: eval_episodes of the configuration
    explores: tuple[float, ...] = (0.0,)  # 0 for greedy actions, 1 for sampled ones; one round for each
    seed: int = EVAL_SEED
    json: Path | None = None
    options: Mapping[str, Any] = field(default_factory=dict)  # the game's own that were given, by name

    def check(self) -> None:
        """Refuse a request that cannot be met, before the episodes are played and not after."""
        if self.episodes < 0:
            raise ConfigError(f"--episodes {self.episodes}: must be a number from 1, or 0 for eval_episodes")
        check_file("--json", self.json)


@dataclass(frozen=True)
class Candidate:
    """A model that is ready to play."""

    config: RunConfig
    checkpoint: Checkpoint
    envs: Any
    predict: Predict
    episodes: int
    request: Request


def evaluate_model(config: RunConfig, folder: Path, model: int | Literal["latest"], request: Request) -> None:
    """Play a checkpoint of `folder` (of checkpoints, or one itself), print the report, write the files."""
    request = replace(request, json=request.json and request.json.absolute())
    with apart(over=True):
        _evaluate(config, folder, model, request)


def _evaluate(config: RunConfig, folder: Path, model: int | Literal["latest"], request: Request) -> None:
    from realm.learn.checkpoint import find  # late: torch

    game = load_game(config.app.app)
    options = eval_options(config.app.app, game, request.options)
    request.check()
    episodes = request.episodes or config.app.eval_episodes
    num_envs = min(NUM_ENVS, episodes)
    if isinstance(game, EvaluatingGame):
        num_envs = game.prepare_eval(options, request, episodes)
    checkpoint = find(folder, model)
    thrown_away = list[float]()
    envs, _, predict, *_ = load_player(
        config, checkpoint, config.env, num_envs, request.seed,
        lambda name, amount: thrown_away.append(amount) if name == "dropped_episodes" else None,
    )  # fmt: skip
    logger.info("the package {} plays ({})", config.app.algo, folder_of(config.app.algo))
    candidate = Candidate(config, checkpoint, envs, predict, episodes, request)
    try:
        if not (isinstance(game, EvaluatingGame) and game.evaluate(candidate, options)):
            _print_statistics(candidate)
    finally:
        close(envs)
    if thrown_away:
        count = f"{sum(thrown_away):,.0f} episodes"
        logger.warning("{} were thrown away, as the environment failed in them, and others played instead", count)


def given_options(arguments: argparse.Namespace, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the options `defaults` that the user has given another value."""
    return {name: value for name, value in vars(arguments).items() if name in defaults and value != defaults[name]}


def _print_statistics(candidate: Candidate) -> None:
    """Play and print the statistics that the environments report."""
    config, request, episodes = candidate.config, candidate.request, candidate.episodes
    console, columns = make_console(), []
    for explore in request.explores:
        with playing(explore, episodes) as show:
            played = evaluate(config, candidate.envs, candidate.predict, episodes, explore, request.seed, show)
        statistics = played.statistics
        number = len(statistics[main_statistic(statistics)])
        if played.cut:
            logger.warning("{}", played.cut)
        columns.append({name: values.tolist() for name, values in statistics.items()})
        title = f"{title_of(candidate.checkpoint)}, {number} episodes, {ROUNDS[explore]}, seed {request.seed}"
        console.print(plain(title))
        view = Table("statistic", "mean", "± s.e.", "least", "greatest")
        for name, values in statistics.items():
            error = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else 0.0
            numbers = values.mean(), error, values.min(), values.max()
            view.add_row(named(name), *(f"{number:,.2f}" for number in numbers))
        console.print(view)
    write_json(candidate, columns, {})


# ---- for games, too ----


def make_console() -> Console:
    """Where reports are printed."""
    return Console(width=None if sys.stdout.isatty() else LOG_WIDTH, markup=False, highlight=False)


@contextmanager
def playing(explore: float, episodes: int) -> Iterator[Show]:
    """Show how many episodes of a round are played, and say it when nothing has moved for long."""
    stillness, over = Stillness(), threading.Event()

    def watch() -> None:
        while not over.wait(1.0):
            if still_s := stillness.due(time.monotonic()):
                logger.warning(
                    "nothing has moved for {:.0f} s: the environment or the agent hangs, or is very slow", still_s
                )

    with counting(ROUNDS[explore], episodes) as show:

        def moved(finished: int, env_steps: int) -> None:
            stillness.moved()
            show(finished, env_steps)

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield moved
        finally:
            over.set()
            thread.join()


def title_of(checkpoint: Checkpoint) -> str:
    """The checkpoint in a heading, by its path from here."""
    return f"{from_here(checkpoint.path)} ({checkpoint.env_steps:,} env steps)"


def write_json(candidate: Candidate, columns: Sequence[dict[str, list[Any]]], more: dict[str, Any]) -> None:
    """Write every episode to the file of --json, if there is one, and `more` next to them.

    columns: for each round, column name -> a value for each episode. The rounds stand one after the other, and the
    column `explore` tells them apart.
    """
    request, checkpoint = candidate.request, candidate.checkpoint
    if request.json is None:
        return
    episodes: dict[str, list[Any]] = {"explore": []}
    for explore, of_round in zip(request.explores, columns, strict=True):
        for name, values in of_round.items():
            episodes.setdefault(name, []).extend(values)
        episodes["explore"] += [explore] * len(next(iter(of_round.values())))
    content = {
        "checkpoint": str(checkpoint.path),
        "version": list(checkpoint.version),
        "env_steps": checkpoint.env_steps,
        "seed": request.seed,
        **more,
        "episodes": episodes,
    }
    with writing(request.json):
        request.json.write_text(json.dumps(content))
