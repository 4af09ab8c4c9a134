"""Which model is meant: for `realm eval`, for a game's commands that play a model, and for the tools.

`add_model_options` and `model_of` are the two halves of a command's options. What a user got wrong is a ConfigError of
one sentence.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

from realm.config.load import RunConfig, load_config
from realm.errors import ConfigError, did_you_mean
from realm.launch.rundir import find_runs
from realm.learn.results import BEST_FOLDER, best_model, models_in
from realm.user import BUILT_IN, folder_of, hyper_keys, refuse_code_of_a_run
from realm.watch.status import say

DEFAULT_CONFIG = "conf/configure_app.toml"
SHIPPED = "shipped"  # the name of the model that comes with diy
MODEL_HELP = (
    f"name or path of a run, its ckpt folder, one checkpoint, or {SHIPPED} "
    f"(default: the newest run; without one {SHIPPED})"
)
ID_HELP = "number of updates of the checkpoint, latest (default) or best"
CONFIG_HELP = f"TOML file, or the folder of a project (default {DEFAULT_CONFIG})"
SET_HELP = "override keys, repeatable; `realm config` lists them"
RUN_HELP = "name or path of a run (default: the newest run)"
LOG_DIR_HELP = f"folder of the runs (default: log_dir of {DEFAULT_CONFIG})"


def config_file(given: str) -> str:
    """The file that --config names, also by a project's folder or its `conf/`. Where no `conf/` is, it is that which
    comes with Realm."""
    for inner in (DEFAULT_CONFIG, Path(DEFAULT_CONFIG).name):
        if given and (Path(given) / inner).is_file():
            return str(Path(given) / inner)
    own = BUILT_IN / given
    elsewhere = given.startswith("conf/") and not Path("conf").exists() and own.is_file()
    return str(own) if elsewhere else given


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """The options that say which model is meant, with which configuration."""
    parser.add_argument("model", nargs="?", default="", help=MODEL_HELP)
    parser.add_argument("--id", default="latest", help=ID_HELP)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=SET_HELP)
    parser.add_argument("--log-dir", help=LOG_DIR_HELP)


def model_of(arguments: argparse.Namespace) -> tuple[RunConfig, Path, int | Literal["latest"]]:
    """The model that the options name, with the options of evaluations in [env]. Checks `seed`, too."""
    check_seed(arguments.seed)
    config, folder, number = chosen_model(arguments.model, arguments.id, arguments.set, arguments.log_dir)
    return config.evaluated(), folder, number


def check_seed(seed: int) -> None:
    """Refuse a --seed that no generator takes."""
    if not 0 <= seed < 2**32:
        raise ConfigError(f"--seed {seed}: must be a number from 0 to 2^32 - 1")


def chosen_model(
    model: str, number: str, overrides: Sequence[str], log_dir: str | None
) -> tuple[RunConfig, Path, int | Literal["latest"]]:
    """What the options model, --id, --set, --log-dir name: the configuration of its run, and what
    `realm.learn.checkpoint.find` takes."""
    if number not in ("latest", "best") and not (number.isascii() and number.isdigit()):
        raise ConfigError(f"--id {number}: must be a number of updates, latest or best")
    if model == SHIPPED:
        if number != "latest":
            raise ConfigError(f"--id {number}: there is only one shipped model; leave --id out")
        folder = shipped_model()
        if not folder.is_dir():
            raise ConfigError(f"{folder}: no model was shipped with this copy of Realm; name a run")
    elif "=" in model:
        raise ConfigError(f"{model}: is not the name of a model; write --set before each key=value")
    elif not model:
        folder = _newest_model(runs_folder(log_dir), number)
    elif len(Path(model).parts) > 1 and _run_around(Path(model)):
        folder = Path(model)
    else:  # the name of a run, perhaps with a folder in it; a package of this name may be here, too
        name, *inner = Path(model).parts or (".",)
        try:
            folder = run_folder(name, log_dir).joinpath(*inner)
        except ConfigError:
            if not (Path(model).exists() if inner else _run_around(Path(model))):
                raise
            folder = Path(model)
    run_dir = _run_around(folder)
    if run_dir is None:
        raise ConfigError(f"{folder}: is not a run or inside one (neither it nor a folder above has a config.toml)")
    config = load_config(run_dir / "config.toml", overrides, hyper_keys)
    for package in {config.app.algo, config.app.app}:
        # the shipped model lies inside the package that plays it, and is no run
        refuse_code_of_a_run(package, None if model == SHIPPED else run_dir, runs_folder(log_dir))
    if number == "best":
        if folder.name not in (run_dir.name, "ckpt", BEST_FOLDER):
            raise ConfigError(
                f"{folder}: --id best is the best model of the run {run_dir}; name that, or leave --id out"
            )
        models = models_in(run_dir / BEST_FOLDER)
        if not models or (models[0][0].update == 0 and best_model(run_dir) is None):
            what = "only its untrained policy was evaluated" if models else "none of its models was evaluated"
            raise ConfigError(f"{run_dir}: {what}, so none is the best; leave --id best out")
        return config, (run_dir / BEST_FOLDER).absolute(), "latest"  # user code may go to another folder
    return config, checkpoints_of(folder).absolute(), "latest" if number == "latest" else int(number)


def run_folder(name: str, log_dir: str | None) -> Path:
    """The directory of a run, by its name or its path; "" is the newest run. Raises ConfigError if there is none."""
    folder = runs_folder(log_dir)
    runs = [path for path, _ in find_runs(folder)]
    if not name:
        if not runs:
            raise ConfigError(f"{folder}: no run is there yet; train one with `realm start`")
        return runs[-1]
    for path in (Path(name), folder / name):
        with suppress(OSError):  # a name that is too long, a folder of somebody else
            if (path / "config.toml").is_file() or (path / "run.json").is_file():
                return path
    near = did_you_mean(name, [path.name for path in runs])
    raise ConfigError(f"{name}: there is no such run, neither here nor in {folder}{near}; `realm runs` lists them")


def checkpoints_of(folder: Path) -> Path:
    """A run's folder of checkpoints; any other folder as it is."""
    return folder / "ckpt" if (folder / "ckpt").is_dir() else folder


def runs_folder(log_dir: str | None) -> Path:
    """Where the runs are: as asked for, else as tools/start.sh puts them."""
    if log_dir is not None:
        return Path(log_dir)
    try:
        return Path(load_config(DEFAULT_CONFIG).app.log_dir)
    except ConfigError:  # not in the project's folder, or being edited: living runs can be stopped all the same
        return Path("train")


def shipped_model() -> Path:
    """Where the shipped model is, if there is one: next to its agent, put there by tools/study/ship.py."""
    return folder_of("diy") / "shipped"


def _run_around(folder: Path) -> Path | None:
    """The run that this folder is, or is inside of; None if there is none, or no such folder."""
    if not os.path.exists(folder):  # never raises, as for a folder of somebody else
        return None
    parents = folder.absolute().parents
    return next((one for one in (folder, *parents) if (one / "config.toml").is_file()), None)


def _newest_model(log_dir: Path, number: str) -> Path:
    """The newest run, or where there is none the shipped model."""
    runs = find_runs(log_dir)
    if runs:
        return runs[-1][0]
    shipped = shipped_model()
    if number != "latest" or not shipped.is_dir():
        raise ConfigError(f"{log_dir}: no run is there yet; train one with `realm start`, or name a model")
    say(f"{log_dir}: no run is there yet, so this is the shipped model, {shipped}", to_stderr=True)
    return shipped
