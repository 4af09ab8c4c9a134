"""Several runs, each a `realm start` in a process of its own: `realm start --seeds 1 2 3`, and `realm sweep`.

A run that has come to its end is left alone, so the same command goes on where an earlier one was stopped.

In a sweep Optuna chooses values for keys, and each trial is a run. The values that a key may take are in the table
[sweep] of the configuration, or of a file of its own:

    [sweep]
    "diy.lr_start" = { low = 1e-5, high = 1e-3, log = true }   # whole numbers if both ends are
    "diy.hidden" = [64, 128, 256]                              # one of these

What Optuna knows is in `<log_dir>/<run_name>.sweep.jsonl`, a journal of lines of JSON.
"""

from __future__ import annotations

import argparse
import fcntl
import shlex
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from realm.commands.ending import called
from realm.commands.games import projects
from realm.commands.locate import CONFIG_HELP, DEFAULT_CONFIG, SET_HELP, config_file
from realm.commands.parser import Commands
from realm.commands.spawn import start_run
from realm.config.keys import AppConfig
from realm.config.load import SWEEP, RunConfig, load_config, settings_of, with_base
from realm.config.toml import toml_value
from realm.errors import ConfigError, UserError, did_you_mean, one_line, to_install
from realm.launch.rundir import read_run
from realm.learn.results import evaluated, is_judged, newest_model
from realm.user import hyper_keys, hyper_of, hyper_table
from realm.watch.status import named, say, table

_WORDS = ("low", "high", "log", "step")
_DIGITS = 4  # of a number that was chosen, so that a person can type it
_SHOWN = 10  # of the best trials
_MOST_FAILURES = 3  # in a row


def add_commands(commands: Commands) -> None:
    """Add `sweep`; `start` is added by `train.py`."""
    text = "look for the best settings in many runs, with Optuna"
    example = "realm sweep --trials 20 --set run_name=my-sweep max_env_steps=200_000"
    sweeping = commands.add_parser("sweep", help=text, example=example)
    add_configuration(sweeping)
    text = "runs in all, with earlier ones (default 20)"
    sweeping.add_argument("--trials", type=int, default=20, metavar="N", help=text)
    text = "TOML file with the table [sweep] (default: the configuration, else sweep.toml)"
    sweeping.add_argument("--space", type=Path, metavar="FILE", help=text)
    sweeping.set_defaults(run=lambda given: sweep(given.config, given.set, given.trials, given.space))


def add_configuration(parser: argparse.ArgumentParser) -> None:
    """Add --config and --set."""
    parser.add_argument("--config", type=config_file, default=DEFAULT_CONFIG, help=CONFIG_HELP)
    parser.add_argument("--set", action="extend", nargs="+", default=[], metavar="KEY=VALUE", help=SET_HELP)


# --- seeds


def train_seeds(config: RunConfig, path: str, overrides: Sequence[str], seeds: Sequence[int]) -> int:
    """Train with each seed that has not come to its end, and print the table; returns the worst exit code."""
    app = config.app
    check_series(app, "--seeds")
    if len(set(seeds)) < len(seeds):
        raise ConfigError(f"--seeds {' '.join(map(str, seeds))}: each seed must be given once")
    folders, worst = [Path(app.log_dir) / f"{app.run_name}-seed{seed}" for seed in seeds], 0
    for folder in (one for one in folders if has_ended(one, app)):
        _check_settings(folder, config)
    for seed, folder in zip(seeds, folders, strict=True):
        if has_ended(folder, app):
            say(f"{folder}: has come to its end")
            continue
        say(f"{folder}: seed {seed}")
        code = start_run(path, [*overrides, f"seed={seed}"], folder)
        worst = max(worst, code if code >= 0 else 128 - code)  # a shell's code for a process that a signal has ended
    say(*seed_table(folders))
    return worst


def check_series(app: AppConfig, command: str) -> None:
    """Refuse a configuration whose runs would have no names or no end."""
    if not app.run_name:
        raise ConfigError(f"{command}: needs a name for its runs: --set run_name=NAME")
    if app.run_mode == "eval":
        raise ConfigError(f"{command}: trains, so run_mode must be train")
    if not (app.max_env_steps or app.max_seconds):
        raise ConfigError(f"{command}: each of its runs must come to an end: set max_env_steps or max_seconds")


