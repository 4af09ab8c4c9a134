"""Who may import whom: read from the source with ast, and checked once against what a worker's process really loads."""

from __future__ import annotations

import ast
import dataclasses
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from realm.config.keys import AppConfig

ROOT = Path(__file__).parents[1]

ALLOWED = {
    "base": {"base"},
    "contract": {"base", "contract"},
    "config": {"base", "contract", "config"},
    "data": {"base", "contract", "config", "data"},
    "policy": {"base", "contract", "policy"},
    "watch": {"base", "contract", "config", "watch"},
    "wire": {"base", "contract", "config", "data", "policy", "watch", "wire"},
    "user": {"base", "contract", "config", "user"},
    "algorithms": {"base", "contract", "algorithms", "group"},
    "group": {"base", "contract", "algorithms"},  # a learner that is one of several
    "learn": {"base", "contract", "config", "policy", "watch", "user", "learn"},
    "roles": {"base", "contract", "config", "wire", "roles"},
    "role": {"base", "contract", "config", "data", "policy", "watch", "wire", "user", "learn", "roles", "group"},
    # and a role, inside a function
    "launch": {"base", "contract", "config", "data", "policy", "watch", "wire", "user", "learn", "roles", "launch"},
    "commands": {
        *("base", "contract", "config", "data", "watch", "wire", "user", "learn", "roles", "launch", "commands"),
    },
    "game": {"base", "game"},
    "game commands": {
        *("base", "contract", "config", "watch", "user", "learn", "commands", "game", "game commands", "kaiwu"),
    },
    "tenant": {"base", "contract", "algorithms", "group", "game", "tenant"},
    # a package like a tenant's; the command line finds it by name, to translate a configuration
    "kaiwu": {"base", "contract", "config", "learn", "game", "kaiwu"},
}
"""Which rooms a room may import from. Nothing in `realm/` imports a tenant, and the framework knows no game."""

BASE = ("apart", "errors", "files", "jit", "netns")  # import nothing of the project
CONTRACT = ("contract", "chunk")  # what user code and framework share
OWNERS = {
    "zmq": {"realm.wire.sockets", "realm.wire.door", "realm.wire.curve_keys"},
    "numba": {"realm.jit"},
    "reverb": set[str](),  # realm.data.reverb loads its C++ half alone
    "tensorflow": set[str](),
    "torch": {
        "realm.returns",
        "realm.learn.checkpoint",
        *("realm.learn.export", "realm.env.commands.episodes"),
        *("realm.kaiwu.algorithm.agent", "realm.kaiwu.modules", "realm.kaiwu.records"),
        *(f"realm.algorithms.{path.stem}" for path in (ROOT / "realm" / "algorithms").glob("*.py")),
    }
    - {"realm.algorithms.settings", "realm.algorithms.choose"},  # workers import the one; the other is a kernel
    "safetensors": {"realm.learn.checkpoint"},
    "ray": {"realm.launch.on_ray"},
}
PRELOAD = "realm.launch.preload"  # imports in the fork server alone
PATH_OF_A_STEP = (
    "contract/arrays", "contract/versions", "contract/spec", "contract/samples", "contract/package", "chunk",
    "rollout/rounds", "rollout/checks", "returns",
    "algorithms/ppo", "algorithms/batch", "algorithms/estimate", "algorithms/losses", "algorithms/side_by_side",
    "wire/codec", "wire/sockets", "wire/line", "wire/predict", "wire/samples", "wire/models",
    "policy/gate", "policy/local_policy", "policy/state", "data/buffer", "data/reverb", "learn/trainer",
    "roles/aisrv", "roles/actor", "roles/buffer", "roles/learner", "roles/model_pool",
)  # fmt: skip

BOUNDS = {
    "algorithms": 3_258, "commands": 3_749, "config": 1_540, "contract": 818, "data": 1_094, "env": 5_867,
    "kaiwu": 2_871, "launch": 3_292, "learn": 1_671, "policy": 220, "roles": 1_105, "rollout": 694, "watch": 1_823,
    "wire": 1_870, "zoo": 2_435, "*.py": 1_411, "framework": 22_545, "env.step to the gradient": 5_536, "tools": 4_395,
    "keys of [app]": 53,
}  # fmt: skip
"""The most lines of each room of realm/, of all of it but env, kaiwu and zoo, of PATH_OF_A_STEP, and of tools/."""


