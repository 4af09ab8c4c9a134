"""Checks the code of a project before a run starts, in a process of its own: `python -m realm.kaiwu.check FILE`.

`project.py` starts it. FILE holds the table [kaiwu] as JSON; in its place comes what the check has found, as JSON:
`error`, or `sample_dim`, and with prediction at the actor `obs` and `act`. The process is apart because imports of a
project leave things behind, and so that the supervisor needs no torch.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from realm.errors import UserCodeError, UserError, place_of_function
from realm.kaiwu import code
from realm.kaiwu.config import Config
from realm.kaiwu.methods import checked_answers, plain
from realm.kaiwu.pack import files_in
from realm.kaiwu.process import begin, in_project
from realm.kaiwu.records import describe, merge, record_fields

_PROBES = 20  # steps: a list of whole numbers may hold others later


def main(file: Path) -> int:
    given = json.loads(file.read_text())
    remote = given.pop("remote")
    try:
        found = check(Config(**given), remote, file.parent)
    except UserError as error:
        found = {"error": str(error)}
    file.write_text(json.dumps(found))
    return 0


def check(config: Config, remote: bool, folder: Path) -> dict[str, Any]:
    """Import everything, and try what can be tried. folder: stands in for the run's directory.

    Raises UserCodeError or ConfigError.
    """
    check_syntax(config)
    begin(config, "check", folder)
    definition = code.load_definition()
    code.load_agent()
    code.load_workflow()
    dim = code.load_sample_dim()
    _check_codec(definition, dim)
    found: dict[str, Any] = {"sample_dim": dim}
    return found | _probe(definition) if remote else found


def check_syntax(config: Config) -> None:
    """Compile every file of the package and of conf/ without running it."""
    for name in (config.package, "conf"):
        for path in (file for file in files_in(config.root, name) if file.suffix == ".py"):
            try:
                compile(path.read_bytes(), str(path), "exec")
            except (SyntaxError, ValueError) as error:
                line = f":{error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
                raise UserCodeError(f"{path}{line}: {type(error).__name__}: {getattr(error, 'msg', error)}") from error


def _check_codec(definition: code.Definition, dim: int) -> None:
    """Decode a vector of SAMPLE_DIM zeros and encode that again: it must be as long.

    Some codecs need more than zeros and raise; their length is checked with the first sample.
    """
    try:
        with in_project():
            again = np.asarray(definition.encode(definition.decode(np.zeros(dim, np.float32))))
    except Exception:
        return
    place = place_of_function(definition.encode)
    if again.ndim != 1 or again.dtype.kind not in "biuf":
        raise UserCodeError(
            f"{place}: SampleData2NumpyData must give numbers in one row, got {again.dtype}{list(again.shape)}"
        )
    if len(again) != dim:
        raise UserCodeError(
            f"{place}: a sample of {dim} numbers (Config.SAMPLE_DIM) has {len(again)} after NumpyData2SampleData and "
            "SampleData2NumpyData; SAMPLE_DIM must be the length of the vector"
        )


def _probe(definition: code.Definition) -> dict[str, Any]:
    """Play a few steps to find what ObsData and ActData hold."""
    from realm.kaiwu.algorithm.agent import make_user_agent, observe  # late: they bring torch and the game
    from realm.kaiwu.game import Game

    agent = make_user_agent("cpu")
    game = Game(seed=0)
    raw, env_info = game.reset(), game._env_info()
    obs: dict[str, str] = {}
    act: dict[str, str] = {}
    for _ in range(_PROBES):
        with code.calling("trying observation_process"):
            record = observe(definition, raw, env_info)
        _note(obs, record, f"{place_of_function(definition.observation_process)}: ObsData")
        with code.calling("trying Agent.predict"):
            (answer,) = checked_answers(type(agent).predict, plain(agent, "predict", [record]), 1)
        _note(act, answer, f"{place_of_function(type(agent).predict)}: ActData")
        with code.calling("trying action_process"):
            action = int(definition.action_process(answer))
        try:
            _, raw, _, terminated, truncated, env_info = game.step(action)
        except ValueError as error:
            raise UserCodeError(f"{place_of_function(definition.action_process)}: action_process: {error}") from error
        if terminated or truncated:
            raw = game.reset()
    return {"obs": obs, "act": act}


def _note(found: dict[str, str], record: Any, where: str) -> None:
    for key, value in record_fields(record, where).items():
        text = describe(value, f"{where}.{key}")
        found[key] = merge(found[key], text, f"{where}.{key}") if key in found else text


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