def has_ended(run_dir: Path, app: AppConfig) -> bool:
    """Whether it has come to its limit, its workflow to its end, or a hook has ended it; not if stopped, or failed."""
    run, newest = read_run(run_dir), newest_model(run_dir)
    if run is None or newest is None or run.state != "stopped":
        return False
    if run.cause.startswith("max_env_steps"):  # the limit may have been raised since
        judged = not app.eval_every_steps or is_judged(run_dir)
        return judged and 0 < app.max_env_steps <= newest.env_steps
    if run.cause.startswith("max_seconds"):
        return run.cause.startswith(f"max_seconds = {app.max_seconds:g} ")
    return "workflow" in run.cause or run.cause.startswith("on_")


def _check_settings(run_dir: Path, config: RunConfig) -> None:
    """Refuse to count a run that has come to its end with another environment or other hyper-parameters."""
    whole = replace(config, hyper=hyper_table(hyper_of(config), config.hyper))  # with what is not said
    had, has = settings_of(load_config(run_dir / "config.toml")), settings_of(whole)
    for key in ("algo", *(key for key in (*had, *config.places) if "." in key)):
        if has.get(key) != had.get(key):
            place = f"{config.places[key]}: " if key in config.places else ""
            raise ConfigError(
                f"{place}key {key!r} is {has.get(key, 'not set')}, but {run_dir} has come to its end with "
                f"{had.get(key, 'none')}; choose another run_name"
            )


class Result(NamedTuple):
    """final: mean score of the last episodes. best: of the best model, None where none was evaluated."""

    best: float | None
    final: float

    @property
    def score(self) -> float:
        """By which runs are compared."""
        return self.final if self.best is None else self.best


def results(folders: Sequence[Path]) -> tuple[str, list[Result | None]]:
    """What was measured, and what each run came to, None if that is not known.

    All runs are measured in the same way: by evaluations, or if there are none by the last training episodes.
    """
    by_evaluations = [evaluated(folder) for folder in folders]
    if names := {one[0] for one in by_evaluations if one}:
        return f"{named(min(names))} of evaluations", [Result(*one[1:]) if one else None for one in by_evaluations]
    runs = [read_run(folder) for folder in folders]
    what = next((run.statistic for run in runs if run and run.statistic), "score")
    found = [None if run is None or run.score is None else Result(None, run.score) for run in runs]
    return f"{what} of the last training episodes", found


def seed_table(folders: Sequence[Path]) -> list[str]:
    """What each run scored, then the mean, the least and the greatest of them."""
    what, found = results(folders)
    there = [result for result in found if result]
    with_best = any(result.best is not None for result in there)

    def texts(best: float | None, final: float) -> list[str]:
        return [f"{x:.1f}" for x in ((best, final) if with_best else (final,)) if x is not None]

    rows = [["", "env steps", *(["best"] if with_best else []), "final"]]
    for folder, result in zip(folders, found, strict=True):
        newest = newest_model(folder)
        scores = texts(result.best, result.final) if result else ["-"] * (1 + with_best)
        rows.append([folder.name, f"{newest.env_steps:,}" if newest else "-", *scores])
    for name, of in (("mean", statistics.fmean), ("least", min), ("greatest", max)) if there else ():
        rows.append([name, "", *texts(of([one.score for one in there]), of([one.final for one in there]))])
    return ["", f"{what}:", *table(rows, frozenset({1, 2, 3}))]


# --- sweep


class Values(NamedTuple):
    """What a key may be set to. place: `file:line`; among: a distribution of Optuna, whose choices are TOML."""

    place: str
    among: Any

    @property
    def ends(self) -> tuple[str, ...]:
        """Values, as TOML, that must be allowed if all shall be."""
        among = self.among
        return among.choices if hasattr(among, "choices") else (toml_value(among.low), toml_value(among.high))


def text_of(trial: Any, key: str) -> str:
    """The value that Optuna has chosen for a key in this trial, as TOML; "-" if it has none."""
    if key not in trial.params:
        return "-"
    chosen, among = trial.params[key], trial.distributions[key]
    if isinstance(chosen, float):
        chosen = min(max(float(f"{chosen:.{_DIGITS}g}"), among.low), among.high)
    return chosen if isinstance(chosen, str) else toml_value(chosen)


