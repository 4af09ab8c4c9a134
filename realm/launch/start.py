"""Prepares a run from a configuration: checks first, then the run's directory.

Called by `realm start` and `train_test.py`. It creates nothing before all checks have passed.
"""

from __future__ import annotations

import dataclasses
import gc
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from loguru import logger

from realm.apart import apart
from realm.config.flow import check_memory, check_rows, check_warm_up
from realm.config.load import RunConfig, load_config, settings_of, to_toml
from realm.config.machine_memory import usable_bytes
from realm.config.plan import Decided, Plan, make_plan, slow_choices, stale_choice, with_replay
from realm.config.toml import MOST_BYTES
from realm.contract import Spec
from realm.errors import ConfigError
from realm.files import read_text, replace_file, set_aside
from realm.launch.ports import check_ports
from realm.launch.rundir import RunFile, claim_run_dir
from realm.launch.smoke_test import try_user_code
from realm.learn.results import models_in, newest_in, newest_model, numbered
from realm.user import hyper_of, hyper_table, load_callbacks
from realm.watch.progress import busy

if TYPE_CHECKING:
    from realm.wire.curve_keys import CurveKeys


@dataclass(frozen=True)
class Prepared:
    """A run that passed all checks. config: with every value decided, as in its config.toml. Paths are absolute, since
    user code may change the current directory."""

    config: RunConfig
    plan: Plan
    spec: Spec
    run_dir: Path
    run_file: RunFile
    keys: CurveKeys | None
    former_config: Path | None = None
    """The kept configuration of an earlier run in this directory, if it differed."""

    def put_back_config(self) -> None:
        """Restore the former configuration after a run without an update: the directory's models still fit that one."""
        if self.former_config:
            self.former_config.replace(self.run_dir / "config.toml")


def prepare(config: RunConfig, decided: Decided, fresh: bool = False, run_id: str = "") -> Prepared:
    """Check everything that can be checked before a process starts, then claim the run's directory.

    fresh: do not resume the run `run_name`, but begin another next to it. run_id: what the hosts know it by; "" makes
    one. Raises ConfigError or UserCodeError.
    """
    plan = make_plan(decided.app)
    keys = None
    if config.app.wrapper_type == "remote":
        from realm.wire.curve_keys import load_keys  # late: it brings ZeroMQ, which one process does without

        keys = load_keys(config.app.keys_dir)
    gc.disable()  # imports make no garbage, and collections would take a tenth of the start
    hyper = hyper_of(config)
    config = dataclasses.replace(config, app=decided.app, hyper=hyper_table(hyper, config.hyper))
    with busy(f"trying the package {config.app.algo}, which compiles it when it is new here"), apart(over=True):
        spec = try_user_code(config, hyper)
        load_callbacks(config.app.algo)
    gc.freeze()
    gc.enable()
    usable = usable_bytes()
    if config.app.save_replay and not spec.draw:
        place = config.places.get("app.save_replay", "[app]")
        raise ConfigError(f"{place}: key 'save_replay': it keeps rows, but the spec has no draw; it must be false")
    if not plan.on_policy and (known := getattr(hyper, "advantage", "q")) != "q":
        place = config.places.get("app.algorithm_on_policy_or_off_policy", "[app]")
        raise ConfigError(
            f"{place}: key 'algorithm_on_policy_or_off_policy': {config.app.hyper_table}.advantage is {known!r}, which "
            "learns from newly played rounds alone; it must be on-policy, or in realm.zoo.ppo the advantage 'q'"
        )
    if spec.draw:
        decided = with_replay(decided, spec.row_bytes, usable, getattr(hyper, "minibatch_size", 1))
        config, plan = dataclasses.replace(config, app=decided.app), make_plan(decided.app)
    check_rows(plan, spec)
    check_memory(
        workers=decided.dealt[0],
        envs_per_worker=plan.envs_per_worker,
        chunk_bytes=spec.sample_bytes,
        kept=0 if config.app.save_replay else plan.capacity * (spec.row_bytes if spec.draw else spec.sample_bytes),
        usable=usable,
    )
    _check_models(config, plan, spec, fresh)
    if config.app.wrapper_type == "remote" and not run_id:
        check_ports(config.app)  # again, since another start may have taken one while this one tried the package
    try:
        run_dir, run_file = claim_run_dir(config.app, fresh, run_id)
        config = dataclasses.replace(config, app=dataclasses.replace(config.app, run_name=run_dir.name))
        run_file.beginning = beginning(run_dir, config)
        former = _write_config(run_dir, to_toml(config, decided.why))
    except OSError as error:
        place = config.places.get("app.log_dir", "[app]")
        reason = f"{error.filename or config.app.log_dir}: {error.strerror}"
        raise ConfigError(f"{place}: key 'log_dir': {reason}; it must be a writable folder") from error
    _tell(config, decided, plan, run_file.beginning)
    former = former and former.absolute()
    return Prepared(config.settled(), plan, spec, run_dir.absolute(), run_file, keys, former)


