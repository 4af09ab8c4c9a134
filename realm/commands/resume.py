"""`realm resume [RUN]`: goes on with a run that has ended, with the configuration in its own folder."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from realm.commands.ending import resuming
from realm.commands.train import set_options, start_detached, train
from realm.config.load import RunConfig, load_config
from realm.config.toml import toml_value
from realm.errors import ConfigError
from realm.kaiwu.project import check_resumed
from realm.learn.outcome import newest_model
from realm.user import hyper_keys, refuse_code_of_a_run


def resume(run_dir: Path, overrides: Sequence[str], detach: bool) -> int:
    """Train until a limit, a signal or an error; return the exit code. overrides: `key=value`, as of --set."""
    config = configuration_of(run_dir, overrides)
    if detach:
        return start_detached(["resume", str(run_dir), *set_options(overrides)], config)
    return train(config)


def configuration_of(run_dir: Path, overrides: Sequence[str]) -> RunConfig:
    """The configuration of a run, wherever its folder lies now, and whose code is not from there.

    Raises ConfigError if the code would be, and if the run is at its limit already.
    """
    for text in overrides:
        key = text.partition("=")[0].strip().removeprefix("app.")
        if key in ("run_name", "log_dir"):
            raise ConfigError(f"--set {text}: the run stays where it is; leave {key} out, or use realm start")
    folder = Path(os.path.abspath(run_dir))
    file = run_dir / "config.toml"
    app = load_config(file).app
    moved = Path(os.path.abspath(app.log_dir)) != folder.parent  # or the user stands elsewhere
    place = [f"log_dir={toml_value(str(folder.parent))}"] if moved else []
    config = load_config(file, [*overrides, f"run_name={toml_value(folder.name)}", *place], hyper_keys)
    if "app.algo" not in config.places:
        raise ConfigError(f"{file}: has no key 'algo', and Realm wrote all: the file is damaged; restore it")
    for package in {config.app.algo, config.app.app}:
        refuse_code_of_a_run(package, folder, folder.parent)
    check_resumed(config, overrides)
    newest, limit = newest_model(run_dir), config.app.max_env_steps
    if newest and limit and newest.env_steps >= limit:
        raise ConfigError(
            f"{run_dir}: has made {newest.env_steps:,} env steps, and its max_env_steps is {limit:,}; go on past it: "
            f"{resuming(run_dir, newest.env_steps, limit)}"
        )
    return config
