"""The command line helps: what was probably meant, an example in each help, the keys and their meanings."""

from __future__ import annotations

import argparse
import dataclasses
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from realm.commands import main as cli
from realm.commands.parser import Parser
from realm.config.keys import AppConfig
from realm.config.meanings import meanings
from realm.user import load_config_class
from tests.cluster import ROOT
from tests.console import end, start


def leaves(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """The parsers of all commands."""
    inner = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    for one in inner[0].choices.values() if inner else ():
        yield one
        yield from leaves(one)


def test_each_help_has_an_example_that_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    for parser in leaves(cli._parser()):
        assert parser.epilog, f"{parser.prog} has no example"
        assert parser.description, f"{parser.prog} does not say what it does"
        line = parser.epilog.partition("example:\n  ")[2]
        words = shlex.split(line.removeprefix('eval "$(').removesuffix(')"'))
        assert " ".join(words).startswith(parser.prog)
        assert callable(cli._parser().parse_args(words[1:]).run)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("strat", "realm strat: there is no such command (did you mean 'start'?)"),
        ("evla", "realm evla: there is no such command (did you mean 'eval'?)"),
        ("map shwo", "realm map shwo: there is no such command (did you mean 'show'?)"),
        ("eval --epsiodes 3", "--epsiodes: realm eval has no such option (did you mean '--episodes'?)"),
        ("start --sett a=1", "--sett: realm start has no such option (did you mean '--set'?)"),
        ("runs now", "now: realm runs does not expect it"),
        ("stop laerner", "got 'laerner'; must be all or"),
        ("eval one --set seed=1 eval_episodes=3", "eval_episodes=3: write --set before each key=value of realm eval"),
        ("eval --set seed=1 eval_episodes=3", "eval_episodes=3: is not the name of a model; write --set before each"),
        ("start --set lr_start=1e-3", "key 'lr_start': unknown; must be a key of AppConfig in realm/config/keys.py "
         "(did you mean 'diy.lr_start'?)"),
        ("start --set lr_strat=1e-3", "(did you mean 'diy.lr_start'?)"),
        ("start --set seed=1 treasure_num=3", "(did you mean 'env.treasure_num'?)"),
        ("start --set diy.max_env_steps=3", "(did you mean 'max_env_steps' in [app]?)"),
        ("start --set diy.treasure_num=3", "(did you mean 'env.treasure_num'?)"),
        ("start --set env.lr_start=1", "(did you mean 'diy.lr_start'?)"),
        ("start --set env.max_seconds=1", "(did you mean 'max_seconds' in [app]?)"),
        ("config evla_episodes", "there is no such key (did you mean 'eval_episodes'?)"),
        ("", "the following arguments are required: COMMAND; `realm --help` shows how it is called"),
    ],
)  # fmt: skip
def test_what_was_probably_meant(
    words: str, sentence: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    code = cli.main(words.split())
    err = capsys.readouterr().err
    assert code == 2
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert sentence in err


def test_several_keys_after_one_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    given = "start --set a=1 b=2 --config x --set c=3"
    assert cli._parser().parse_args(given.split()).set == ["a=1", "b=2", "c=3"]
    assert cli._parser().parse_args(["start"]).set == []


def test_a_key_and_its_meaning(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(ROOT)
    assert cli.main(["config", "dump_model_freq"]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == [
        'dump_model_freq = 100   (default "auto")',
        "    Updates between two checkpoints; 0: one a minute. auto is 100 on-policy and 0 off-policy. It",
        '    must be a whole number at least 0 and at most 1000000000000000 or "auto".',
    ]
    assert cli.main(["config", "flash_share"]) == 0
    assert " It must be a number.\n" in capsys.readouterr().out.replace("\n    ", " ")
    assert cli.main(["config", "treasure_num"]) == 0
    assert "\nenv.treasure_num = 9\n    An option of the environments" in capsys.readouterr().out
    assert cli.main(["config", "version"]) == 0  # a part of a name
    assert "\nmax_version_lag = " in capsys.readouterr().out
    assert cli.main(["config", "--config", "conf/maps.toml"]) == 0
    out = capsys.readouterr().out
    assert all(f"\n{field.name} = " in out for field in dataclasses.fields(AppConfig))
    assert "\ndiy.flash_share = 0.25   (default 0.5)\n    weight of that tour" in out
    assert max(map(len, out.splitlines())) <= 100


@pytest.mark.parametrize("cls", [AppConfig, load_config_class("diy")])
def test_every_key_has_a_meaning(cls: Any) -> None:
    said = meanings(cls)
    assert [field.name for field in dataclasses.fields(cls) if not said.get(field.name)] == []


def test_completion(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("shtab")
    monkeypatch.chdir(ROOT)
    for shell in ("bash", "zsh"):
        assert cli.main(["completion", shell]) == 0
        assert "compare" in capsys.readouterr().out


@pytest.mark.skipif(not shutil.which("bash"), reason="there is no bash")
@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("realm comp", "compare completion"),
        ("realm resume on", "one"),
        ("realm eval on", "one"),
        ("realm compare one two", "two"),
        ("realm start --config m", "mine.toml"),
        ("realm stop lea", "learner"),
    ],
)
def test_tab_completes_commands_runs_and_files(
    words: str, wanted: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("shtab")
    for name in ("one", "two"):
        (tmp_path / "train" / name).mkdir(parents=True)
    (tmp_path / "mine.toml").touch()
    assert cli.main(["completion", "bash"]) == 0
    press = f"""
        compopt() {{ :; }}
        COMP_WORDS=({words}) COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
        _shtab_realm realm "${{COMP_WORDS[-1]}}" "${{COMP_WORDS[-2]}}"
        echo "${{COMPREPLY[@]}}"
    """
    script = capsys.readouterr().out + press
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert sorted(done.stdout.split()) == wanted.split()


def test_a_parser_of_a_command_is_one_of_ours() -> None:
    assert all(isinstance(parser, Parser) for parser in leaves(cli._parser()))


def test_a_current_directory_that_is_gone_is_one_sentence(tmp_path: Path) -> None:
    gone = "import os, runpy; os.rmdir(os.getcwd()); runpy.run_module('realm', run_name='__main__')"
    said = "error: the current directory was deleted; go to one that is there\n"
    assert end(start("-c", gone, cwd=tmp_path)) == (2, "", said)
