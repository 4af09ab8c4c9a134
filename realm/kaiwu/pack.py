"""`realm pack`: builds the submission of a run of a project written for KaiwuDRL, and checks it.

The zip holds `ckpt/` (the files of one model), `conf/` and the package with those of the project that it imports. The
check unpacks it and plays one episode with it in a fresh process: `python -m realm.kaiwu.pack FOLDER`.
"""

from __future__ import annotations

import ast
import os
import re
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from realm.config.load import load_config
from realm.config.toml import read_toml
from realm.errors import ConfigError, UserCodeError
from realm.kaiwu.config import Config
from realm.kaiwu.models import files_of, numbers_in
from realm.kaiwu.process import run_apart
from realm.kaiwu.project import PACKAGE, config_of, load

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
    number, files = _model(config, run_dir, wanted)
    draft = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        with zipfile.ZipFile(draft, "w", zipfile.ZIP_DEFLATED) as archive:
            for file in files:
                archive.write(file, f"ckpt/{file.name}")
            for file in _code(config):
                archive.write(file, str(file.relative_to(config.root)))
            archive.writestr("conf/configure_app.toml", _configuration(config, number))
        _check(draft)
        draft.replace(out)
    finally:
        draft.unlink(missing_ok=True)
    return f"{out}: model {number} of {run_dir} with the package {config.package}; unpacked, it has played an episode"


def _model(config: Config, run_dir: Path, wanted: str) -> tuple[int, list[Path]]:
    """Number and files of the model, the framework's or one that the project's code saved."""
    folders = [run_dir / name / config.model_folder for name in ("models", "user_models")]
    there = sorted({number for folder in folders for number in numbers_in(folder)})
    number = there[-1] if wanted == "latest" and there else int(wanted) if wanted.isdecimal() else -1
    for folder in folders:
        if files := files_of(folder, number):
            return number, files
    names = ", ".join(map(str, there)) or "none"
    raise ConfigError(f"--id {wanted}: {run_dir} has no such model; it has: {names}")


def _code(config: Config) -> Iterator[Path]:
    """conf/, the package, and those of the project's packages that it imports."""
    names, todo = {"conf"}, [config.package]
    while todo:
        name = todo.pop()
        names.add(name)
        for file in _files(config.root, name):
            tops = {one.partition(".")[0] for one in _imports(file)} if file.suffix == ".py" else set()
            todo += [top for top in tops - names - set(todo) if (config.root / top).is_dir()]
    for name in sorted(names):
        yield from (file for file in _files(config.root, name) if file != config.root / "conf" / "configure_app.toml")


def _files(root: Path, name: str) -> list[Path]:
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
        code, last = run_apart("realm.kaiwu.pack", folder, _CHECK_WITHIN_S, late)
        if code:
            raise UserCodeError(f"the submission does not play: {last.removeprefix('error: ')[:400]}")


def play(root: Path) -> int:
    """Play one episode with the project of an unpacked submission."""
    from realm.learn.checkpoint import find  # late: it brings torch
    from realm.learn.evaluate import evaluate, load_player

    config = load(root / "conf" / "configure_app.toml", ["run_mode=eval"]).evaluated()
    player = load_player(config, find(Path(config.app.eval_model_dir), "latest"), config.env, 1, 0)
    evaluate(config, player.envs, player.predict, 1, 0.0, 0)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(play(Path(sys.argv[1])))
    except (ConfigError, UserCodeError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
