"""Reads the configuration of a project written for KaiwuDRL, and turns it into one of Realm's.

The command line calls `load` for every configuration file; one that is not such a project's is read as Realm's own. The
keys have the same names where they act. `algo` becomes "realm.kaiwu", and the table [kaiwu] says whose code that is.
"""

from __future__ import annotations

import atexit
import dataclasses
import difflib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from realm.config.keys import IGNORED, Limit
from realm.config.load import HINTS, RunConfig, load_config
from realm.config.toml import toml_value
from realm.config.values import convert
from realm.errors import ConfigError, UserCodeError, did_you_mean
from realm.files import read_json
from realm.kaiwu.config import Config
from realm.kaiwu.model_files import numbers_in, required
from realm.kaiwu.process import refuse_project_in_a_run, run_apart

PACKAGE = "realm.kaiwu"
TABLE = "kaiwu"
_MANIFEST = "kaiwu.json"
_MOST_BYTES = 1 << 20
_GAME = "back_to_the_realm"
_IMPORTS = re.compile(r"^\s*(from|import)\s+(kaiwu_agent|kaiwudrl|kaiwu_env|arena_proto|common_python)\b", re.MULTILINE)
_GAMES = re.compile(
    rf"^\s*(?:from|import)\s+((?:kaiwu_agent|arena_proto)\.(?!{_GAME}\b|utils\b|agent\b)\w+)\.", re.MULTILINE
)
_THIRD = re.compile(r"kaiwudrl\.interface\.agent|common_python|send_sample_data")
_PARTS = ("train_workflow.py", "feature/definition.py", "algorithm/agent.py")
_LATER_PARTS = ("agent.py", "workflow/train_workflow.py")
_RUNS = (
    f'Realm runs projects for the game "Back to the Realm" (app = "{_GAME}") of the first generation of KaiwuDRL\'s '
    "interface: packages like diy/ with algorithm/agent.py, feature/definition.py and train_workflow.py; see "
    "docs/from-kaiwu.md"
)

OWN = {
    "algo_conf", "selfplay_app_conf", "noselfplay_app_conf", "rainbow_env_name", "use_which_deep_learning_framework",
    "framework_integration_patterns", "aisrv_framework", "tensorflow_log_level", "need_to_sync", "self_play_set_name",
    "log_dir", *IGNORED,
}  # fmt: skip
"""The framework's own keys that are known to do nothing here."""

OURS = {"user_save_model_max_frequency_per_min"}
"""Keys that act and that AppConfig does not have."""

DEFAULTS: dict[str, Any] = {
    "app": _GAME, "aisrv_connect_to_kaiwu_env_count": 8, "predict_local_or_remote": "local",
    "predict_batch_size": 1, "replay_buffer_capacity": 4096, "preload_ratio": 1.0, "train_batch_size": 256,
    "learner_train_by_while_true": True, "algorithm_on_policy_or_off_policy": "off-policy",
    "modelpool_max_save_model_count": 200,
}  # fmt: skip
"""What these keys are where a project's file does not set them."""

_FOLDERS = {"restore_dir": "models/", "user_ckpt_dir": "user_models/", "log_dir": "user_log/"}
_FIXED = (
    "algo", "wrapper_type", "predict_local_or_remote", "train_batch_size", "predict_batch_size", "dump_model_freq",
    "aisrv_count", "aisrv_connect_to_kaiwu_env_count", "modelpool_max_save_model_count",
)  # fmt: skip
_CHECK_WITHIN_S = 300
_CHECKED = "REALM_CHECKED_PROJECT"


