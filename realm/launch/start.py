"""Everything between a configuration and a running pipeline: checks first, then the run's directory, then the run.

Called by `realm start` and `train_test.py`. Nothing is created before every check has passed.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from loguru import logger
from rich.console import Console
from rich.live import Live
from rich.table import Table

from realm import garbage
from realm.config.load import RunConfig, to_toml
from realm.config.plan import Plan, slow_choices
from realm.contract import Spec, check_arrays
from realm.errors import ConfigError, UserCodeError
from realm.launch.rundir import RunFile, claim_run_dir
from realm.user import calling, check_agent, load_definition, load_hyper, load_workflow, takes_early
from realm.watch.board import Board
from realm.watch.progress import LINE_EVERY_S, Every

if TYPE_CHECKING:
    from realm.launch import local
    from realm.launch.nursery import Nursery


@dataclass(frozen=True)
class Prepared:
    """A run that may start."""

    config: RunConfig
    plan: Plan
    spec: Spec
    run_dir: Path
    run_file: RunFile
    former_config: Path | None = None
    """Where the configuration of an earlier run in this directory was kept, if it was another one."""


def prepare(config: RunConfig, plan: Plan) -> Prepared:
    """Check everything that can be checked before a process starts, then claim the run's directory.

    Raises ConfigError or UserCodeError.
    """
    if config.app.wrapper_type == "remote":
        from realm.launch.supervisor import check_ports

        check_ports(config.app)
    with garbage.held():
        spec = try_user_code(config)
    _check_models(config, spec)
    try:
        run_dir, run_file = claim_run_dir(config.app)
        former = _write_config(run_dir, to_toml(config))
    except OSError as error:
        place = config.places.get("app.log_dir", "[app]")
        what = f"{error.filename or config.app.log_dir}: {error.strerror}"
        raise ConfigError(f"{place}: key 'log_dir': {what}; allowed is a folder that can be written") from error
    return Prepared(config, plan, spec, run_dir, run_file, former)


def _check_models(config: RunConfig, spec: Spec) -> None:
    """Refuse to go on with, or to begin with, models of other shapes: before anything is written, without torch."""
    app = config.app
    if app.run_name:
        manifest = _newest_manifest(Path(app.log_dir) / app.run_name / "ckpt")
        if manifest and manifest[1] != spec.schema:
            raise ConfigError(
                f"{manifest[0]}: was trained with other shapes (schema {manifest[1]}, now {spec.schema}); choose "
                "another run_name, or restore the observation, action and chunk settings"
            )
    if app.preload_model and not _newest_manifest(Path(app.preload_model_dir)):
        place = config.places.get("app.preload_model_dir", "[app]")
        raise ConfigError(f"{place}: key 'preload_model_dir': {app.preload_model_dir}: no checkpoint is there")


def _newest_manifest(folder: Path) -> tuple[Path, str] | None:
    """The newest checkpoint whose manifest can be read, and its schema; the learner looks closer."""
    found = [folder, *folder.glob("model.ckpt-*")]
    for path in sorted(found, key=lambda one: [int(number) for number in re.findall(r"\d+", one.name)], reverse=True):
        try:
            return path, str(json.loads((path / "manifest.json").read_bytes())["schema"])
        except (OSError, ValueError, LookupError, TypeError):
            continue  # none there, or damaged: the learner skips it, too, and says so
    return None


def _write_config(run_dir: Path, text: str) -> Path | None:
    """Write config.toml; another one that is there is kept as config.toml.<n>, whose path is returned."""
    path = run_dir / "config.toml"
    if not path.exists() or path.read_text() == text:
        path.write_text(text)
        return None
    number = 1
    while (kept := run_dir / f"config.toml.{number}").exists():
        number += 1
    path.rename(kept)
    path.write_text(text)
    return kept


def _put_back_config(prepared: Prepared) -> None:
    """The run was refused: its directory's models are still those of the former configuration."""
    if prepared.former_config:
        prepared.former_config.replace(prepared.run_dir / "config.toml")


