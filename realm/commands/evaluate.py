"""`realm eval` plays a trained model and prints how well it does; `realm export` writes it as an ONNX file.

`evaluate_model` is called by the command line, and by `realm start` with run_mode = "eval". It prints statistics of
the episodes of any environment. A game may print a report of its own (`games.EvaluatingGame`), for which it gets a
`Candidate` and the helpers below.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from loguru import logger

from realm.apart import apart
from realm.commands.games import EvaluatingGame, Game, eval_options, eval_parser, load_game
from realm.commands.locate import add_model_options, model_of
from realm.commands.parser import Commands, check_file, terminal_width, writing
from realm.config.load import EVAL_SEED, RunConfig
from realm.contract import Array, PredictContext
from realm.errors import ConfigError, RunError, plain
from realm.files import from_here
from realm.learn.evaluation import Player, Predict, evaluate, load_player
from realm.learn.policy import own_actions
from realm.learn.results import main_statistic
from realm.rollout.rounds import close
from realm.user import folder_of
from realm.watch.progress import busy, counting
from realm.watch.status import named, say, table

if TYPE_CHECKING:
    from rich.console import Console

    from realm.learn.checkpoint import Checkpoint

NUM_ENVS = 256
LOG_WIDTH = 200  # columns where no terminal is: nothing is wrapped there
ROUNDS = {0.0: "greedy actions", 1.0: "sampled actions"}  # by `explore`
_EXPORT_ENVS = 100
ROWS = 10_000  # observations to compare an exported file and the model on; a multiple of _EXPORT_ENVS
LEAST_EQUAL = 0.99  # hidden layers in bfloat16 round: the two may differ where two actions are as good as each other
TOLERANCE = 1e-4  # of continuous actions, as a part of their range


def add_commands(commands: Commands, game: Game | None) -> None:
    """Add them, `eval` with the game's own options."""
    own = eval_parser(game)
    text = "play a trained model and print how well it does"
    evaluation = commands.add_parser("eval", parents=[own], help=text, example="realm eval my-run --id best")
    add_model_options(evaluation)
    evaluation.add_argument("--episodes", type=int, default=0, metavar="N", help="default: eval_episodes")
    how = evaluation.add_mutually_exclusive_group()
    how.add_argument("--stochastic", action="store_true", help="sampled actions instead of greedy ones")
    how.add_argument("--both", action="store_true", help="greedy actions, and sampled ones in a second round")
    evaluation.add_argument("--seed", type=int, default=EVAL_SEED, help=f"default {EVAL_SEED}")
    evaluation.add_argument("--json", type=Path, help="write every episode's statistics to this file")
    evaluation.add_argument("--csv", type=Path, help="the same as a table, a line for each episode")
    evaluation.set_defaults(run=_eval, own_defaults=vars(own.parse_args([])))

    text = "write a trained model as an ONNX file"
    exporting = commands.add_parser("export", help=text, example="realm export my-run --id best --onnx model.onnx")
    add_model_options(exporting)
    exporting.add_argument("--onnx", type=Path, default=Path("model.onnx"), metavar="FILE", help="default: model.onnx")
    exporting.set_defaults(run=lambda given: export(*model_of(given), given.onnx), seed=0)


def _eval(given: argparse.Namespace) -> int:
    request = Request(
        episodes=given.episodes,
        explores=(0.0, 1.0) if given.both else (float(given.stochastic),),
        seed=given.seed,
        json=given.json and given.json.absolute(),
        csv=given.csv and given.csv.absolute(),
        options={name: value for name, value in vars(given).items() if given.own_defaults.get(name, value) != value},
    )
    evaluate_model(*model_of(given), request)
    return 0


@dataclass(frozen=True)
class Request:
    """What an evaluation shall do with its model."""

    episodes: int = 0  # 0: eval_episodes of the configuration
    explores: tuple[float, ...] = (0.0,)  # 0 for greedy actions, 1 for sampled ones; one round for each
    seed: int = EVAL_SEED
    json: Path | None = None
    csv: Path | None = None
    options: Mapping[str, Any] = field(default_factory=dict)  # the game's own that were given, by name

    def check(self) -> None:
        """Refuse a request that cannot be met, before the episodes are played and not after."""
        if self.episodes < 0:
            raise ConfigError(f"--episodes {self.episodes}: must be a number from 1, or 0 for eval_episodes")
        check_file("--json", self.json)
        check_file("--csv", self.csv)
        if self.json and self.json == self.csv:
            raise ConfigError(f"--csv {self.csv}: is the file of --json, too")


