"""Checkpoints for tests of what reads a run without torch: folders with a manifest and nothing else."""

from __future__ import annotations

import json
from pathlib import Path


def checkpoint(folder: Path, epoch: int, update: int, env_steps: int, schema: str = "x") -> Path:
    """Make the folder of one below `folder`, and return it."""
    path = folder / f"model.ckpt-{epoch}-{update}"
    path.mkdir(parents=True)
    manifest = {"version": [epoch, update], "env_steps": env_steps, "schema": schema}
    (path / "manifest.json").write_text(json.dumps(manifest))
    return path
