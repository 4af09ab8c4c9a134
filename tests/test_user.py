"""realm/user.py: tiny packages written into tmp_path load, and each way to get one wrong is one sentence."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from importlib.machinery import PathFinder
from pathlib import Path

import pytest

from realm.config.keys import AppConfig
from realm.config.load import RunConfig
from realm.errors import ConfigError, UserCodeError
from realm.user import (
    hyper_table,
    load_agent,
    load_definition,
    load_hyper,
    load_preferences,
    load_workflow,
    make_agent,
    search_path,
)
from tests.console import realm

GOOD = {
    "__init__.py": "",
    "config.py": """\
        from dataclasses import dataclass
        @dataclass(frozen=True)
        class Config:
            lr: float = 0.5
            size: int = 3
            def __post_init__(self):
                if self.lr < 0:
                    raise ValueError("lr is below 0")
                if self.size == 13:
                    [][self.size]
        """,
    "feature/definition.py": """\
        def make_envs(num_envs, seed, config, options): return ("envs", num_envs, seed, config, options)
        def spec(envs, config): return ("spec", envs)
        """,
    "algorithm/agent.py": """\
        class Agent:
            def __init__(self, spec, config, device, seed): pass
            def predict(self, obs, context): pass
            def learn(self, batch, info): pass
            def save_model(self): pass
            def load_model(self, state): pass
        """,
    "train_workflow.py": """\
        def workflow(envs, policy, context):
            yield 1
        """,
}
LOADERS: dict[str, Callable[[str], object]] = {
    "feature/definition.py": load_definition,
    "algorithm/agent.py": load_agent,
    "train_workflow.py": load_workflow,
    "config.py": lambda algo: load_hyper(algo, {}),
}

MAKE_ENVS = "expected make_envs(num_envs, seed, config, options)"
METHODS = "expected a class with predict, learn, save_model, load_model"
TOO_MANY = "too many positional arguments"

Write = Callable[..., None]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Write the good package `mine` into the current directory; `None` leaves a file out, text replaces it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def write(changes: dict[str, str | None] | None = None, package: str = "mine") -> None:
        for name, text in {**GOOD, **(changes or {})}.items():
            if text is not None:
                file = tmp_path / package / name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text("\n".join(line.removeprefix("        ") for line in text.split("\n")))

    yield write
    for name in [one for one in sys.modules if one.partition(".")[0] in ("mine", "outer")]:
        del sys.modules[name]


def sentence(folder: Path, load: Callable[[], object]) -> str:
    with pytest.raises(UserCodeError) as caught:
        load()
    text = str(caught.value)
    assert "\n" not in text
    return text.replace(f"{folder}{os.sep}", "")


def test_a_good_package(write: Write) -> None:
    write()
    definition = load_definition("mine")
    assert definition.make_envs(2, 3, None, {})[:3] == ("envs", 2, 3)
    assert definition.spec("e", None) == ("spec", "e")  # type: ignore[comparison-overlap]
    assert list(load_workflow("mine")(None, None, None)) == [1]  # type: ignore[arg-type]
    assert load_agent("mine").__name__ == "Agent"
    assert (load_hyper("mine", {}).lr, load_hyper("mine", {"lr": 1}).lr) == (0.5, 1.0)


def test_a_package_within_a_package_without_init_files(write: Write) -> None:
    write({"__init__.py": None}, "outer/mine")
    assert load_agent("outer.mine").__name__ == "Agent"
    with pytest.raises(ConfigError, match=r"^x.toml:3: key 'mine.sise': unknown; .*\(did you mean 'size'\?\)$"):
        load_hyper("outer.mine", {"sise": 3}, {"mine.sise": "x.toml:3"})


def test_the_current_directory_comes_first(
    write: Write, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = tmp_path_factory.mktemp("other")
    (other / "mine").mkdir()
    (other / "mine" / "__init__.py").write_text("raise SystemExit")
    sys.path.insert(0, str(other))
    write()
    assert load_agent("mine").__name__ == "Agent"
    before = list(sys.path)
    load_workflow("mine")
    assert sys.path == before


@pytest.mark.parametrize("name", LOADERS)
def test_a_missing_file(write: Write, tmp_path: Path, name: str) -> None:
    write({name: None})
    got = sentence(tmp_path, lambda: LOADERS[name]("mine"))
    assert got.startswith(f"mine/{name}: no such file; expected a file with ")


@pytest.mark.parametrize("name", LOADERS)
def test_a_missing_package(write: Write, tmp_path: Path, name: str) -> None:
    write()
    got = sentence(tmp_path, lambda: LOADERS[name]("mime"))
    assert got.startswith("mime: no such package")
    assert got.endswith("(did you mean 'mine'?)")


def test_a_missing_folder_within(write: Write, tmp_path: Path) -> None:
    write({"feature/definition.py": None})
    assert sentence(tmp_path, lambda: load_definition("mine")).startswith("mine/feature/definition.py: no such file;")


@pytest.mark.parametrize("name", LOADERS)
@pytest.mark.parametrize(
    ("text", "line", "error"),
    [
        ("x = 1\nimport no_such_library", 2, "ModuleNotFoundError: No module named 'no_such_library'"),
        ("from mine.nothing import x", 1, "ModuleNotFoundError: No module named 'mine.nothing'"),
        ("\n\nx = = 1", 3, "SyntaxError: invalid syntax"),
        ("\nraise RuntimeError('two\\nlines')", 2, "RuntimeError: two lines"),
        ("raise SystemExit(0)", 1, "SystemExit: 0"),
        ("import json\njson.loads('x')", 2, "JSONDecodeError: Expecting value"),
    ],
)
def test_an_error_while_importing_names_the_users_line(
    write: Write, tmp_path: Path, name: str, text: str, line: int, error: str
) -> None:
    write({name: text})
    got = sentence(tmp_path, lambda: LOADERS[name]("mine"))
    assert got.startswith(f"mine/{name}:{line}: {error}")
    assert got.endswith("(while importing it)")


def test_an_error_in_a_file_that_is_imported_names_that_file(write: Write, tmp_path: Path) -> None:
    write({"algorithm/model.py": "\n1 / 0", "algorithm/agent.py": "import mine.algorithm.model"})
    with pytest.raises(UserCodeError) as caught:
        load_agent("mine")
    assert "mine/algorithm/model.py:2: ZeroDivisionError: division by zero" in str(caught.value)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_an_error_in_the_packages_init_file(write: Write, tmp_path: Path) -> None:
    write({"__init__.py": "\n\n1 / 0"})
    assert sentence(tmp_path, lambda: load_agent("mine")).startswith("mine/__init__.py:3: ZeroDivisionError:")


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("feature/definition.py", "def make_env(): pass", f"has no make_envs; {MAKE_ENVS} (did you mean 'make_env'?)"),
        (
            "feature/definition.py",
            "make_envs = 3",
            f"make_envs cannot be called: 3 is not a callable object; {MAKE_ENVS}",
        ),
        ("feature/definition.py", "def make_envs(n): pass", f"make_envs cannot be called: {TOO_MANY}; {MAKE_ENVS}"),
        ("train_workflow.py", "", "has no workflow; expected workflow(envs, policy, context)"),
        ("algorithm/agent.py", "class PPO: pass", "has no Agent; expected Agent(spec, config, device, seed)"),
        ("algorithm/agent.py", "def Agent(*_): pass", f"Agent is not a class; {METHODS}"),
        (
            "algorithm/agent.py",
            "class Agent:\n  def __init__(self, *_): pass\n  def learn(self): pass",
            f"Agent has no predict, save_model, load_model; {METHODS}",
        ),
        ("config.py", "class Config: pass", "Config must be a frozen dataclass"),
        (
            "config.py",
            "import dataclasses\n@dataclasses.dataclass\nclass Config: pass",
            "Config must be a frozen dataclass",
        ),
    ],
)
def test_what_is_missing_in_a_file(write: Write, tmp_path: Path, name: str, text: str, expected: str) -> None:
    write({name: text})
    assert sentence(tmp_path, lambda: LOADERS[name]("mine")) == f"mine/{name}: {expected}"


def test_an_agent_without_its_network_is_one_sentence(write: Write, tmp_path: Path) -> None:
    write()
    agent = "class Agent:\n  def __init__(self, *_): self.net = None\n"
    write({"algorithm/agent.py": agent + "  predict = learn = save_model = load_model = lambda self: None\n"})
    config = RunConfig(AppConfig(algo="mine"), {}, {}, {})
    got = sentence(tmp_path, lambda: make_agent(config, None, "cpu", 1))
    assert got == "mine: Agent has no `model`, its network, a torch.nn.Module"


def test_errors_of_the_users_config(write: Write, tmp_path: Path) -> None:
    write()
    with pytest.raises(ConfigError, match=r"^x.toml:3: key 'mine.lr': lr is below 0$"):
        load_hyper("mine", {"lr": -1}, {"mine.lr": "x.toml:3"})
    got = sentence(tmp_path, lambda: load_hyper("mine", {"size": 13}))
    assert got == "mine/config.py:10: IndexError: list index out of range (while making Config)"
    write({"config.py": "import dataclasses\n@dataclasses.dataclass(frozen=True)\nclass Config:\n  x: 'Unknown' = 1"})
    for name in [one for one in sys.modules if one.startswith("mine")]:
        del sys.modules[name]
    got = sentence(tmp_path, lambda: load_hyper("mine", {"x": 13}))
    assert got == "mine/config.py: NameError: name 'Unknown' is not defined (while making Config)"


@pytest.mark.parametrize("says", [True, False])
def test_what_a_package_prefers(write: Write, says: bool) -> None:
    prefers = "        def preferred(cores, device, workers): return {'max_version_lag': 'part', 'why': ', here'}\n"
    write({"config.py": GOOD["config.py"].rstrip(" ") + prefers * says})
    preferred = load_preferences("mine")
    assert (preferred and preferred(2, "cpu", 1)) == ({"max_version_lag": "part", "why": ", here"} if says else None)


def test_a_preference_of_the_wrong_shape_is_one_sentence(write: Write) -> None:
    write({"config.py": GOOD["config.py"].rstrip(" ") + "        def preferred(cores): pass\n"})
    with pytest.raises(UserCodeError, match=r"expected preferred\(cores, device, workers\)"):
        load_preferences("mine")


def test_a_runs_configuration_has_every_field_that_toml_can_say(write: Write) -> None:
    fields = (
        "            size: int = 3\n            names: tuple[str, ...] = ('a',)\n            other: int | None = None\n"
    )
    write({"config.py": GOOD["config.py"].replace("            size: int = 3\n", fields)})
    table = hyper_table(load_hyper("mine", {"size": 7}), {"size": 7})
    assert table == {"lr": 0.5, "size": 7, "names": ("a",)}
    assert load_hyper("mine", table) == load_hyper("mine", {"size": 7})


def test_a_broken_agent_is_found_without_running_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from realm.user import check_agent

    folder = tmp_path / "checked" / "algorithm"
    folder.mkdir(parents=True)
    for one in (folder.parent, folder):
        (one / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserCodeError, match=r"agent\.py: No such file"):
        check_agent("checked")
    (folder / "agent.py").write_text("raise RuntimeError('it was run')\n")
    check_agent("checked")
    (folder / "agent.py").write_text("x = 1\nclass Agent(:\n")
    with pytest.raises(UserCodeError, match=r"agent\.py:2: SyntaxError"):
        check_agent("checked")


@pytest.mark.parametrize("key", ["algo", "app"])
@pytest.mark.parametrize("stand", ["", "train/gift"])
def test_no_code_is_taken_from_a_run(tmp_path: Path, key: str, stand: str) -> None:
    """A folder that somebody has sent: each of its modules would create a file."""
    gift = tmp_path / "train" / "gift"
    package = "code" if stand else "train.gift.code"
    for folder in ("", "code", "code/feature", "code/algorithm"):
        (gift / folder).mkdir(parents=True, exist_ok=True)
        for name in ("__init__", "config", "commands", "train_workflow", "definition", "agent"):
            (gift / folder / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n")
    (gift / "config.toml").write_text(f'[app]\n{key} = "{package}"\n')
    command = ["eval", "." if stand else "train/gift", "--log-dir", "nowhere"]
    for arguments in (command, ["record", *command[1:]], ["start", "--config", str(gift / "config.toml")]):
        if stand and arguments[0] == "start":
            continue  # the user stands there and names the configuration
        if key == "app" and arguments[0] == "start":
            continue  # imports no game
        code, out, err = realm(*arguments, cwd=tmp_path / stand)
        assert (code, out) == (2, ""), err
        assert err.startswith("error: "), err
        assert err.count("\n") == 1, err
        assert "so no code is taken from there" in err
        assert not (tmp_path / "ran").exists()


def test_a_package_below_the_runs_is_refused_without_any_mark(tmp_path: Path) -> None:
    (tmp_path / "train" / "code").mkdir(parents=True)
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "configure_app.toml").write_text('[app]\nlog_dir = "train"\n')
    (tmp_path / "sent").mkdir()
    (tmp_path / "sent" / "config.toml").write_text('[app]\nalgo = "train.code"\n')
    (tmp_path / "train" / "__init__.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n")
    code, _, err = realm("eval", "sent", cwd=tmp_path)
    assert code == 2
    assert "so no code is taken from there" in err
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", ["random", "queue", "logging", "numpy"])
def test_a_file_of_the_users_hides_no_module_that_realm_needs(tmp_path, monkeypatch, name):
    """Their own package still comes before what is installed, and before what comes with Realm."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / f"{name}.py").write_text("LUCKY = 7")
    (tmp_path / "diy").mkdir()
    (tmp_path / "diy" / "__init__.py").write_text("")
    found = PathFinder.find_spec(name, search_path())
    assert found
    assert not str(found.origin).startswith(str(tmp_path))
    assert str(PathFinder.find_spec("diy", search_path()).origin).startswith(str(tmp_path))
