"""What a run has come to so far, read from its directory without torch: its newest model, its best one, evaluations.

Shown at the end of a run (`commands/ending.py`), by `realm runs`, by `realm compare`, and for seeds and trials. Files
that are missing or damaged count as not there; whoever loads a model checks it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.wrappers.vector import RecordEpisodeStatistics

from realm.config.keys import AppConfig
from realm.contract import NO_VERSION, Array, Version
from realm.errors import CheckpointError, ConfigError, UserCodeError, did_you_mean
from realm.files import MOST_MANIFEST_BYTES, read_bytes, read_json
from realm.watch.status import Scored

BEST_FOLDER = "best_ckpt"
"""Below a run's directory: its best model."""
EVALUATIONS = "evaluations.jsonl"
"""And there, a line for each evaluation."""

_MOST_BYTES = 4 << 20
_MOST_EVALUATIONS = 256 << 20  # bytes
_NAME = re.compile(r"model\.ckpt-(\d+)-(\d+)")


def models_in(folder: Path) -> list[tuple[Version, Path]]:
    """What has the name of a checkpoint, the newest first; whether it is a good one is seen when it is read."""
    named = ((_NAME.fullmatch(path.name), path) for path in folder.glob("model.ckpt-*"))
    return sorted(((Version(int(match[1]), int(match[2])), path) for match, path in named if match), reverse=True)


def numbered(folder: Path, update: int) -> Path:
    """The checkpoint of a folder by its number of updates. Raises CheckpointError."""
    checkpoints = models_in(folder)
    for version, path in checkpoints:
        if version.update == update:
            return path
    numbers = ", ".join(str(version.update) for version, _ in checkpoints) or "none"
    raise CheckpointError(f"{folder}: has no checkpoint of update {update}; it must be one of: {numbers}")


def main_statistic(statistics: Mapping[str, Array]) -> str:
    """The statistic that compares models: `score`, else `r` (gymnasium's name of the return), else the first."""
    if not statistics:
        raise UserCodeError("info['episode'] of the environment holds no statistic, so there is nothing to evaluate")
    return next((name for name in ("score", "r") if name in statistics), next(iter(statistics)))


def means_of(statistics: Mapping[str, Array]) -> dict[str, float]:
    """The mean of each statistic [episodes], and median, deviation, least and greatest of the main one."""
    means = {name: float(values.mean()) for name, values in statistics.items()}
    main = main_statistic(statistics)
    for name in (main, f"{main}_sampled"):
        if name in statistics:
            values = np.asarray(statistics[name], np.float64)
            means |= {f"{name}_median": float(np.median(values)), f"{name}_deviation": float(values.std())}
            means |= {f"{name}_least": float(values.min()), f"{name}_greatest": float(values.max())}
    return means


def ranked(by: Sequence[str], means: Mapping[str, float], key: str = "best_by") -> list[float]:
    """The means that choose the best model. Raises ConfigError for a statistic that there is not."""
    if unknown := [name for name in by if name not in means]:
        near = did_you_mean(unknown[0], means) or "; app.log_info adds others"
        raise ConfigError(f"{key} names {unknown[0]!r}, but an evaluation has {', '.join(sorted(means))}{near}")
    return [means[name] for name in by]


def layers(envs: Any) -> Iterator[Any]:
    """A vector environment and what it wraps, the outermost first."""
    while envs is not None:
        yield envs
        envs = getattr(envs, "env", None)


def recorder_of(envs: Any) -> RecordEpisodeStatistics | None:
    """What records the episodes of these environments, if it is gymnasium's."""
    return next((one for one in layers(envs) if isinstance(one, RecordEpisodeStatistics)), None)


def check_best_by(by: Sequence[str], app: AppConfig, envs: Any) -> None:
    """Raise ConfigError for a statistic that there will not be, where gymnasium records the episodes."""
    if recorder_of(envs):
        names = ["r", "l", "t", *app.log_info]
        names += [f"{name}_sampled" for name in names] if app.eval_actions == "both" else []
        ranked(by, means_of(dict.fromkeys(names, np.zeros(1))), f"{app.hyper_table}.best_by")


@dataclass(frozen=True)
class Saved:
    """A checkpoint. schema: of its observations, actions and chunks; scored: how it was judged, if it is the best."""

    path: Path
    version: Version
    env_steps: int
    schema: str = ""
    scored: Scored | None = None


def newest_model(run_dir: Path) -> Saved | None:
    """The newest checkpoint of a run."""
    return newest_in(run_dir / "ckpt")


def newest_in(folder: Path) -> Saved | None:
    """The newest checkpoint below a folder whose manifest can be read, or the folder itself if it is one."""
    for version, path in (*models_in(folder), (NO_VERSION, folder)):
        try:
            manifest = read_json(path / "manifest.json", MOST_MANIFEST_BYTES)
            return Saved(path, version, int(manifest["env_steps"]), str(manifest["schema"]))
        except (OSError, ValueError, LookupError, TypeError):
            continue
    return None


def is_judged(run_dir: Path) -> bool:
    """Whether the newest checkpoint of a run is the model of its last evaluation. The epoch does not count: a resume
    saves the same model under another one."""
    saved, line = newest_model(run_dir), last_evaluation(run_dir)
    try:
        return saved is not None and (line["env_steps"], line["version"][1]) == (saved.env_steps, saved.version.update)
    except (LookupError, TypeError):  # there is none, or somebody forged it
        return False


def best_model(run_dir: Path) -> Saved | None:
    """The model that scored most in the run's evaluations; None as long as only the untrained policy was judged."""
    for version, path in models_in(run_dir / BEST_FOLDER):
        if version.update == 0 and evaluated(run_dir) is None:
            continue
        try:
            body: dict[str, Any] = read_json(path.with_name(f"{path.name}.json"), _MOST_BYTES)
            scored = Scored(str(body["statistic"]), float(body["score"]), *version)
            return Saved(path, version, int(body["env_steps"]), scored=scored)
        except (OSError, ValueError, LookupError, TypeError):
            continue
    return None


def evaluated(run_dir: Path) -> tuple[str, float, float] | None:
    """The statistic of a run's evaluations, and the means of its best model and of the last one; None without any of a
    trained model."""
    line = last_evaluation(run_dir)
    try:
        has_trained = line["version"][1] != 0
        return (str(line["statistic"]), float(line["best"]), float(line["score"])) if has_trained else None
    except (ValueError, LookupError, TypeError):  # there is none, or somebody forged it
        return None


def last_evaluation(run_dir: Path) -> dict[str, Any]:
    """The newest whole line of a run's evaluations; empty without any."""
    try:
        lines = read_bytes(run_dir / EVALUATIONS, _MOST_EVALUATIONS).splitlines()
    except OSError:
        return {}
    for line in reversed(lines):
        with suppress(ValueError, RecursionError):  # a kill or a full disk left it unfinished, or somebody forged it
            content = json.loads(line)
            if isinstance(content, dict):
                return content
    return {}
