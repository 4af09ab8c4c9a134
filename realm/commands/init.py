"""`realm init`: writes a package that trains at once, to be changed from there, and a configuration next to it.

With --env it is a copy of one of `realm/zoo/`, for any gymnasium environment; with `--from realm` one of `diy/`, the
agent of Back to the Realm. The user's name is put into it.
"""

from __future__ import annotations

import importlib.util
import keyword
import re
import sys
from pathlib import Path

import realm
from realm.commands.ending import called
from realm.commands.models import DEFAULT_CONFIG
from realm.contract import Spec
from realm.errors import ConfigError
from realm.user import BUILT_IN, load_definition, load_hyper

GAME = "realm"
PACKAGES = ("ppo", "dqn", "td3", "sac", GAME)
_CONTINUOUS = ("td3", "sac")
_FILES = ("config.py", "feature/definition.py", "algorithm/agent.py", "train_workflow.py")

_MEMORY_BYTES = 1 << 30  # of observations in a replay memory

_ON_POLICY = """aisrv_connect_to_kaiwu_env_count = 8     # environments, which are stepped together
"""
_OFF_POLICY = """aisrv_connect_to_kaiwu_env_count = 1
algorithm_on_policy_or_off_policy = "off-policy"
replay_buffer_capacity = {capacity}           # steps that are kept
warm_up_steps = 1000                     # env steps before the first update
train_batch_size = {batch}                  # rows of one draw: {parts} minibatches
production_consume_ratio = {ratio}           # how often a step is drawn on average
"""
_TABLES = {
    "ppo": "",
    "dqn": "lr = 1e-3\ntarget_every = 50                        # gradient steps between two targets\n",
    "td3": "lr = 1e-3\nrandom_steps = 1000                      # env steps with uniform actions at first\n",
    "sac": "lr = 1e-3\nrandom_steps = 1000                      # env steps with uniform actions at first\n",
}


def init(name: str, env: str, package: str) -> None:
    """Write the package `name` and `<name>.toml` into the current directory.

    name: "" makes one from the environment's; package: of PACKAGES, "" chooses by the action space. Raises ConfigError.
    """
    if package == GAME and env:
        raise ConfigError(f"--env {env}: cannot be given with --from {GAME}, which is the agent of the game")
    if package != GAME and not env:
        raise ConfigError(
            "realm init: say for which environment: --env with an id of gymnasium, like --env CartPole-v1 or --env "
            f"my_module:MyEnv-v0, or --from {GAME} for the agent of Back to the Realm"
        )
    if package == GAME:
        name = name or "my_realm"
        what = "Back to the Realm with the PPO of diy"
        texts, settings = _copied(BUILT_IN / "diy", "diy", name), _game_config(name)
    else:
        package, spec = _fitting(package, env)
        name = name or _name_of(env)
        what = f"{env} with {package}"
        texts, settings = _package(name, package), _config(name, env, package, spec)
    folder, config = Path(name), Path(f"{name}.toml")
    _check_name(name)
    for path in (folder, config):
        if path.exists():
            raise ConfigError(f"{path} is there already; choose another NAME, or move it away")
    for file, text in texts.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(text)
    config.write_text(settings)
    print(f"{folder}/ and {config} are written: {what}")
    print(f"train it:     {called()} start --config {config}")
    print(f"evaluate it:  {called()} eval {name}")


def _name_of(env: str) -> str:
    """A name for the package, from the environment's id."""
    name = re.sub(r"\W", "_", re.split("[:/]", env)[-1].rpartition("-")[0].lower()).strip("_")
    return f"{name}_agent" if not name.isidentifier() or _taken(name) else name


def _taken(name: str) -> bool:
    """Whether `import name` would find something else than a package to be written here."""
    return name in sys.stdlib_module_names or (importlib.util.find_spec(name) is not None and not Path(name).is_dir())


def _check_name(name: str) -> None:
    if not name.isidentifier() or keyword.iskeyword(name) or name in ("app", "env", "eval_env", "realm"):
        raise ConfigError(f"NAME is {name!r}; it must be the name of a Python package, like my_agent")
    if _taken(name):
        raise ConfigError(f"NAME is {name!r}, which is the name of another Python module; choose one like my_{name}")


