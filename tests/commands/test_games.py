"""How a game brings commands and a report of its own to the command line (`realm/commands/games.py`)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from realm.commands.games import EvaluatingGame, Game, app_here, load_game
from realm.commands.main import NO_GAME
from realm.config.load import load_config, to_toml
from realm.contract import Version
from realm.errors import UserCodeError
from realm.learn import checkpoint
from realm.user import load_agent, load_definition, load_hyper
from tests.cluster import ROOT
from tests.console import realm

COMMANDS = """
from realm.errors import UserError

def add_commands(commands):
    hello = commands.add_parser("hello", help="greet a player")
    hello.add_argument("name")
    hello.set_defaults(run=greet)

def greet(arguments):
    if arguments.name == "nobody":
        raise UserError("nobody: must be the name of a player")
    print("hello", arguments.name)
    return 3
"""
EVALUATION = """
from realm.commands.evaluate import write_json
from realm.errors import ConfigError
from realm.learn.evaluation import evaluate as play

def add_eval_options(parser):
    parser.add_argument("--twice", action="store_true", help="count twice")
    parser.add_argument("--decline", action="store_true")

def prepare_eval(options, request, episodes):
    if options.twice and options.decline:
        raise ConfigError("--twice: cannot be given with --decline")
    return 3

def evaluate(evaluation, options):
    if options.decline:
        return False
    assert evaluation.envs.num_envs == 3
    stats = play(evaluation.config, evaluation.envs, evaluation.predict, evaluation.episodes, 0.0, 7).statistics
    print("my report:", len(stats["length"]) * (2 if options.twice else 1))
    write_json(evaluation, [{name: values.tolist() for name, values in stats.items()}], {"mine": True})
    return True
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a game and a configuration that names it."""
    package = tmp_path / "my_games" / "walk"
    package.mkdir(parents=True)
    (package / "commands.py").write_text(COMMANDS + EVALUATION)
    configure(tmp_path, "my_games.walk")
    return tmp_path


def configure(folder: Path, app: str) -> None:
    (folder / "conf").mkdir(exist_ok=True)
    (folder / "conf" / "configure_app.toml").write_text(f'[app]\napp = "{app}"\nalgo = "tests.evaluated"\n')


def commands_in(folder: Path) -> set[str]:
    """The commands that the help lists."""
    code, out, err = realm("--help", cwd=folder)
    assert (code, err) == (0, "")
    return {line.split()[0] for line in out.splitlines() if line.startswith("    ") and line[4] != " "}


def test_the_help_lists_the_commands_of_the_game_here(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    everywhere = {*NO_GAME, "completion", "eval", "export", "record", "play"}
    realms = {"map", "oracle"}
    assert commands_in(folder) - everywhere == {"hello"}
    assert commands_in(tmp_path_factory.mktemp("empty")) - everywhere == realms
    for app, own in {"back_to_the_realm": realms, "my_games": set(), "nowhere": set(), "a-game": set()}.items():
        configure(folder, app)
        assert commands_in(folder) - everywhere == own
    (folder / "conf" / "configure_app.toml").write_text("[app\n")
    assert commands_in(folder) - everywhere == realms


def test_a_command_of_a_game(folder: Path) -> None:
    assert realm("hello", "you", cwd=folder) == (3, "hello you\n", "")
    assert realm("hello", "nobody", cwd=folder) == (2, "", "error: nobody: must be the name of a player\n")


def test_a_game_whose_commands_are_wrong(folder: Path) -> None:
    file = folder / "my_games" / "walk" / "commands.py"
    for source, text in {
        "1 / 0": "my_games.walk.commands: ZeroDivisionError: division by zero (while importing the commands",
        "import nowhere": "my_games.walk.commands: No module named 'nowhere' (while importing the commands",
        "x = 1": "has no add_commands(commands)",
    }.items():
        file.write_text(source)
        code, out, err = realm("--help", cwd=folder)
        assert (code, out, len(err.splitlines())) == (2, "", 1)
        assert text in err
        code, _, err = realm("status", "--log-dir", folder / "none", cwd=folder)  # for which no game is needed
        assert text not in err


def test_the_realm_is_a_game() -> None:
    game = load_game("back_to_the_realm")
    assert isinstance(game, Game)
    assert isinstance(game, EvaluatingGame)
    assert app_here(ROOT / "conf" / "configure_app.toml") == "back_to_the_realm"
    with pytest.raises(UserCodeError, match="has no add_commands"):
        load_game("realm")  # which has a package `commands`, and is no game


def test_the_help_imports_little() -> None:
    code = "import sys\nfrom realm.commands import main\nmain._parser()\n"
    code += "print(sorted({'torch', 'numba', 'PIL', 'rich', 'realm.env.physics'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.system
@pytest.mark.slow
def test_a_report_of_a_game(folder: Path) -> None:
    run = folder / "train" / "walk"
    config = load_config(folder / "conf" / "configure_app.toml")
    hyper, definition = load_hyper(config.app.algo, config.hyper), load_definition(config.app.algo)
    spec = definition.spec(definition.make_envs(1, 0, hyper, {}), hyper)
    agent = load_agent(config.app.algo)(spec, hyper, "cpu", 0)
    run.mkdir(parents=True)
    checkpoint.save(run / "ckpt", agent, Version(1, 3), 100, spec.schema, keep=1)
    (run / "config.toml").write_text(to_toml(config))

    file = folder / "eval.json"
    assert realm("eval", run, "--episodes", "5", "--json", file, cwd=folder) == (0, "my report: 5\n", "")
    content = json.loads(file.read_text())
    assert content["mine"]
    assert len(content["episodes"]["length"]) == 5
    assert realm("eval", run, "--episodes", "5", "--twice", cwd=folder) == (0, "my report: 10\n", "")
    assert realm("eval", run, "--twice", "--decline", cwd=folder)[2] == (
        "error: --twice: cannot be given with --decline\n"
    )
    code, out, _ = realm("eval", run, "--episodes", "5", "--decline", "--json", file, cwd=folder)
    assert (code, "my report" in out, "5 episodes, greedy actions, seed 2000000" in out) == (0, False, True)
    assert len(json.loads(file.read_text())["episodes"]["length"]) == 5
    # in the folder of another game, the run's own game still reports, and the options of the other are refused
    configure(folder, "back_to_the_realm")
    assert realm("eval", run, "--episodes", "5", cwd=folder) == (0, "my report: 5\n", "")
    code, out, err = realm("eval", run, "--all", cwd=folder)
    assert (code, out) == (2, "")
    assert err == "error: --all: is not an option of 'my_games.walk', which is the game of this run\n"
    # the realm says what it needs
    other = run.with_name("other")
    run.rename(other)
    (other / "config.toml").write_text(
        (other / "config.toml").read_text().replace("my_games.walk", "back_to_the_realm")
    )
    code, out, err = realm("eval", other, "--all", cwd=folder)
    assert (code, out) == (2, "")
    assert "--all: needs the realm" in err
    code, out, _ = realm("eval", other, "--episodes", "5", "--both", cwd=folder)
    assert code == 0
    assert "sampled actions" in out
    assert np.isfinite(float(out.split("length")[1].split()[0]))