def try_user_code(config: RunConfig) -> Spec:
    """Make one environment, step it once, and compare what it gives with its Spec; compiles the kernels, too."""
    algo = config.app.algo
    hyper = load_hyper(algo, config.hyper, config.places)
    definition = load_definition(algo)
    load_workflow(algo)
    check_agent(algo)
    if config.app.max_version_lag == "part" and not takes_early(algo):
        place = config.places.get("app.max_version_lag", "[app]")
        raise ConfigError(
            f"{place}: key 'max_version_lag': got \"part\", but learn in {algo}/algorithm/agent.py has no parameter "
            'early, which lets weights go out before an update is over; allowed is "auto", a number or "free"'
        )
    with calling(config, "make_envs"):
        envs = definition.make_envs(1, config.app.seed, hyper, config.env)
    with calling(config, "spec"):
        spec = definition.spec(envs, hyper)
    if not isinstance(spec, Spec):
        raise UserCodeError(f"{algo}/feature/definition.py: spec returned {type(spec).__name__}; expected is a Spec")
    with calling(config, "reset"):
        obs, _ = envs.reset(seed=config.app.seed)
    with calling(config, "step"):
        next_obs, reward, terminated, truncated, _ = envs.step(envs.action_space.sample())
    for what, one in (("reset", obs), ("step", next_obs)):
        if not isinstance(one, dict) or not all(isinstance(array, np.ndarray) for array in one.values()):
            raise UserCodeError(f"{algo}/feature/definition.py: observation of {what} must be a dict of NumPy arrays")
        try:
            check_arrays(one, spec.obs, (1,), f"observation of {what}")
        except ValueError as error:
            raise UserCodeError(f"{algo}/feature/definition.py: spec and environment differ: {error}") from error
    for name, array in (("reward", reward), ("terminated", terminated), ("truncated", truncated)):
        if getattr(array, "shape", None) != (1,):
            raise UserCodeError(f"{algo}/feature/definition.py: {name} of step must be an array of shape [E]")
    with calling(config, "close"):
        envs.close()
    if config.eval_env:
        evaluated = config.evaluated()
        with calling(evaluated, "make_envs"):
            definition.make_envs(1, config.app.seed, hyper, evaluated.env).close()
    return spec


def run_cluster(prepared: Prepared, nursery: Nursery) -> int:
    """Run the roles as processes, in the foreground; returns the exit code."""
    from realm.launch.child import EXIT_USER
    from realm.launch.supervisor import Supervisor

    run_dir, config = prepared.run_dir, prepared.config
    supervisor = Supervisor(config.app, prepared.plan, prepared.spec, run_dir, prepared.run_file, nursery)
    _say_hello(prepared)

    def on_ready() -> None:
        logger.info("all roles are ready; TensorBoard: tensorboard --logdir {}", run_dir / "log" / "tensorboard")

    with _display(prepared) as show:
        code = supervisor.run(show, on_ready)
    from realm.watch.summary import write_summary

    write_summary(run_dir, supervisor.board, prepared.plan, supervisor.cause)
    if code == EXIT_USER and not supervisor.board.total("learner", "updates"):
        _put_back_config(prepared)
    level = "INFO" if code == 0 else "ERROR"
    logger.log(level, "the run has ended: {}", supervisor.cause)
    return code


def run_local(prepared: Prepared) -> local.End:
    """Run everything in this process."""
    with garbage.held():
        from realm.errors import CheckpointError
        from realm.launch import local  # imports torch

    _say_hello(prepared)
    run_file, run_dir = prepared.run_file, prepared.run_dir
    run_file.state = "running"
    run_file.epoch += 1
    run_file.write(run_dir)
    try:
        with _display(prepared) as show:
            end = local.run(prepared.config, prepared.plan, prepared.spec, run_dir, run_file.epoch, show)
        run_file.state, run_file.cause = "stopped", end.cause
    except CheckpointError as error:
        run_file.cause = str(error)
        _put_back_config(prepared)
        raise ConfigError(str(error)) from error
    finally:
        if run_file.state == "running":
            run_file.state = "failed"
        run_file.write(run_dir)
    logger.info("the run has ended: {}; {} env steps, version {}", end.cause, end.env_steps, end.version)
    return end


def _say_hello(prepared: Prepared) -> None:
    for warning in prepared.config.warnings:
        logger.warning(warning)
    for reason in prepared.plan.why:
        logger.info("chosen: {}", reason)
    for sentence in slow_choices(prepared.config.app, prepared.plan):
        logger.warning("slow: {}", sentence)
    logger.info("run directory: {}", prepared.run_dir)


@contextmanager
def _display(prepared: Prepared) -> Iterator[Any]:
    """Gives `show(board, state)`: a live table in a terminal, else a line every ten seconds."""
    app, capacity = prepared.config.app, prepared.plan.capacity

    def cells(board: Board, state: str) -> dict[str, str]:
        return {"state": state, **board.line(capacity, app.max_env_steps, app.max_seconds)}

    if not sys.stderr.isatty():
        line = Every(LINE_EVERY_S)

        def show_line(board: Board, state: str) -> None:
            if line.due():
                logger.info(" | ".join(f"{name} {text}" for name, text in cells(board, state).items()))

        yield show_line
        return

    console = Console(stderr=True)
    with Live(console=console, refresh_per_second=4, redirect_stdout=False, redirect_stderr=True) as live:

        def show_table(board: Board, state: str) -> None:
            table = Table(title=f"{prepared.run_dir}   (Ctrl+C ends the run)", title_justify="left")
            row = cells(board, state)
            for name in row:
                table.add_column(name, justify="right")
            table.add_row(*row.values())
            live.update(table)

        # log lines go above the table instead of through it
        logger.remove()
        logger.add(lambda text: live.console.print(text, end="", markup=False, highlight=False), level=app.level,
                   format="{time:HH:mm:ss} {level:<7} {message}")  # fmt: skip
        yield show_table
