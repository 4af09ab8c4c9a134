"""What a game brings to the command line, and how it is found: the only way from the framework to a game.

The key `app` of the table [app] names the game. "back_to_the_realm" stands for the package `realm.env`, and any other
name is that of the package itself, like `app = "my_game"`. If the package has a module `commands`, the command line
takes from it what `Game` and `EvaluatingGame` describe; a game without such a module has no commands of its own, and
`realm eval` prints generic statistics of its episodes. `realm --help` imports the module, so it must be quick to
import: the functions import torch and the like when they run. `realm/env/commands/` is the example.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

from realm.commands.parser import Commands
from realm.config.keys import AppConfig
from realm.config.toml import read_toml
from realm.errors import ConfigError, UserCodeError, one_line
from realm.user import refuse_code_of_a_run, search_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from realm.commands.evaluate import Candidate, Request
    from realm.config.load import RunConfig

GAMES = {"back_to_the_realm": "realm.env"}  # name of a game -> its package
KAIWU = "realm.kaiwu"  # runs projects written for KaiwuDRL, and has a command of its own


@runtime_checkable
class Game(Protocol):
    """The functions that a game's module `commands` must have."""

    def add_commands(self, commands: Commands) -> None:
        """Add parsers, each with `set_defaults(run=...)`: a function of the parsed arguments that returns the exit
        code. A UserError that it raises is printed as one line, with exit code 2."""


@runtime_checkable
class EvaluatingGame(Game, Protocol):
    """The functions that it has as well if `realm eval` shall print the game's own report."""

    def add_eval_options(self, parser: argparse.ArgumentParser) -> None:
        """Add the game's own options of `realm eval`; all must have defaults."""

    def prepare_eval(self, options: argparse.Namespace, request: Request, episodes: int) -> int:
        """Refuse options that cannot be followed, before the model is loaded. Returns how many environments shall play
        at the same time."""

    def evaluate(self, candidate: Candidate, options: argparse.Namespace) -> bool:
        """Play, print the game's report and write the files. Returns False, before any of that, if these environments
        are not the game's; then the generic statistics are printed."""


class Projects(Protocol):
    """What reads every configuration: Realm's own, and those of projects written for KaiwuDRL."""

    def load(
        self, path: str | Path, overrides: Sequence[str] = (), hyper_keys: Callable[[str], Iterable[str]] = ...
    ) -> RunConfig:
        """Read a configuration; a project's code is checked, too. Raises ConfigError or UserCodeError."""

    def translated(self, path: str | Path) -> RunConfig:
        """As `load`, but with no look at the project's code. Raises ConfigError."""

    def check_resumed(self, config: RunConfig, overrides: Sequence[str]) -> None:
        """Raise ConfigError for a setting that only a new start can give to such a project."""


def projects() -> Projects:
    """Its module, found by name as a game is."""
    return cast(Projects, importlib.import_module(f"{KAIWU}.project"))


def app_here(config: Path) -> str:
    """The game that the configuration in this folder names; the default if there is none, or a broken one."""
    default = AppConfig().app
    try:
        app = read_toml(config)[0].get("app", {}).get("app", default)
    except (ConfigError, AttributeError):
        return default
    return app if isinstance(app, str) else default


def load_game(app: str) -> Game | None:
    """Import the module `commands` of a game; None if it has none."""
    package = GAMES.get(app, app)
    if not all(part.isidentifier() for part in package.split(".")):
        return None
    refuse_code_of_a_run(package)
    name = f"{package}.commands"
    sys.path[:] = search_path()
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            return None
        raise UserCodeError(f"{name}: {one_line(error)} (while importing the commands of the game)") from error
    except Exception as error:
        text = f"{type(error).__name__}: {one_line(error)}"
        raise UserCodeError(f"{name}: {text} (while importing the commands of the game)") from error
    if not isinstance(module, Game):
        raise UserCodeError(f"{module.__file__}: has no add_commands(commands), which a game's commands.py must have")
    return cast(Game, module)


def eval_parser(game: Game | None) -> argparse.ArgumentParser:
    """A parser of the game's own options of `realm eval`, for `parents=`."""
    parser = argparse.ArgumentParser(add_help=False)
    if isinstance(game, EvaluatingGame):
        game.add_eval_options(parser)
    return parser


def eval_options(app: str, game: Game | None, given: Mapping[str, Any]) -> argparse.Namespace:
    """The game's own options: those given, and the defaults of the others."""
    known = vars(eval_parser(game).parse_args([]))
    for name in given:
        if name not in known:
            raise ConfigError(f"--{name.replace('_', '-')}: is not an option of {app!r}, which is the game of this run")
    return argparse.Namespace(**{**known, **given})