def layer(module: str) -> str:
    parts = module.split(".")
    if parts[0] == "diy" or parts[1] == "zoo":
        return "tenant"
    room = parts[1] if len(parts) > 1 else ""
    if room == "roles":
        return "roles" if parts[2:3] in ([], ["WAITS"], ["job"], ["table"]) else "role"
    if parts[1:3] == ["algorithms", "group"]:
        return "group"
    if room == "env":
        return "game commands" if parts[2:3] in (["commands"], ["layouts"], ["report"]) else "game"
    if parts[1:3] == ["kaiwu", "commands"]:
        return "game commands"
    if room in BASE:
        return "base"
    if room in CONTRACT:
        return "contract"
    return {"returns": "algorithms", "rollout": "user", "__main__": "commands"}.get(room, room)


def modules(package: str) -> dict[str, Path]:
    paths = (ROOT / package).rglob("*.py")
    return {".".join(one.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): one for one in paths}


def imported(source: str) -> Iterator[tuple[str, bool]]:
    """(dotted name, whether inside a function) of everything that the source imports."""
    tree = ast.parse(source)
    lazy = {id(inner) for one in ast.walk(tree) if isinstance(one, ast.FunctionDef) for inner in ast.walk(one)}
    for one in ast.walk(tree):
        if isinstance(one, ast.Import):
            yield from ((alias.name, id(one) in lazy) for alias in one.names)
        elif isinstance(one, ast.ImportFrom):
            name = "." * one.level + (one.module or "")
            # the names may be modules: `from realm import returns`
            yield from ((f"{name}.{alias.name}", id(one) in lazy) for alias in one.names)


def violations(module: str, source: str) -> list[str]:
    own = layer(module)
    found = []
    for name, lazy in imported(source):
        parts = name.split(".")
        if parts[0] == "":
            found.append(f"{module} imports {name}, relatively")
        elif parts[0] in OWNERS and own != "tenant" and module not in OWNERS[parts[0]]:
            found.append(f"{module} imports {name}, which only {sorted(OWNERS[parts[0]])} may")
        elif parts in (["realm"], ["realm", "__version__"]) or parts[0] not in ("realm", "diy"):
            continue
        else:
            wanted = {layer(name), ".".join(parts[:2])}
            late = own == "launch" and layer(name) == "role" and (lazy or module == PRELOAD)
            if not wanted & ALLOWED[own] and not late:
                found.append(f"{module} ({own}) imports {name} ({layer(name)})")
    return found


@pytest.mark.parametrize("package", ["realm", "diy"])
def test_nobody_imports_whom_it_should_not_know(package: str) -> None:
    found = modules(package)
    assert len(found) > 5
    wrong = [line for name, path in found.items() if name != "realm" for line in violations(name, path.read_text())]
    assert wrong == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("realm.contract", "from realm.wire.codec import Codec"),
        ("realm.wire.codec", "def f():\n    from realm.roles import actor"),
        ("realm.wire.codec", "from realm.launch.start import prepare"),
        ("realm.wire.sockets", "import realm.env.physics"),
        ("realm.wire.predict", "import zmq.utils"),
        ("realm.learn.trainer", "def f():\n    import torch"),
        ("realm.config.plan", "import reverb"),
        ("realm.watch.meters", "from tensorflow import summary"),
        ("realm.roles.actor", "from realm.roles import learner"),
        ("realm.roles.actor", "from realm.env.map import Map"),
        ("realm.roles.actor", "from realm.launch.start import prepare"),
        ("realm.launch.child", "from realm.roles.actor import run"),
        ("realm.env.map", "from realm.contract import Array"),
        ("realm.algorithms.ppo", "from realm.wire.codec import Message"),
        ("realm.roles.job", "from realm.learn.trainer import Trainer"),
        ("realm.learn.trainer", "import realm.zoo.cartpole.config"),
        ("realm.env.oracle.solving", "from realm.env.report import Limits"),
        ("realm.env.draw.regrets", "from realm.env.layouts import Outcome"),
        ("realm.env.commands.episodes", "from realm.launch.start import prepare"),
        ("realm.env.report", "from realm.roles import evaluator"),
        ("realm.commands.main", "from realm.env.map import Map"),
        ("realm.commands.main", "def f():\n    from realm.env.commands import add_commands"),
        ("realm.commands.evaluate", "def f():\n    from realm.env import report"),
        ("diy.feature.definition", "from realm.env.report import bound_limits"),
        ("realm.user", "import diy"),
        ("realm.roles.aisrv", "from realm.kaiwu.game import Game"),
        ("realm.launch.local", "def f():\n    from realm.kaiwu import process"),
        ("realm.commands.train", "def f():\n    from realm.kaiwu.project import load"),
        ("realm.kaiwu.train_workflow", "from realm.wire.control import Stopped"),
        ("realm.user", "from . import chunk"),
        ("diy.train_workflow", "from realm.wire import Client"),
        ("diy.algorithm.agent", "import realm.wire.predict"),
    ],
)
def test_the_check_finds(module: str, source: str) -> None:
    assert len(violations(module, source)) == 1
    assert violations("realm.launch.child", "def f():\n    from realm.roles.actor import run") == []