def sweep(path: str, overrides: Sequence[str], trials: int, space_file: Path | None) -> int:
    """Run trials until there are `trials` in all, and print the best ones; return the exit code."""
    try:
        import optuna
    except ImportError:
        raise ConfigError(f"realm sweep needs Optuna, which is not installed: {to_install('optuna')}") from None
    config = projects().load(path, overrides, hyper_keys)
    app = config.app
    check_series(app, "realm sweep")
    if trials < 1:
        raise ConfigError(f"--trials {trials}: must be a number from 1")
    space = read_space(path, space_file)
    hyper_of(config)  # or what is wrong in here would be said of the space
    _check_space(space, path, overrides)
    journal = Path(app.log_dir) / f"{app.run_name}.sweep.jsonl"
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    distributions = {key: values.among for key, values in space.items()}
    failures = 0

    def of(trial: Any) -> tuple[Path, list[str]]:
        """Its run, and what was chosen."""
        chosen = [f"{key}={text_of(trial, key)}" for key in trial.params if key in space]
        return Path(app.log_dir) / f"{app.run_name}-trial{trial.number}", chosen

    with _owned(journal):
        study = _study(optuna, journal, app.run_name, distributions)
        for run_dir, chosen in map(of, study.trials):
            if has_ended(run_dir, app):
                _check_settings(run_dir, projects().load(path, [*overrides, *chosen], hyper_keys))
        while (trial := _next(optuna, study, distributions, trials, app.seed)) is not None:
            run_dir, chosen = of(trial)
            say(f"{run_dir}, trial {trial.number + 1} of {trials}: {' '.join(chosen)}")
            code = 0 if has_ended(run_dir, app) else start_run(path, [*overrides, *chosen], run_dir)
            result = results([run_dir])[1][0] if code == 0 else None
            score = result.score if result else None
            study.tell(trial.number, score, state=None if score is not None else optuna.trial.TrialState.FAIL)
            failures = 0 if score is not None else failures + 1
            if failures == _MOST_FAILURES:
                raise ConfigError(f"the last {failures} trials have failed; see what they have said above")
        return _report(study.trials, space, config, path, overrides)


def read_space(path: str, file: Path | None) -> dict[str, Values]:
    """Key -> its values, from the table [sweep] of `file`, or if none is given of the configuration, or of sweep.toml.

    Raises ConfigError with the line of what is wrong.
    """
    files = [file] if file else [Path(path), *([Path("sweep.toml")] if Path("sweep.toml").is_file() else [])]
    for one in files:
        tables, places = with_base(one)
        if SWEEP in tables:
            space = dict(_values((SWEEP,), tables[SWEEP], places)) if isinstance(tables[SWEEP], dict) else {}
            if not space:
                raise ConfigError(f"{places[SWEEP]}: table [{SWEEP}]: it must name keys with their values")
            return space
    raise ConfigError(
        f"{files[-1]}: has no table [{SWEEP}], which must say what to try, like "
        '"diy.lr_start" = { low = 1e-5, high = 1e-3, log = true }'
    )


def _values(name: tuple[str, ...], value: Any, places: Mapping[str, str]) -> Iterator[tuple[str, Values]]:
    """The keys below `name`; `diy.lr_start` may be in quotes or in tables of tables."""
    place = places.get(".".join(name), f"table [{SWEEP}]")
    key = ".".join(name[1:])
    if isinstance(value, dict) and (name == (SWEEP,) or all(isinstance(one, dict | list) for one in value.values())):
        for inner, one in value.items():
            yield from _values((*name, inner), one, places)
        return
    try:
        yield key, Values(place, _distribution(value))
    except ValueError as error:
        raise ConfigError(f"{place}: key {key!r}: {one_line(error)}") from None


def _distribution(value: Any) -> Any:
    """Raises ValueError for what is no set of values."""
    from optuna import distributions as kinds

    if isinstance(value, list) and value:
        return kinds.CategoricalDistribution(tuple(dict.fromkeys(map(toml_value, value))))
    if not isinstance(value, dict):
        raise ValueError(f"got {toml_value(value)[:80]}; must be a list of values, or {{ low = ..., high = ... }}")
    if unknown := [word for word in value if word not in _WORDS]:
        raise ValueError(f"{unknown[0]!r} is unknown; must be low, high, log or step{did_you_mean(unknown[0], _WORDS)}")
    numbers = [value.get(word) for word in ("low", "high")]
    if not all(type(one) in (int, float) for one in numbers):
        raise ValueError("low and high must be numbers")
    whole = all(type(one) is int for one in (*numbers, value.get("step", 1)))
    try:
        return (kinds.IntDistribution if whole else kinds.FloatDistribution)(**value)
    except (TypeError, ArithmeticError) as error:
        raise ValueError(one_line(error)) from None


