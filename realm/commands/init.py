"""`realm init`: writes a package that trains at once, to be changed from there, and a configuration next to it.

With --env it is a copy of one of `realm/zoo/`, for any gymnasium environment; with `--from realm` one of `diy/`, the
agent of Back to the Realm. The user's name is put into it. Settings are those of `conf/ppo/` where it has some for the
environment, else those of the package's `init.toml`, or of PPO's `init_<kind>.toml` for images and continuous actions.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import sys
from contextlib import suppress
from pathlib import Path

import realm
from realm.apart import apart
from realm.commands.configuration import package_keys
from realm.commands.ending import called
from realm.commands.locate import DEFAULT_CONFIG
from realm.commands.parser import Commands, writing
from realm.config.keys import CHECKS, AppConfig
from realm.config.load import RunConfig
from realm.config.toml import read_toml
from realm.contract import Spec
from realm.errors import ConfigError, UserError, one_line, place_of
from realm.launch.smoke_test import try_user_code
from realm.rollout.rounds import close
from realm.user import BUILT_IN, MAKES_ENVS, load_definition, load_hyper
from realm.watch.status import say

GAME = "realm"
_ZOO = Path(realm.__file__).parent / "zoo"
_TEMPLATE = "init.toml"  # of a package of the zoo: the configuration of its copy, for NAME and ENV
PACKAGES = (*sorted(path.parent.name for path in _ZOO.glob(f"*/{_TEMPLATE}")), GAME)
_FIRST = ("td3", "ppo")  # of those that fit an environment, the one that is taken
_FILES = ("config.py", "feature/definition.py", "algorithm/agent.py", "train_workflow.py")
_MEMORY_BYTES = 1 << 30  # of observations in a replay memory
_MATTER = {  # what is tried first: package -> keys of its table
    "ppo": ("lr_start", "gamma_start", "entropy_start", "chunk_length", "hidden", "normalise_obs"),
    "dqn": ("lr", "gamma", "hidden", "n_step", "target_every", "epsilon_steps"),
    "td3": ("lr", "gamma", "hidden", "minibatch_size", "explore_noise", "random_steps"),
    "sac": ("lr", "gamma", "hidden", "minibatch_size", "temperature", "random_steps"),
}


def add_commands(commands: Commands) -> None:
    """Add it."""
    text = "write a package that trains a gymnasium environment at once"
    parser = commands.add_parser("init", help=text, example="realm init cart --env CartPole-v1")
    text = "of the package (default: the environment's)"
    parser.add_argument("name", nargs="?", default="", metavar="NAME", help=text)
    text = "of gymnasium, such as CartPole-v1, or my_module:MyEnv-v0"
    parser.add_argument("--env", default="", metavar="ID", help=text)
    text = f"{', '.join(PACKAGES[:-1])}, or realm: the game's own agent (default: ppo; td3 if continuous, not listed)"
    parser.add_argument("--from", dest="package", choices=PACKAGES, default="", metavar="AGENT", help=text)
    text = "names the environments that PPO has tuned settings for"
    parser.add_argument("--list", action="store_true", help=text)
    parser.set_defaults(run=_init)


def _init(given: argparse.Namespace) -> int:
    if not given.list:
        init(given.name, given.env, given.package)
        return 0
    for env, file in tuned().items():
        say(f"{env:27} {read_toml(file)[0]['app']['max_env_steps']:>9,} env steps   conf/ppo/{file.name}")
    return 0


def tuned() -> dict[str, Path]:
    """Environment's id -> a configuration with settings of PPO for it."""
    return {read_toml(file)[0]["env"]["id"]: file for file in sorted((BUILT_IN / "conf" / "ppo").glob("*.toml"))}


