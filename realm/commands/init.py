"""`realm init`: writes a package that trains any gymnasium environment at once, to be changed from there.

The package is a copy of one of `realm/zoo/`, with the user's name in it, and a configuration next to it.
"""

from __future__ import annotations

import keyword
import re
from pathlib import Path

import realm
from realm.errors import ConfigError

PACKAGES = ("ppo", "dqn", "td3", "sac")
_CONTINUOUS = ("td3", "sac")
_FILES = ("config.py", "feature/definition.py", "algorithm/agent.py", "train_workflow.py")

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
    "dqn": "",
    "td3": "lr = 1e-3\nrandom_steps = 1000                      # env steps with uniform actions at first\n",
    "sac": "lr = 1e-3\nrandom_steps = 1000                      # env steps with uniform actions at first\n",
}


def init(name: str, env: str, package: str) -> None:
    """Write the package `name` and `<name>.toml` into the current directory.

    name: "" makes one from the environment's; package: of PACKAGES, "" chooses by the action space. Raises ConfigError.
    """
    is_box = _has_box_actions(env)
    package = package or ("td3" if is_box else "ppo")
    if is_box != (package in _CONTINUOUS):
        fitting = [one for one in PACKAGES if (one in _CONTINUOUS) == is_box]
        raise ConfigError(f"--from {package} does not fit the actions of {env}; it must be {' or '.join(fitting)}")
    name = name or re.sub(r"\W", "_", env.rpartition("/")[2].rpartition("-")[0].lower()).strip("_") or "agent"
    if not name.isidentifier() or keyword.iskeyword(name) or name in ("app", "env", "eval_env", "realm"):
        raise ConfigError(f"NAME is {name!r}; it must be the name of a Python package, like my_agent")
    folder, config = Path(name), Path(f"{name}.toml")
    for path in (folder, config):
        if path.exists():
            raise ConfigError(f"{path} is there already; choose another NAME, or move it away")
    for file, text in _package(name, package).items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(text)
    config.write_text(_config(name, env, package))
    print(f"{folder}/ and {config} are written: {env} with {package}")
    print(f"train it:     realm start --config {config}")
    print(f"evaluate it:  realm eval train/{name}")


def _has_box_actions(env: str) -> bool:
    import gymnasium  # late: other commands do not need it
    from gymnasium import spaces

    try:
        one = gymnasium.make(env)
    except gymnasium.error.DependencyNotInstalled as error:
        raise ConfigError(f"--env {env} needs a package that is not installed: {error}") from error
    except (gymnasium.error.Error, ModuleNotFoundError) as error:
        raise ConfigError(f"--env {env}: {str(error).splitlines()[0]}") from error
    space = one.action_space
    one.close()
    if isinstance(space, spaces.Box) and len(space.shape) == 1:
        return True
    if isinstance(space, (spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)):
        return False
    raise ConfigError(f"--env {env}: its action space {space} must be discrete, or a Box of one axis")


def _package(name: str, package: str) -> dict[str, str]:
    """File -> text of the new package."""
    zoo = Path(realm.__file__).parent / "zoo"
    texts = {}
    for file in _FILES:
        text = (zoo / package / file).read_text()
        if file == "train_workflow.py":  # the loop itself, since it will be changed
            text = (zoo / "cartpole" / file).read_text()
        text = text.replace(f"realm.zoo.{package}", name)
        texts[file] = text.replace(f'table: ClassVar[str] = "{package}"', f'table: ClassVar[str] = "{name}"')
    return {"__init__.py": "", "feature/__init__.py": "", "algorithm/__init__.py": "", **texts}


def _config(name: str, env: str, package: str) -> str:
    numbers = {"capacity": "1_000_000", "batch": 5120, "parts": "20", "ratio": 256}
    if package == "dqn":
        numbers = {"capacity": "50_000   ", "batch": 1280, "parts": "10", "ratio": 64}
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