def _tell(config: RunConfig, decided: Decided, plan: Plan, beginning: list[str]) -> None:
    """Say what was chosen and why, what is unwise, and how the run begins."""
    for warning in config.warnings:
        logger.warning(warning)
    for key, reason in decided.why.items():
        logger.info("chosen: {} = {}: {}", key, getattr(decided.app, key), reason)
    if sentence := stale_choice(decided, plan):
        logger.warning("{}", sentence)
    for sentence in slow_choices(config.app, plan, decided.dealt[0]):
        logger.warning("slow: {}", sentence)
    if plan.backend == "reverb" and not decided.own_network:
        logger.warning(
            "reverb's port listens on all interfaces of this machine, without a password, as this system allows no "
            "network namespace; close the port at the firewall, or set buffer_backend = native"
        )
    for sentence in beginning:
        logger.info("{}", sentence)


def _check_models(config: RunConfig, plan: Plan, spec: Spec, fresh: bool) -> None:
    """Refuse to resume models of other shapes, or to preload what is not there, before anything is written and without
    torch; and to resume a run that would reach its limit before it trains."""
    app = config.app
    run_dir = Path(app.log_dir) / app.run_name if app.run_name and not fresh else None
    newest = newest_model(run_dir) if run_dir else None
    if newest and newest.schema != spec.schema:
        raise ConfigError(
            f"{newest.path}: was trained with other shapes (schema {newest.schema}, now {spec.schema}); choose another "
            "run_name, begin a new run with --fresh, or restore the observation, action and chunk settings"
        )
    if not plan.on_policy and not (newest and app.save_replay and (newest.path.parents[1] / "replay").is_dir()):
        by_ratio, preload = not (spec.sample or plan.warm_up_steps), plan.preload * spec.steps_per_sample
        steps, key = (preload, "preload_ratio") if by_ratio else (plan.warm_up_steps, "warm_up_steps")
        check_warm_up(app.max_env_steps, steps, newest.env_steps if newest else 0, key)
    begins = run_dir is None or not models_in(run_dir / "ckpt")
    if begins and app.preload_model:
        folder, update = Path(app.preload_model_dir), app.preload_model_id
        if not (found := newest_in(folder)):
            place = config.places.get("app.preload_model_dir", "[app]")
            raise ConfigError(
                f"{place}: key 'preload_model_dir': {folder}: has no checkpoint; it must be a folder of checkpoints"
            )
        if update != "latest" and found.path != folder:
            numbered(folder, update)


def _write_config(run_dir: Path, text: str) -> Path | None:
    """Write config.toml; keep a different existing one as config.toml.<n> and return that path."""
    path = run_dir / "config.toml"
    kept = None
    if os.path.lexists(path):  # also a link to nowhere, which must not be written through
        try:
            if read_text(path, MOST_BYTES) == text:
                return None
        except (OSError, UnicodeDecodeError):
            pass  # it is no configuration, so it is kept as another one is
        kept = set_aside(path)
    try:
        replace_file(path, text.encode())
    except OSError:
        if kept:
            kept.rename(path)  # a full disk costs the start, not the run's configuration
        raise
    return kept


def beginning(run_dir: Path, config: RunConfig) -> list[str]:
    """Say whether a run in this directory is new or resumed, and which keys differ from its last session's."""
    former = run_dir / "config.toml"
    if not former.exists() and not models_in(run_dir / "ckpt"):
        return [f"new run: {run_dir}"]
    sentence = f"resuming the run {run_dir}, which keeps all its files (--fresh begins a new one)"
    try:
        changes = changed_keys(load_config(former), config)
    except ConfigError as error:
        return [sentence, f"its former configuration cannot be compared with this one: {error}"]
    return [sentence, *(f"changed since its last start: {change}" for change in changes)]


def changed_keys(old: RunConfig, new: RunConfig) -> list[str]:
    """`key: old value -> new value` of every key that differs, as `--set` names keys."""
    before, after = settings_of(old), settings_of(new)
    return [
        f"{key}: {before.get(key, 'not set')} -> {after.get(key, 'not set')}"
        for key in before | after
        if before.get(key) != after.get(key)
    ]