def _fitting(package: str, env: str) -> tuple[str, Spec]:
    """The package, or the default one, and the environment's Spec. Raises ConfigError if they are of other kinds."""
    any_env = "realm.zoo.ppo"  # its definition is that of all of them
    definition, config = load_definition(any_env), load_hyper(any_env, {})
    try:
        envs = definition.make_envs(1, 0, config, {"id": env})
        spec = definition.spec(envs, config)
        envs.close()
    except ConfigError as error:
        text = str(error)
        of_id = text.startswith("[env] id is ")
        raise ConfigError(text.replace("[env] id is", "--env", 1) if of_id else f"--env {env}: {text}") from error
    is_box = not spec.action.n
    package = package or ("td3" if is_box else "ppo")
    if is_box != (package in _CONTINUOUS):
        fitting = [one for one in PACKAGES if (one in _CONTINUOUS) == is_box and one != GAME]
        raise ConfigError(f"--from {package} does not fit the actions of {env}; it must be {' or '.join(fitting)}")
    return package, spec


def _package(name: str, package: str) -> dict[str, str]:
    """File -> text of the new package."""
    zoo = Path(realm.__file__).parent / "zoo"
    texts = {file: (zoo / package / file).read_text() for file in _FILES}
    texts["train_workflow.py"] = (zoo / "cartpole" / "train_workflow.py").read_text()  # the loop itself, to be changed
    texts = {file: _renamed(text, f"realm.zoo.{package}", name) for file, text in texts.items()}
    return {"__init__.py": "", "feature/__init__.py": "", "algorithm/__init__.py": "", **texts}


def _copied(folder: Path, package: str, name: str) -> dict[str, str]:
    """File -> text of a copy of the package in `folder`."""
    files = sorted(file for file in folder.rglob("*.py") if "__pycache__" not in file.parts)
    return {str(file.relative_to(folder)): _renamed(file.read_text(), package, name) for file in files}


def _renamed(text: str, package: str, name: str) -> str:
    text = re.sub(rf"\b(from|import) {re.escape(package)}\b", rf"\1 {name}", text)
    table = package.rpartition(".")[2]
    for before, after in (('ClassVar[str] = "', '"'), ("[", "]"), ("--set ", ".")):
        text = text.replace(f"{before}{table}{after}", f"{before}{name}{after}")
    return text


def _game_config(name: str) -> str:
    """`conf/configure_app.toml` for the copy of `diy`."""
    text = (BUILT_IN / DEFAULT_CONFIG).read_text().replace('algo = "diy"', f'algo = "{name}"')
    text = re.sub(r'^run_name = ""', f'run_name = "{name}"', text, flags=re.MULTILINE)
    return text.replace("diy/config.py", f"{name}/config.py").replace("\n[diy]", f"\n[{name}]")


def _config(name: str, env: str, package: str, spec: Spec) -> str:
    fits = max(1000, _MEMORY_BYTES // sum(field.nbytes for field in spec.obs.values()) // 1000 * 1000)
    numbers = {"capacity": f"{min(1_000_000, fits):<9_}", "batch": 5120, "parts": "20", "ratio": 256}
    if package == "dqn":
        numbers = {"capacity": f"{min(50_000, fits):<9_}", "batch": 1280, "parts": "10", "ratio": 64}
    flow = _ON_POLICY if package == "ppo" else _OFF_POLICY.format(**numbers)
    return f"""# {env} with {package}: realm start --config {name}.toml
# Every key of [app], with its meaning: realm/config/keys.py; of [{name}]: {name}/config.py and what it inherits from.

[app]
algo = "{name}"
run_name = "{name}"                      # a new name makes a new run, the same name goes on with it
wrapper_type = "local"                   # one process; "remote" makes a cluster of it
{flow}torch_num_threads = 1
eval_every_steps = 5000
eval_episodes = 10
max_env_steps = 200_000                  # 0: no limit

[env]
id = "{env}"

[{name}]
{_TABLES[package]}"""