@dataclass(frozen=True)
class Candidate:
    """A model that is ready to play."""

    config: RunConfig
    checkpoint: Checkpoint
    envs: Any
    predict: Predict
    episodes: int
    request: Request


@apart(over=True)
def evaluate_model(config: RunConfig, folder: Path, model: int | Literal["latest"], request: Request) -> None:
    """Play a checkpoint of `folder` (of checkpoints, or one itself), print the report, write the files."""
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
        config, checkpoint, num_envs, request.seed,
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
        logger.warning("{:,.0f} episodes, in which the environment failed, were replaced by others", sum(thrown_away))


def _print_statistics(candidate: Candidate) -> None:
    """Play and print the statistics that the environments report."""
    config, request, episodes = candidate.config, candidate.request, candidate.episodes
    console, columns = make_console(), []
    for explore in request.explores:
        with counting(ROUNDS[explore], episodes) as show:
            played = evaluate(config, candidate.envs, candidate.predict, episodes, explore, request.seed, show)
        statistics, main = played.statistics, main_statistic(played.statistics)
        if played.cut:
            logger.warning("{}", played.cut)
        columns.append({name: values.tolist() for name, values in statistics.items()})
        limit = f"; {played.truncated} ended by the environment's limit" if played.truncated else ""
        title = f"{len(statistics[main])} episodes, {ROUNDS[explore]}, seed {request.seed}{limit}"
        console.print(plain(f"{title_of(candidate.checkpoint)}, {title}"))
        rows: list[tuple[str, ...]] = [("statistic", "mean", "± s.e.", "median", "deviation", "least", "greatest")]
        for name, values in statistics.items():
            error = f"{values.std(ddof=1) / np.sqrt(len(values)):,.2f}" if len(values) > 1 else "-"
            numbers = np.median(values), values.std(), values.min(), values.max()
            rows.append((plain(named(name)), f"{values.mean():,.2f}", error, *(f"{number:,.2f}" for number in numbers)))
        console.print("\n".join(table(rows, frozenset(range(1, 7)))), soft_wrap=True)
        console.print(histogram(main, statistics[main]))
    write_json(candidate, columns, {})


def histogram(name: str, values: Array) -> str:
    """A line for each value that a statistic has [episodes], or for each tenth of its range if it has more than ten."""
    seen, counts = np.unique(values := values[np.isfinite(values)], return_counts=True)
    labels = [f"{one:,.2f}" for one in seen]
    if len(seen) > 10:
        counts, edges = np.histogram(values)
        labels = [f"{low:,.2f} to {high:,.2f}" for low, high in pairwise(edges)]
    width, most = max(map(len, labels), default=0), max(counts, default=1)
    bars = [f"{label:>{width}}  {'#' * round(40 * n / most)} {n}" for label, n in zip(labels, counts, strict=True)]
    return "\n".join([f"episodes by {named(name)}", *bars])


# ---- for games, too ----


def make_console() -> Console:
    """Where reports are printed."""
    from rich.console import Console  # late: `--help` does not need it

    width = max(terminal_width(LOG_WIDTH), 80)  # a narrower terminal wraps the lines of a table; none is cut
    console = Console(width=width, markup=False, highlight=False)
    console.on_broken_pipe = lambda: setattr(console, "quiet", True)  # type: ignore[method-assign]  # files are written
    return console


def title_of(checkpoint: Checkpoint) -> str:
    """The checkpoint in a heading, by its path from here."""
    return f"{from_here(checkpoint.path)} ({checkpoint.env_steps:,} env steps)"