def load(
    path: str | Path, overrides: Sequence[str] = (), hyper_keys: Callable[[str], Iterable[str]] = lambda algo: ()
) -> RunConfig:
    """Read a configuration, of a project written for KaiwuDRL or Realm's own. The project's code is checked, too.

    Raises ConfigError or UserCodeError.
    """
    file = Path(path)
    if file.name == "train_test.py":
        raise ConfigError(
            f"{file}: is the test of KaiwuDRL; run Realm's with the project's configuration instead: python "
            "train_test.py --config .../conf/configure_app.toml"
        )
    root = project_of(file)
    config = load_config(path, overrides, hyper_keys, partial(_translate, root))
    if root is None or config.app.algo != PACKAGE:
        return config
    refuse_project_in_a_run(root)
    evaluates = config.app.run_mode == "eval" and config.app.eval_model_dir
    if evaluates and not Path(config.app.eval_model_dir).is_dir():
        raise ConfigError(
            f"{config.places.get('app.eval_model_dir', '[app]')}: key 'eval_model_dir': {config.app.eval_model_dir}: "
            "no such folder; it must be a folder with files model.ckpt-<id>*"
        )
    remote = config.app.predict_local_or_remote == "remote" and config.app.wrapper_type == "remote"
    config = dataclasses.replace(config, hyper={**config.hyper, **_checked(config.hyper, remote)})
    return _to_evaluate(config) if evaluates else config


def translated(path: str | Path) -> RunConfig:
    """As `load`, but with no look at the project's code. Raises ConfigError."""
    return load_config(path, translate=partial(_translate, project_of(Path(path))))