def init(name: str, env: str, package: str) -> None:
    """Write the package `name` and `<name>.toml` into the current directory.

    name: "" makes one from the environment's; `my-agent` becomes `my_agent`, which Python can import.
    package: of PACKAGES, "" chooses by the action space. Raises ConfigError.
    """
    name = name.replace("-", "_")
    if package == GAME and env:
        raise ConfigError(f"--env {env}: cannot be given with --from {GAME}, which is the agent of the game")
    if package != GAME and not env:
        raise ConfigError(
            "realm init: say for which environment: --env with an id of gymnasium, like --env CartPole-v1 or --env "
            f"my_module:MyEnv-v0, or --from {GAME} for the agent of Back to the Realm; --list names environments that "
            "come with settings"
        )
    if package == GAME:
        name = name or "my_realm"
        what = "Back to the Realm with the PPO of diy"
        texts, settings = _copied(BUILT_IN / "diy", "diy", name), _game_config(name)
    else:
        settings_for = tuned()
        with apart(over=True):
            package, spec = _fitting(package, env, has_settings=env in settings_for)
        name = name or _name_of(env)
        found = settings_for.get(env) if package == "ppo" else None
        what = f"{env} with {package}" + (f" and the settings of conf/ppo/{found.name}" if found else "")
        texts = _package(name, package, env)
        settings = _tuned_config(name, found) if found else _config(name, env, package, spec)
        settings = _explained(settings, package)
    folder, config = Path(name), Path(f"{name}.toml")
    if not _is_package(name):
        raise ConfigError(f"NAME is {name!r}; it must be the name of a Python package, like my_agent")
    if _taken(name):
        raise ConfigError(f"NAME is {name!r}, which is the name of another Python module; choose one like my_{name}")
    for path in (folder, config):
        if path.exists():
            raise ConfigError(f"{path} is there already; choose another NAME, or move it away")
    with writing(folder):
        for file, text in texts.items():
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_text(text, "utf-8")
        config.write_text(settings, "utf-8")
    say(f"{folder}/ and {config} are written: {what}")
    say(f"train it:     {called()} start --config {config}")
    say(f"evaluate it:  {called()} eval {name}")


def _name_of(env: str) -> str:
    """A name for the package, from the environment's id."""
    name = re.sub(r"[^a-z0-9_]", "_", re.sub(r"-v\d+$", "", re.split("[:/]", env)[-1]).lower()).strip("_")
    return name if _is_package(name) and not _taken(name) else f"{name}_agent"


def _is_package(name: str) -> bool:
    """Whether a package of this name can be written, and named by `algo`."""
    return name.isidentifier() and name.isascii() and CHECKS["algo"](name) and name != "realm"


def _taken(name: str) -> bool:
    """Whether `import name` would find something else than a package to be written here."""
    its_own = name in (*sys.stdlib_module_names, "__main__")
    return its_own or (importlib.util.find_spec(name) is not None and not Path(name).is_dir())


def _fitting(package: str, env: str, has_settings: bool) -> tuple[str, Spec]:
    """The package, or the default one, and the environment's Spec. Raises ConfigError if they are of other kinds, or if
    a start would refuse the environment. has_settings: PPO has some for it, so it is the default."""
    make_envs = load_definition("realm.zoo.ppo").make_envs  # that of all of them
    specs: dict[str, Spec] = {}
    why = ""
    try:
        envs = make_envs(1, 0, None, {"id": env})
        for name in PACKAGES[:-1]:
            algo = f"realm.zoo.{name}"
            try:
                specs[name] = load_definition(algo).spec(envs, load_hyper(algo, {}))
            except ConfigError as error:
                why = str(error) if name == "ppo" or not why else why  # it takes actions of all kinds
    except ConfigError as error:
        why = str(error)
    except (Exception, SystemExit) as error:  # whatever the environment raises
        place = place_of(error, after=MAKES_ENVS)
        text = f"{place + ': ' if place else ''}{type(error).__name__}: {one_line(error)}"
        needs = "; register it with kwargs={...}, which [env] can then override" if " missing " in text else ""
        raise ConfigError(f"--env {env}: {text} (while making it){needs}") from error
    if not specs:
        of_id = why.startswith("[env] id is ")
        raise ConfigError(why.replace("[env] id is", "--env", 1) if of_id else f"--env {env}: {why}")
    package = package or ("ppo" if has_settings else next(name for name in (*_FIRST, *specs) if name in specs))
    if package not in specs:
        raise ConfigError(f"--from {package} does not fit the actions of {env}; it must be {' or '.join(specs)}")
    algo = f"realm.zoo.{package}"
    try:
        try_user_code(RunConfig(AppConfig(algo=algo), {"id": env}, {}, {}), load_hyper(algo, {}))
    except UserError as error:
        raise ConfigError(f"--env {env}: {error}") from error
    with suppress(Exception, SystemExit):  # it is only asked what it tells: the trial has met what it raises
        envs.reset(seed=0)
    if "legal" not in specs[package].obs and "action_mask" in (getattr(envs.unwrapped, "told", None) or ()):
        say(
            f"note: {env} tells the legal actions in info['action_mask'], which nothing reads; a wrapper that puts "
            "them into the observation, as its key 'action_mask', makes a mask of them (docs/your-own.md)"
        )
    close(envs)
    return package, specs[package]