def write_json(candidate: Candidate, columns: Sequence[dict[str, list[Any]]], more: dict[str, Any]) -> None:
    """Write every episode to the file of --json, if there is one, and `more` next to them; and to that of --csv.

    columns: for each round, column name -> a value for each episode. The rounds stand one after the other, and the
    column `explore` tells them apart.
    """
    request, checkpoint = candidate.request, candidate.checkpoint
    if request.json is None and request.csv is None:
        return
    episodes: dict[str, list[Any]] = {"explore": [], **{name: [] for of_round in columns for name in of_round}}
    for explore, of_round in zip(request.explores, columns, strict=True):
        count = len(next(iter(of_round.values())))
        for name, values in episodes.items():
            values += [explore] * count if name == "explore" else of_round.get(name, [None] * count)
    if request.csv is not None:
        with writing(request.csv), request.csv.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([episodes, *zip(*episodes.values(), strict=True)])
    content = {
        "checkpoint": str(checkpoint.path),
        "version": list(checkpoint.version),
        "env_steps": checkpoint.env_steps,
        "seed": request.seed,
        **more,
        "episodes": episodes,
    }
    if request.json is not None:
        with writing(request.json):
            request.json.write_text(json.dumps(content))


# ---- export ----


def export(config: RunConfig, folder: Path, model: int | Literal["latest"], out: Path) -> int:
    """Write the checkpoint's policy to `out` and say on how many observations it acts as the model does.

    Raises UserError if this agent or machine cannot, RunError if file and model differ.
    """
    check_file("--onnx", out, (".onnx",))
    out = out.absolute()  # an environment may go to another folder
    from realm.learn.checkpoint import find  # late: torch
    from realm.learn.export import OnnxPolicy, check_packages, write_onnx

    check_packages()
    checkpoint = find(folder, model)
    player = load_player(config, checkpoint, _EXPORT_ENVS, EVAL_SEED)
    try:
        with busy("exporting"), writing(out):
            told = {"run": config.app.run_name, "environment": config.env, "env_steps": checkpoint.env_steps}
            fields, outputs = write_onnx(player.agent, player.spec, player.envs, out, told)
        inputs = ", ".join(f"{name} {field.dtype}{['N', *field.shape]}" for name, field in fields.items())
        say(f"{checkpoint.path} is written to {out} ({out.stat().st_size / 1e6:.1f} MB)")
        say(f"inputs: {inputs}".replace("'", ""))
        say(f"outputs: {', '.join(outputs)}")
        with busy("comparing"):
            equal = compare(player, OnnxPolicy(out))
    finally:
        close(player.envs)
    say(f"the same greedy actions as the model's on {equal.sum():,} of {len(equal):,} observations")
    if equal.mean() < LEAST_EQUAL:
        raise RunError(f"{out}: acts otherwise than the model, so do not use it; Agent.greedy must do as predict does")
    return 0


def compare(player: Player, exported: Any) -> Array:
    """Whether the exported policy acts as the model does, on observations of sampled play; bool [ROWS]."""
    action_spec, equal = player.spec.action, list[Array]()
    within: Any = 0.0
    if action_spec.low:
        low, high = (
            own_actions(player.envs, np.array([bound], np.float32)) for bound in (action_spec.low, action_spec.high)
        )
        within = TOLERANCE * (high - low)
    slot, first, ended = np.arange(_EXPORT_ENVS), np.ones(_EXPORT_ENVS, np.bool_), np.zeros(_EXPORT_ENVS, np.bool_)
    obs, _ = player.envs.reset(seed=EVAL_SEED)
    for step in range(2 * ROWS // _EXPORT_ENVS):  # half of the rows sample; one question, which a memory hears once
        explore = (slot + step) % 2
        played = player.predict(obs, PredictContext(slot, first, explore.astype(np.float32)))[0]
        wanted, got = own_actions(player.envs, played), exported.act(obs, first)
        differs = np.abs(np.subtract(got, wanted, dtype=np.float64)) > within
        equal.append(~differs.reshape(_EXPORT_ENVS, -1).any(-1)[explore == 0])
        obs, _, terminated, truncated, _ = player.envs.step(played)
        first, ended = ended, terminated | truncated  # the step after an end is the reset
    return np.concatenate(equal)
