"""Models as bytes for publishing, and checkpoints on disk for resuming.

Called by the learner (save, resume) and by all code that loads published weights (actor, local prediction, evaluation).
A checkpoint is a folder `model.ckpt-<epoch>-<update>` with `model.safetensors`, `state.pt` (optimizer, counters, random
numbers) and `manifest.json`, which holds the sha256 of both and of itself and is written last. One rename gives the
folder its final name, and one rename takes it away. So a folder with a final name is a complete checkpoint or, after a
disk fault, one that `load_newest` detects and skips.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import safetensors.torch
import torch
from loguru import logger

from realm.contract import Agent, Version
from realm.errors import CheckpointError, UserCodeError
from realm.files import MOST_MANIFEST_BYTES, check_archive, read_bytes, read_json
from realm.learn.results import models_in, numbered

_PARTS = ("model.safetensors", "state.pt")
_MOST_PART_BYTES = 4 << 30


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint, read and verified."""

    path: Path
    version: Version
    env_steps: int
    schema: str
    weights: bytes
    state: dict[str, Any]


WHOLE = ("",)
"""The parts of a model that are all of it."""


def acting(agent: Agent) -> tuple[str, ...]:
    """How the names of those tensors begin that predictions need. Raises UserCodeError if there are none."""
    parts = tuple(getattr(agent, "acting", WHOLE))
    names = list(agent.model.state_dict())
    if names and not any(name.startswith(parts) for name in names):
        raise UserCodeError(f"Agent.acting is {parts}, but no weight of its model begins so; the first is {names[0]}")
    return parts


def to_bytes(model: torch.nn.Module, parts: tuple[str, ...] = WHOLE) -> bytes:
    """Those of the model's weights whose names begin with one of `parts`, as safetensors bytes."""
    # safetensors refuses channels_last weights, so contiguous; and tied weights, so clones
    return safetensors.torch.save(
        {
            name: tensor.detach().cpu().contiguous().clone()
            for name, tensor in model.state_dict().items()
            if name.startswith(parts)
        }
    )


def not_finite(state: Mapping[str, torch.Tensor]) -> str:
    """The name of a tensor of a state dict that holds NaN or infinity; "" if all are finite."""
    tensors = {name: tensor for name, tensor in state.items() if tensor.is_floating_point() and tensor.numel()}
    if not tensors:
        return ""
    # a sum passes NaN and infinity on, and is by far the quickest; only weights above 1e30 could make it overflow
    sums = torch.stack([tensor.detach().sum(dtype=torch.float32) for tensor in tensors.values()])
    finite = torch.isfinite(sums).tolist()
    return next((name for name, good in zip(tensors, finite, strict=True) if not good), "")


def not_finite_in(state: Any, name: str = "") -> str:
    """The place of a tensor in nested dicts and lists that holds NaN or infinity, as "adam.mean.0"; "" if all are
    finite. For what `save_model` gives: targets, optimizers, a learned temperature."""
    if isinstance(state, torch.Tensor):
        return not_finite({name: state})
    entries = enumerate(state) if isinstance(state, (list, tuple)) else ()
    parts = state.items() if isinstance(state, Mapping) else entries
    return next((bad for key, one in parts if (bad := not_finite_in(one, f"{name}.{key}".lstrip(".")))), "")


def spoiled(agent: Agent, saves: bool) -> str:
    """The name of a weight of the agent that is not finite; "" if all are. saves: they are about to be saved, with
    targets, optimizers and whatever else `save_model` gives."""
    return not_finite(agent.model.state_dict()) or (not_finite_in(agent.save_model()) if saves else "")


_UNFIT = "these weights do not fit the model: {}; restore the settings of the network, or begin another run"