def _package(name: str, package: str, env: str) -> dict[str, str]:
    """File -> text of the new package."""
    texts = {file: _text(package, file) for file in _FILES}
    made = re.compile(r'(make_vec\(num_envs, options, )"[^"]*"')
    texts["feature/definition.py"] = made.sub(lambda call: f'{call[1]}"{env}"', texts["feature/definition.py"])
    texts = {file: _renamed(text, f"realm.zoo.{package}", name) for file, text in texts.items()}
    return {"__init__.py": "", "feature/__init__.py": "", "algorithm/__init__.py": "", **texts}


def _text(package: str, file: str) -> str:
    """Of a file of the zoo; of one that passes on what another package has, that one's, which can be changed."""
    text = (_ZOO / package / file).read_text("utf-8")
    if shared := re.search(r"^from realm\.zoo\.(\w+)\S* import .*\n\n__all__", text, re.MULTILINE):
        text = _text(shared[1], file).replace(f"realm.zoo.{shared[1]}", f"realm.zoo.{package}")
    return text


def _copied(folder: Path, package: str, name: str) -> dict[str, str]:
    """File -> text of a copy of the package in `folder`."""
    files = sorted(file for file in folder.rglob("*.py") if "__pycache__" not in file.parts)
    return {str(file.relative_to(folder)): _renamed(file.read_text("utf-8"), package, name) for file in files}


def _renamed(text: str, package: str, name: str) -> str:
    text = re.sub(rf"\b(from|import) {re.escape(package)}\b", rf"\1 {name}", text)
    table = package.rpartition(".")[2]
    for before, after in (('ClassVar[str] = "', '"'), ("[", "]"), ("--set ", ".")):
        text = text.replace(f"{before}{table}{after}", f"{before}{name}{after}")
    return text


def _game_config(name: str) -> str:
    """`conf/configure_app.toml` for the copy of `diy`."""
    text = (BUILT_IN / DEFAULT_CONFIG).read_text("utf-8").replace('algo = "diy"', f'algo = "{name}"')
    text = re.sub(r'^run_name = ""', f'run_name = "{name}"', text, flags=re.MULTILINE)
    return text.replace("diy/config.py", f"{name}/config.py").replace("\n[diy]", f"\n[{name}]")


def _tuned_config(name: str, file: Path) -> str:
    text = re.sub(r"^(algo|run_name) = .*", rf'\1 = "{name}"', file.read_text("utf-8"), flags=re.MULTILINE)
    return text.replace("\n[ppo]", f"\n[{name}]").replace(f"conf/ppo/{file.name}", f"{name}.toml")


def _explained(settings: str, package: str) -> str:
    """The settings with the meanings of the keys that matter; those that are not set follow with their defaults, as
    comments."""
    keys = {key.name.rpartition(".")[2]: key for key in package_keys(f"realm.zoo.{package}")}
    meanings = {name: keys[name].meaning.removesuffix(" ...") for name in _MATTER[package]}
    lines, given = [], set()
    for line in settings.splitlines():
        given.add(name := line.partition(" = ")[0])
        lines.append(f"{line:40} # {meanings[name]}" if name in meanings and "#" not in line else line)
    lines += [f"{f'# {name} = {keys[name].default}':40} # {meanings[name]}" for name in meanings if name not in given]
    return "\n".join([*lines, ""])


def _template(package: str, spec: Spec) -> Path:
    """Of a configuration for an environment that nothing is tuned for."""
    image = any(field.dtype == "uint8" and len(field.shape) == 3 for field in spec.obs.values())
    own = _ZOO / package / f"init_{'image' if image else 'continuous' if spec.action.low else 'other'}.toml"
    return own if own.exists() else _ZOO / package / _TEMPLATE


def _config(name: str, env: str, package: str, spec: Spec) -> str:
    """The package's template, with a replay memory that fits."""
    fits = max(1000, _MEMORY_BYTES // sum(field.nbytes for field in spec.obs.values()) // 1000 * 1000)

    def capacity(found: re.Match[str]) -> str:
        return f"{found[1]}{min(int(found[2]), fits):_}".ljust(len(found[0]))

    text = _template(package, spec).read_text("utf-8")
    text = re.sub(r"\b(NAME|ENV)\b", lambda found: name if found[0] == "NAME" else env, text)
    return re.sub(r"^(replay_buffer_capacity = )([\d_]+)", capacity, text, flags=re.MULTILINE)