def test_no_import_goes_in_a_circle() -> None:
    """Late imports count, those for types alone do not."""
    found, graph = modules("realm"), {}
    for name, path in found.items():
        tree = ast.parse(path.read_text())
        tree.body = [
            one for one in tree.body if not (isinstance(one, ast.If) and "TYPE_CHECKING" in ast.dump(one.test))
        ]
        wanted = {one if one in found else one.rpartition(".")[0] for one, _ in imported(ast.unparse(tree))}
        graph[name] = wanted & found.keys() - {"realm", name}
    assert list(TopologicalSorter(graph).static_order())  # raises CycleError


def test_the_command_line_finds_a_games_commands_by_name_only() -> None:
    importers = {
        name
        for package in ("realm", "diy")
        for name, path in modules(package).items()
        for wanted, _ in imported(path.read_text())
        if wanted.startswith("realm.env.commands") and not name.startswith("realm.env.commands")
    }
    assert importers == set()


@pytest.mark.system
def test_a_worker_loads_no_torch_and_no_reverb() -> None:
    code = """
import sys
for name in ("chunk", "user", "roles.aisrv", "launch.child", "commands.main"):
    __import__(f"realm.{name}")
    print(name, sorted({"torch", "safetensors", "tensorflow", "reverb"} & set(sys.modules)))
    """
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.stdout.splitlines() == [
        f"{name} []" for name in ("chunk", "user", "roles.aisrv", "launch.child", "commands.main")
    ], done.stderr


@pytest.mark.system
def test_one_process_loads_no_zeromq() -> None:
    """Training in one process has no socket."""
    code = """
import sys
for name in ("commands.main", "commands.train", "launch.start", "launch.local"):
    __import__(f"realm.{name}")
for name in ("config", "feature.definition", "train_workflow", "algorithm.agent"):
    __import__(f"diy.{name}")
print(sorted(name for name in sys.modules if name.split(".")[0] == "zmq" or name.startswith("realm.wire")))
    """
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.stdout.splitlines() == ["[]"], done.stderr


def lines_in(paths: Iterable[Path]) -> int:
    return sum(len(path.read_text().splitlines()) for path in paths)


def test_nothing_outgrows_its_bound() -> None:
    """`pytest -s` prints the sizes. Who needs more takes something else away; a bound goes down when its room does."""
    rooms = {path.name: lines_in(path.rglob("*.py")) for path in (ROOT / "realm").iterdir() if path.is_dir()}
    rooms = {name: lines for name, lines in rooms.items() if lines}
    rooms["*.py"] = lines_in((ROOT / "realm").glob("*.py"))
    sizes = {
        **rooms,
        "framework": sum(lines for name, lines in rooms.items() if name not in ("env", "kaiwu", "zoo")),
        "env.step to the gradient": lines_in(ROOT / "realm" / f"{name}.py" for name in PATH_OF_A_STEP),
        "tools": lines_in(path for ending in ("py", "sh") for path in (ROOT / "tools").rglob(f"*.{ending}")),
        "keys of [app]": len(dataclasses.fields(AppConfig)),
    }
    print(f"\n{sizes}")
    assert sizes.keys() == BOUNDS.keys()
    assert {name: size for name, size in sizes.items() if size > BOUNDS[name]} == {}


@pytest.mark.parametrize("users", [None, "active"])
def test_threads_of_torch_do_not_spin_unless_the_user_says_so(users: str | None) -> None:
    """Set before torch is there: its OpenMP reads it once."""
    code = "import sys, realm, os; assert 'torch' not in sys.modules; print(os.environ['OMP_WAIT_POLICY'])"
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    environment |= {"OMP_WAIT_POLICY": users} if users else {}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == (users or "passive")