def load_bytes(model: torch.nn.Module, weights: bytes, parts: tuple[str, ...] = WHOLE) -> list[str]:
    """Load safetensors bytes into the model; returns the names of its weights that were not among them.

    Raises CheckpointError if they belong to another model, or lack a weight whose name begins with one of `parts`.
    """
    try:
        found = model.load_state_dict(safetensors.torch.load(weights), strict=False)
    except (RuntimeError, safetensors.SafetensorError) as error:
        raise CheckpointError(_UNFIT.format(str(error).splitlines()[-1].strip().rstrip("."))) from error
    for names, fault in ((sorted(found.unexpected_keys), "it has no"), (found.missing_keys, "they lack")):
        wrong = [name for name in names if fault == "it has no" or name.startswith(parts)]
        if wrong:
            more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
            raise CheckpointError(_UNFIT.format(f"{fault} {wrong[0]}{more}"))
    return list(found.missing_keys)


def save(
    folder: Path, agent: Agent, version: Version, env_steps: int, schema: str, keep: int, parts: tuple[str, ...] = WHOLE
) -> Path:
    """Write a checkpoint below `folder` (`ckpt/`) and remove all but the newest `keep`. Raises OSError.

    parts: how the names of the weights to write begin.
    """
    stream = io.BytesIO()
    torch.save({"agent": agent.save_model(), **generators()}, stream)
    bodies = {"model.safetensors": to_bytes(agent.model, parts), "state.pt": stream.getvalue()}
    manifest = {
        "version": list(version),
        "env_steps": env_steps,
        "schema": schema,
        "sha256": {name: hashlib.sha256(body).hexdigest() for name, body in bodies.items()},
    }
    manifest["digest"] = _digest(manifest)
    folder.mkdir(exist_ok=True)  # not its parents: they are gone only while somebody renames the run
    for left in folder.glob(".*-model.ckpt-*"):  # drafts of a process that was killed while saving
        shutil.rmtree(left, ignore_errors=True)
    final = folder / f"model.ckpt-{version.epoch}-{version.update}"
    draft = folder / f".writing-{final.name}"
    draft.mkdir()
    try:
        for name, body in {**bodies, "manifest.json": json.dumps(manifest, indent=1).encode()}.items():
            with open(draft / name, "wb") as file:
                file.write(body)
                file.flush()
                os.fsync(file.fileno())
        _sync_folder(draft)
        if final.exists():
            _remove(final)
        os.rename(draft, final)
    except OSError:
        shutil.rmtree(draft, ignore_errors=True)  # free the space on a full disk
        raise
    _sync_folder(folder)
    for version_, path in models_in(folder)[keep:]:
        if version_ != version:
            _remove(path)
    return final


def load(path: Path) -> Checkpoint:
    """Read one checkpoint folder and verify it; NaN in its weights counts as damage. Raises CheckpointError."""
    try:
        manifest = read_json(path / "manifest.json", MOST_MANIFEST_BYTES)
        if manifest.pop("digest") != _digest(manifest):
            raise CheckpointError(f"{path / 'manifest.json'}: its digest is wrong, so the file is damaged")
        version = Version(*map(int, manifest["version"]))
        bodies = {name: read_bytes(path / name, _MOST_PART_BYTES) for name in _PARTS}
        for name, body in bodies.items():
            if hashlib.sha256(body).hexdigest() != manifest["sha256"][name]:
                raise CheckpointError(f"{path / name}: its sha256 differs from the manifest, so the file is damaged")
        env_steps, schema = int(manifest["env_steps"]), str(manifest["schema"])
        if not all(0 <= number < 1 << 63 for number in (*version, env_steps)):
            raise ValueError("a number is out of range")
    except OSError as error:
        raise CheckpointError(f"{error.filename or path}: {error.strerror}") from error
    except CheckpointError:
        raise
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        raise CheckpointError(f"{path / 'manifest.json'}: not a manifest ({type(error).__name__}: {error})") from error
    try:
        # weights_only: accept only tensors and plain data, never code
        stream = io.BytesIO(bodies["state.pt"])
        check_archive(stream, len(bodies["state.pt"]))
        state = torch.load(stream, weights_only=True, map_location="cpu")
        missing = {"agent", "torch_rng", "python_rng"} - state.keys()
    except Exception as error:  # forged bytes can raise anything
        raise CheckpointError(
            f"{path / 'state.pt'}: holds something else than tensors and plain data, so it was not loaded "
            f"({type(error).__name__})"
        ) from error
    if missing:
        raise CheckpointError(f"{path / 'state.pt'}: lacks {', '.join(sorted(missing))}")
    try:
        spoiled = not_finite(safetensors.torch.load(bodies["model.safetensors"]))
    except Exception as error:
        raise CheckpointError(f"{path / 'model.safetensors'}: holds no weights ({error})") from error
    if spoiled:
        raise CheckpointError(f"{path / 'model.safetensors'}: {spoiled} is not finite, so these weights are of no use")
    return Checkpoint(path, version, env_steps, schema, bodies["model.safetensors"], state)