def _check_space(space: Mapping[str, Values], path: str, overrides: Sequence[str]) -> None:
    """Try the ends of each key's values in the configuration, before anything starts."""
    for key, values in space.items():
        if key in ("run_name", "log_dir", "app.run_name", "app.log_dir"):
            raise ConfigError(f"{values.place}: key {key!r}: each trial has its own; leave it out")
        for end in values.ends:
            try:
                config = projects().load(path, [*overrides, f"{key}={end}"], hyper_keys)
                hyper_of(config)
            except UserError as error:
                raise ConfigError(f"{values.place}: {error}") from error


@contextmanager
def _owned(journal: Path) -> Iterator[None]:
    """Keep other sweeps of this name out."""
    try:
        journal.parent.mkdir(parents=True, exist_ok=True)
        file = open(journal, "ab")  # noqa: SIM115 - closed below
    except OSError as error:
        raise ConfigError(f"{journal}: {error.strerror}; it must be a file that can be written") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"{journal}: another realm sweep is at it; wait, or choose another run_name") from None
        whole, line, torn = journal.read_bytes().rpartition(b"\n")
        if line and torn.startswith(b'{"op_code"'):  # by a full disk, or a power cut
            file.truncate(len(whole) + 1)
        yield


def _study(optuna: Any, journal: Path, name: str, distributions: Mapping[str, Any]) -> Any:
    """The study in the journal, which must allow these values; a new one if it is empty."""
    backend = optuna.storages.journal.JournalFileBackend(str(journal))  # JSON; only its Redis backend uses pickle
    try:
        study = optuna.create_study(
            storage=optuna.storages.JournalStorage(backend), study_name=name, direction="maximize", load_if_exists=True
        )
        former = [trial.distributions for trial in study.get_trials(deepcopy=False)]
    except Exception as error:  # Optuna names no errors for a file that somebody else has written
        raise ConfigError(f"{journal}: is not the journal of a sweep ({type(error).__name__}: {error})") from error
    for key, new in distributions.items():
        for old in (one[key] for one in former if key in one):
            try:
                optuna.distributions.check_distribution_compatibility(old, new)
            except ValueError:
                raise ConfigError(
                    f"{journal}: was begun with other kinds of values of {key}; choose another run_name"
                ) from None
    return study


def _next(optuna: Any, study: Any, distributions: Mapping[str, Any], trials: int, seed: int) -> Any:
    """The trial to run now: one that was interrupted, else a new one; None if there are enough."""
    there = study.get_trials(deepcopy=False)
    for trial in there:
        if trial.state == optuna.trial.TrialState.RUNNING:
            if trial.params.keys() == distributions.keys():
                return trial
            study.tell(trial.number, state=optuna.trial.TrialState.FAIL)  # killed while values were chosen
    if len(there) >= trials:
        return None
    # a seed for each trial: a sweep that was interrupted chooses what it would have chosen
    mixed = int(np.random.SeedSequence((seed, len(there))).generate_state(1)[0])  # neighbours would draw neighbours
    study.sampler = optuna.samplers.TPESampler(seed=mixed)
    return study.ask(dict(distributions))


def _report(
    trials: Sequence[Any], space: Mapping[str, Values], config: RunConfig, path: str, overrides: Sequence[str]
) -> int:
    """Print the best trials, and the command that trains with the best settings."""
    good = sorted((one for one in trials if one.value is not None), key=lambda one: -one.value)
    if not good:
        raise ConfigError("no trial has a score: in none of them an episode has ended; give each more max_env_steps")
    keys = list(space)
    rows = [("trial", "score", *keys)]
    for one in good[:_SHOWN]:
        settings = (text_of(one, key) for key in keys)
        rows.append((f"{config.app.run_name}-trial{one.number}", f"{one.value:.1f}", *settings))
    left = len(trials) - len(good)
    more = f", {left} without a score" if left else ""
    say("", f"{len(trials)} trials{more}; the best:", *table(rows, frozenset(range(1, len(rows[0])))))
    best = [f"{key}={text_of(good[0], key)}" for key in good[0].params if key in space]
    own = [text for text in overrides if text.partition("=")[0] not in ("run_name", "app.run_name")]
    words = ["start", *(["--config", path] if path != DEFAULT_CONFIG else []), "--set", *own, *best]
    words.append(f"run_name={config.app.run_name}-best")
    say("", "train with the best settings:", f"  {called()} {shlex.join(words)}")
    return 0
