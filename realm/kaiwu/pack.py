"""`realm pack`: builds the submission of a run of a project written for KaiwuDRL, and checks it.

The zip holds `ckpt/` (the files of one model), `conf/`, `kaiwu.json` and the package with those of the project that it
imports. The project's `save_model` makes the files of a checkpoint, and the check unpacks the zip and plays one episode
with it, each in a process of its own: `python -m realm.kaiwu.pack write|play ...`.
"""

from __future__ import annotations

import ast
import dataclasses
import os
import re
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from realm.config.load import load_config
from realm.config.toml import read_toml
from realm.errors import ConfigError, RunError, UserError
from realm.kaiwu.config import Config
from realm.kaiwu.model_files import files_of, numbers_in, save
from realm.kaiwu.process import begin, run_apart
from realm.kaiwu.project import PACKAGE, config_of, load
from realm.learn.results import models_in

CHECKPOINTS = "/data/projects/back_to_the_realm/ckpt"
_CHECK_WITHIN_S = 600


def pack(run_dir: Path, wanted: str, out: Path) -> str:
    """Build and check the zip `out` of a run's model `wanted` ("latest" or its number); returns a sentence about it.

    Raises ConfigError or UserCodeError, and then leaves no zip.
    """
    run = load_config(run_dir / "config.toml")
    if run.app.algo != PACKAGE:
        raise ConfigError(f"{run_dir}: trained the package {run.app.algo}, not a project written for KaiwuDRL")
    config = config_of(run)
    draft = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        with (
            tempfile.TemporaryDirectory(prefix="realm-pack-") as made,
            zipfile.ZipFile(draft, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as archive,
        ):
            number, files = _model(config, run_dir, wanted, Path(made))
            for file in files:
                archive.write(file, f"ckpt/{file.name}")
            for file in _code(config):
                archive.write(file, str(file.relative_to(config.root)))
            archive.writestr("conf/configure_app.toml", _configuration(config, number))
        _check(draft)
        draft.replace(out)
    finally:
        draft.unlink(missing_ok=True)
    return (
        f"{out}: model {number} of {run_dir} with the package {config.package}; unpacked, it has played an episode "
        "here; whether the competition's platform takes it is not proven"
    )


def _model(config: Config, run_dir: Path, wanted: str, made: Path) -> tuple[int, list[Path]]:
    """Number and files of a model: of the newest checkpoint, or the one that was asked for. What no file has yet is
    written into the folder `made`."""
    folders = [run_dir / name / config.model_folder for name in ("models", "user_models")]
    saved = [version.update for version, _ in models_in(run_dir / "ckpt")]
    there = sorted({*saved, *(number for folder in folders for number in numbers_in(folder))})
    number = int(wanted) if wanted.isdecimal() else (*saved, *there[::-1], -1)[0] if wanted == "latest" else -1
    for folder in folders:
        if files := files_of(folder, number):
            return number, files
    if number not in saved:
        names = ", ".join(map(str, there)) or "none"
        raise ConfigError(f"--id {wanted}: {run_dir} has no such model; it has: {names}")
    late = f"the project's save_model has not written model {number} within {_CHECK_WITHIN_S} s"
    failed = f"model {number} could not be written"
    run_apart("realm.kaiwu.pack", ["write", str(run_dir), wanted, str(made)], _CHECK_WITHIN_S, late, failed)
    number = numbers_in(made)[-1]  # an older one, where the newest checkpoint is damaged
    return number, files_of(made, number)


def _code(config: Config) -> Iterator[Path]:
    """conf/, the package, and those of the project's packages that it imports."""
    names, todo = {"conf"}, [config.package]
    while todo:
        name = todo.pop()
        names.add(name)
        for file in files_in(config.root, name):
            tops = {one.partition(".")[0] for one in _imports(file)} if file.suffix == ".py" else set()
            todo += [top for top in tops - names - set(todo) if (config.root / top).is_dir()]
    yield from (file for file in [config.root / "kaiwu.json"] if file.is_file())
    for name in sorted(names):
        yield from (file for file in files_in(config.root, name) if file != config.root / "conf" / "configure_app.toml")


def files_in(root: Path, name: str) -> list[Path]:
    """Those of a package below root, without hidden ones and compiled ones."""

    def is_hidden(file: Path) -> bool:
        return any(part == "__pycache__" or part.startswith(".") for part in file.relative_to(root).parts)

    return sorted(file for file in (root / name).rglob("*") if file.is_file() and not is_hidden(file))


def _imports(file: Path) -> Iterator[str]:
    """What a file imports; nothing for one that is not Python, which nobody can have imported either."""
    try:
        nodes = list(ast.walk(ast.parse(file.read_bytes())))
    except (SyntaxError, ValueError):
        return
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module


def _configuration(config: Config, number: int) -> str:
    """The project's configure_app.toml with the package and the two keys of the evaluation, once each."""
    file = config.root / "conf" / "configure_app.toml"
    keys = {"algo": f'"{config.package}"', "eval_model_dir": f'"{CHECKPOINTS}"', "eval_model_id": str(number)}
    if not file.is_file():
        raise ConfigError(f"{file}: is missing; a submission's configuration has this name")
    text = file.read_text(encoding="utf-8-sig")
    text = re.sub(rf"^[ \t]*({'|'.join(keys)})[ \t]*=.*\n?", "", text, flags=re.MULTILINE)
    lines = "".join(f"{key} = {value}\n" for key, value in keys.items())
    if not re.search(r"^\[app\]", text, re.MULTILINE):
        raise ConfigError(f"{file}: has no line [app]")
    return re.sub(r"^\[app\][^\n]*\n", lambda match: match[0] + lines, text, count=1, flags=re.MULTILINE)


def _check(archive: Path) -> None:
    """Unpack it and play an episode with it in a fresh process. Raises UserCodeError."""
    with tempfile.TemporaryDirectory(prefix="realm-pack-") as folder:
        with zipfile.ZipFile(archive) as file:
            file.extractall(folder)
        read_toml(Path(folder) / "conf" / "configure_app.toml")
        late = f"the submission has played no episode within {_CHECK_WITHIN_S} s"
        run_apart("realm.kaiwu.pack", ["play", folder], _CHECK_WITHIN_S, late, "the submission does not play")


def write(run_dir: Path, wanted: str, folder: Path) -> None:
    """Have the project's agent save a checkpoint of the run as a model's files in `folder`."""
    from realm.kaiwu.algorithm.agent import Agent  # late: these bring torch
    from realm.kaiwu.feature.definition import spec
    from realm.learn.checkpoint import find, restore

    config = dataclasses.replace(config_of(load_config(run_dir / "config.toml")), preload_dir="")
    checkpoint = find(run_dir / "ckpt", int(wanted) if wanted.isdecimal() else "latest")
    begin(config, "learner", folder)  # its own folders take the place of the run's, which may live
    agent = Agent(spec(None, config), config, "cpu", 0)
    restore(agent, checkpoint)
    if not save(agent.user, folder, checkpoint.version.update):
        raise RunError(f"{folder}: its disk has no room for a model; make room")


def play(root: Path) -> None:
    """Play one episode with the project of an unpacked submission."""
    from realm.learn.checkpoint import find  # late: it brings torch
    from realm.learn.evaluation import evaluate, load_player

    config = load(root / "conf" / "configure_app.toml", ["run_mode=eval"]).evaluated()
    player = load_player(config, find(Path(config.app.eval_model_dir), "latest"), 1, 0)
    evaluate(config, player.envs, player.predict, 1, 0.0, 0)


if __name__ == "__main__":
    try:
        if sys.argv[1] == "play":
            play(Path(sys.argv[2]))
        else:
            write(Path(sys.argv[2]).absolute(), sys.argv[3], Path(sys.argv[4]))
    except (RunError, UserError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