def load_newest(folder: Path, label: str = "") -> tuple[Checkpoint | None, list[str]]:
    """The newest valid checkpoint below `folder`, and a sentence for each newer one that was skipped. label: what a
    warning of these calls them; without it there is none."""
    skipped: list[str] = []
    for _, path in models_in(folder):
        try:
            return load(path), skipped
        except CheckpointError as error:
            skipped.append(str(error))
            if label:
                logger.warning("{} skipped: {}", label, error)
    return None, skipped


def find(folder: Path, update: int | Literal["latest"]) -> Checkpoint:
    """The checkpoint of a folder by its number of updates, or the newest valid one. Raises CheckpointError."""
    if (folder / "manifest.json").is_file():
        found = load(folder)  # the folder is a checkpoint itself
        if update not in ("latest", found.version.update):
            raise CheckpointError(f"{folder}: is the checkpoint of update {found.version.update}, not {update}")
        return found
    if update == "latest":
        newest, skipped = load_newest(folder)
        if newest is None:
            raise CheckpointError(f"{folder}: has no valid checkpoint {'; '.join(skipped)}".rstrip())
        return newest
    return load(numbered(folder, update))


def restore(agent: Agent, checkpoint: Checkpoint) -> None:
    """Restore model, optimizer and random numbers. Raises CheckpointError if another agent saved them."""
    load_bytes(agent.model, checkpoint.weights)
    try:
        agent.load_model(checkpoint.state["agent"])
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        why = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        raise CheckpointError(
            f"{checkpoint.path}: the agent cannot load the saved state ({why}); if another version of the agent saved "
            "it, start a new run, with preload_model to continue from these weights"
        ) from error
    try:
        set_generators(checkpoint.state)
    except (LookupError, TypeError, ValueError, ArithmeticError, RuntimeError) as error:
        raise CheckpointError(
            f"{checkpoint.path / 'state.pt'}: its random numbers cannot be restored ({type(error).__name__})"
        ) from error


def generators() -> dict[str, Any]:
    """The state of the process's own random generators on the CPU, as tensors and plain data."""
    numpy_rng: dict[str, Any] = np.random.get_state(legacy=False)
    state = {name: np.asarray(value).tolist() for name, value in numpy_rng["state"].items()}
    return {
        "torch_rng": torch.get_rng_state(),
        "python_rng": random.getstate(),
        "numpy_rng": {**numpy_rng, "state": state},
    }


def set_generators(state: Mapping[str, Any]) -> None:
    """Set them back to what `generators` returned."""
    torch.set_rng_state(state["torch_rng"])
    version, internal, gauss = state["python_rng"]
    random.setstate((version, tuple(internal), gauss))
    if "numpy_rng" in state:  # checkpoints of older versions lack it
        np.random.set_state(state["numpy_rng"])


def _digest(manifest: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _remove(path: Path) -> None:
    """Remove a checkpoint; rename it first, because a half-removed folder must not have a final name."""
    aside = path.with_name(f".removing-{path.name}")
    os.rename(path, aside)
    shutil.rmtree(aside, ignore_errors=True)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