def _to_evaluate(config: RunConfig) -> RunConfig:
    """run_mode "eval": a model's files as a checkpoint below a new folder, which is what Realm evaluates. The project's
    `load_model` reads them when that is loaded. Raises ConfigError if there is no such model."""
    from realm.contract import Version  # late: these bring the game and torch
    from realm.kaiwu.feature.definition import spec
    from realm.kaiwu.modules import as_tensors
    from realm.learn.checkpoint import save

    app, folder = config.app, Path(config.app.eval_model_dir)
    there = numbers_in(folder)
    number = there[-1] if app.eval_model_id == "latest" and there else app.eval_model_id
    files = required(folder, number, f"{config.places.get('app.eval_model_id', '[app]')}: key 'eval_model_id'")
    made = Path(tempfile.mkdtemp(prefix="realm-eval-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    tensors = as_tensors({file.name: file.read_bytes() for file in files})
    state = {"updates": int(number), "optimizers": {}, "counters": {}}
    stored: Any = SimpleNamespace(model=SimpleNamespace(state_dict=lambda: tensors), save_model=lambda: state)
    save(made / "ckpt", stored, Version(1, int(number)), 0, spec(None, config_of(config)).schema, 1)
    app = dataclasses.replace(app, eval_model_dir=str(made / "ckpt"), eval_model_id="latest")
    return dataclasses.replace(config, app=app)


def project_of(file: Path) -> Path | None:
    """The folder of the project whose `conf/` holds this file; None if it is no project written for KaiwuDRL."""
    folder = file.absolute().parent
    root = folder.parent
    if folder.name != "conf" or not root.is_dir():
        return None
    root = root.resolve()
    files = [file for part in (*_PARTS, *_LATER_PARTS) for file in root.glob(f"*/{part}")]
    theirs = any(_matches(_IMPORTS, file) for file in (*files, root / "train_test.py"))
    return root if theirs or (root / _MANIFEST).is_file() else None


def _packages(root: Path) -> list[str]:
    """The packages of a project that train."""
    return sorted(
        path.name for path in root.iterdir() if any((path / part).is_file() for part in _PARTS) and not _is_later(path)
    )


def _is_later(package: Path) -> bool:
    """Whether a package is laid out as the later generations have it; they may have a feature/definition.py, too."""
    first = ("train_workflow.py", "algorithm/agent.py")
    return any((package / part).is_file() for part in _LATER_PARTS) and not any(
        (package / one).is_file() for one in first
    )


def _matches(pattern: re.Pattern[str], file: Path) -> re.Match[str] | None:
    return pattern.search(file.read_text("utf-8", "replace")) if file.is_file() else None


def _other_kind(root: Path, package: Path, app: object, place: str) -> str:
    """Why this is a project of another game, or of a later generation of the interface; "" if it is neither.

    app, place: the key of the configuration, and where it is set.
    """
    manifest = _manifest(root)
    named = f"{root / _MANIFEST}: project_code {manifest.get('project_code')!r}"
    for game, what in ((manifest.get("project_code"), named), (app, f"{place}: app {app!r}")):
        if isinstance(game, str) and game not in ("", _GAME):
            return f"{what} is {'of a later generation' if game.startswith(_GAME) else 'another game'}"
    if not _packages(root):
        for later in sorted(path for path in root.iterdir() if _is_later(path)):
            third = any(_matches(_THIRD, file) for file in later.rglob("*.py"))
            version = f", code_version {manifest['code_version']!r}" if "code_version" in manifest else ""
            return f"{later}: is an agent of the {'third' if third else 'second'} generation{version}"
    for file in sorted(package.rglob("*.py")):
        if found := _matches(_GAMES, file):
            return f"{file}: imports {found[1]}, which is of another game"
    return ""


def _manifest(root: Path) -> dict[str, Any]:
    """What the project's kaiwu.json says of it; empty where it is not there or cannot be read."""
    try:
        read = read_json(root / _MANIFEST, _MOST_BYTES)
    except (OSError, ValueError):
        return {}
    return read if isinstance(read, dict) else {}


def _translate(root: Path | None, tables: dict[str, Any], places: dict[str, str]) -> list[str]:
    """Turn a project's tables into Realm's; returns the warnings. root: of the project; None: they are Realm's own."""
    if root is None:
        return []
    given = tables.get("app", {})
    package = given.get("algo", "diy")
    place = places.get("app.algo", "[app]")
    folder = root / str(package)
    if isinstance(package, str) and "." in package:
        if not folder.is_dir() or package.strip(".") == "":
            return []  # a package of Realm's own, as in --set algo=realm.zoo.cartpole
        raise ConfigError(
            f"{place}: key 'algo': got {package!r}, but Python cannot import a package with a dot in its name; rename "
            f"the folder {folder}, and algo with it"
        )
    is_first = folder.parent == root and folder.is_dir() and not _is_later(folder)
    if is_first and not any(_matches(_IMPORTS, file) for file in folder.rglob("*.py")):
        return []  # this package is Realm's own
    if other := _other_kind(root, folder, given.get("app"), places.get("app.app", "[app]")):
        raise ConfigError(f"{other}; {_RUNS}")
    if not is_first:
        near = did_you_mean(package, _packages(root)) if isinstance(package, str) else ""
        raise ConfigError(
            f"{place}: key 'algo': got {package!r}; must be a folder of {root} with the code of an algorithm: "
            f"{', '.join(_packages(root)) or 'none'}{near}"
        )
    own = [key for key in given if _is_own(key, places[f"app.{key}"])]
    app = {**DEFAULTS, **{key: value for key, value in given.items() if key not in own and key not in OURS}}
    warnings = _fit(root, app, given, places)
    idle = [key for key in own if not _in_container(key, given, places)]
    if idle:
        lines = [places[f"app.{key}"] for key in idle]
        file = next((line.rpartition(":")[0] for line in lines if not line.startswith("--set")), "--set")
        short = [line if line.startswith("--set") else line.rpartition(":")[2] for line in lines]
        named = ", ".join(f"{key} ({line})" for key, line in zip(idle, short, strict=True))
        warnings.append(f"{file}: these keys of KaiwuDRL's own do nothing here: {named}")
    kept = {key: value for key, value in given.items() if _is_json(value)}
    hyper = {
        "project": str(root),
        "package": package,
        "keys": json.dumps({**DEFAULTS, **kept, "algo": package, "app": app["app"]}, sort_keys=True),
        "predict_batch_size": app["predict_batch_size"],
        "dump_model_freq": _number(app.get("dump_model_freq", 100)),
        "keep_models": app["modelpool_max_save_model_count"],
        "user_saves": given.get("user_save_mode_max_count", 0),
        "user_saves_per_min": given.get("user_save_model_max_frequency_per_min", 0),
    }
    if app.pop("preload_model", False):
        hyper |= _preload(app, places)
    for key in ("preload_model_dir", "preload_model_id"):
        app.pop(key, None)
    if _number(app["modelpool_max_save_model_count"]):  # else it is refused where all keys are checked
        app["modelpool_max_save_model_count"] = min(5, app["modelpool_max_save_model_count"])
    for name in ("env", "eval_env"):
        table = tables.get(name)
        if isinstance(table, dict) and isinstance(table.get("map"), str):
            table["map"] = _here_or_in(root, table["map"])
    for name in [name for name in tables if name not in ("app", "env", "eval_env")]:
        warnings.append(f"{places[name]}: table [{name}] is not used")
        del tables[name]
    tables["app"], tables[TABLE] = {**app, "algo": PACKAGE}, hyper
    for name, table in (("app", tables["app"]), (TABLE, hyper)):
        for key in table:
            places.setdefault(f"{name}.{key}", places.get("app", str(root)))
    return warnings


def check_resumed(config: RunConfig, overrides: Sequence[str]) -> None:
    """Raise ConfigError for a setting that only a new start translates for the project's code."""
    for text in overrides if config.app.algo == PACKAGE else ():
        key = text.partition("=")[0].strip().removeprefix("app.")
        map_folder = {"env.map": config.env, "eval_env.map": config.eval_env}.get(key, {}).get("map")
        if isinstance(map_folder, str) and not os.path.isabs(map_folder) and Path(map_folder).exists():
            there = toml_value(os.path.abspath(map_folder))
            raise ConfigError(f"--set {text}: the project's code runs in its own folder; name the map {key}={there}")
        if key in _FIXED:
            raise ConfigError(
                f"--set {text}: a project's run keeps its {key}; begin a new one with realm start --config "
                f"{config.hyper.get('project')}/conf/configure_app.toml --set {text}"
            )


def _number(value: Any) -> int:
    """0 for what is none, such as "auto"."""
    return value if type(value) is int else 0


def _here_or_in(root: Path, map_folder: str) -> str:
    """The folder of a map that lies where the user stands, or else in the project: its code runs in its own folder."""
    there = [path for path in (Path(map_folder), root / map_folder) if path.exists()]
    return str(there[0].absolute()) if there else map_folder


def _preload(app: dict[str, Any], places: dict[str, str]) -> dict[str, str]:
    """Where the model is that training begins with. Raises ConfigError if it is not there."""
    folder, number = str(app.get("preload_model_dir", "")), str(app.get("preload_model_id", ""))
    if not folder:
        raise ConfigError(f"{places['app.preload_model']}: key 'preload_model': needs preload_model_dir")
    place = places.get("app.preload_model_id", places["app.preload_model"])
    required(Path(folder), number, f"{place}: key 'preload_model_id'")
    return {"preload_dir": folder, "preload_id": number}


def _is_own(key: str, place: str) -> bool:
    """Whether a key is the framework's own, also one that nobody knows here. Raises ConfigError for one that looks like
    a slip of the pen."""
    if key == "log_dir" and "--set" in place:
        return False
    if key in OWN or key not in HINTS.keys() | OURS:
        acting = [name for name in HINTS.keys() | OURS if name not in OWN]
        close = difflib.get_close_matches(key.lower(), acting, n=1, cutoff=0.88)
        if close and key not in OWN:
            raise ConfigError(f"{place}: key {key!r}: unknown (did you mean {close[0]!r}?)")
        return True
    return False


def _fit(root: Path, app: dict[str, Any], given: dict[str, Any], places: dict[str, str]) -> list[str]:
    """Bring values into the form that Realm's keys have; returns the warnings."""
    warnings = []
    for key in ("eval_model_id", "preload_model_id"):
        if isinstance(app.get(key), str) and app[key].isdigit():
            app[key] = int(app[key])  # ids may be texts
    for key in ("aisrv_count", "aisrv_connect_to_kaiwu_env_count", "preload_model", *OURS):  # which are translated
        if key in given:
            convert(given[key], HINTS.get(key, Limit), places[f"app.{key}"], key)
    workers, envs = app.get("aisrv_count", 1), app["aisrv_connect_to_kaiwu_env_count"]
    known = isinstance(workers, int) and isinstance(envs, int)  # a workflow is a process of its own
    app["aisrv_count"], app["aisrv_connect_to_kaiwu_env_count"] = workers * envs if known else "auto", 1
    app.setdefault("buffer_backend", "native")
    app.setdefault("eval_cpu_share", 0)
    app.setdefault("eval_episodes", 10)
    app.setdefault("max_version_lag", "free")
    if app["algorithm_on_policy_or_off_policy"] == "on-policy":
        app["learner_train_by_while_true"] = False
    else:
        sampler = str(app.get("reverb_sampler", "Uniform")).removeprefix("reverb.selectors.")
        if sampler in ("Fifo", "Lifo"):
            app["reverb_sampler"] = "Uniform"
            warnings.append(
                f"{places['app.reverb_sampler']}: reverb_sampler {sampler} draws the same sample again and again; "
                "Uniform is used"
            )
    if app.get("wrapper_type") == "local":
        # `learn` trains on what it gets, so nothing is ever in a buffer
        app |= {"replay_buffer_capacity": 2, "train_batch_size": 1, "preload_ratio": 1}
    app["log_dir"] = str(Path(str(app.get("log_dir", "train"))).absolute())
    return warnings + _fit_folders(root, app, given, places)


def _in_container(key: str, given: dict[str, Any], places: dict[str, str]) -> bool:
    """Whether it names one of the competition's own folders, in whose place the run has one."""
    there = key in _FOLDERS and str(given.get(key, "")).startswith("/data")
    return there and "--set" not in places[f"app.{key}"]


def _fit_folders(root: Path, app: dict[str, Any], given: dict[str, Any], places: dict[str, str]) -> list[str]:
    """Replace the container's folders that are not here; returns a warning that names them."""
    replaced = [f"{key} by {name} of the run" for key, name in _FOLDERS.items() if _in_container(key, given, places)]
    for key in ("eval_model_dir", "preload_model_dir"):
        folder = app.get(key)
        if not isinstance(folder, str) or not folder:
            continue
        base = Path.cwd() if "--set" in places.get(f"app.{key}", "") else root
        path = base / folder
        if not path.is_dir() and folder.startswith("/data"):
            path = root / "ckpt"
            replaced.append(f"{key} by {path}")
        app[key] = str(path)
    told = f"folders of the competition's container that are not here are replaced: {', '.join(replaced)}"
    return [told] if replaced else []


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True


def _checked(hyper: dict[str, Any], remote: bool) -> dict[str, Any]:
    """Check the project's code in a process of its own; returns what it found. Raises UserCodeError."""
    given = json.dumps({**hyper, "remote": remote})
    pid, *earlier = json.loads(os.environ.get(_CHECKED, "[0]"))
    if pid == os.getpid() and earlier[0] == given:
        return dict(earlier[1])  # this process has started itself again since
    with tempfile.TemporaryDirectory(prefix="realm-check-") as folder:
        file = Path(folder) / "check.json"
        file.write_text(given)
        late = (
            f"{hyper['project']}: its code was not imported within {_CHECK_WITHIN_S} s; look for what takes so long "
            "when it is imported, or for what keeps this machine busy"
        )
        failed = f"{hyper['project']}: its code could not be checked"
        run_apart("realm.kaiwu.check", [str(file)], _CHECK_WITHIN_S, late, failed)
        found: dict[str, Any] = json.loads(file.read_text())
    if "error" in found:
        raise UserCodeError(found["error"])
    os.environ[_CHECKED] = json.dumps([os.getpid(), given, found])
    return found


def config_of(config: RunConfig) -> Config:
    """The table [kaiwu] of a run."""
    known = {field.name for field in dataclasses.fields(Config)}
    return Config(**{key: value for key, value in config.hyper.items() if key in known})
