"""Realm: an open, fast and readable distributed PPO training framework. See docs/architecture.md.

Importing it registers the game `Realm-v0` with gymnasium and loads nothing else: see docs/library.md.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import gymnasium

if TYPE_CHECKING:
    from realm.learn.policy import TrainedPolicy

__version__ = "0.1.0"

# Set before anything imports torch, because OpenMP reads it only once. Threads that wait by spinning starve each other
# on a busy machine: next to one other program `realm eval` took 52 s, and 9 s with this setting.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

gymnasium.register(
    id="Realm-v0",
    entry_point="realm.env.realm_env:RealmEnv",
    vector_entry_point="realm.env.realm_env:RealmVectorEnv",
)


def load_policy(model: str | Path = "", number: str = "latest") -> TrainedPolicy:
    """Load a trained model, to act with: `policy.act(obs)`.

    model: name or path of a run, one of its checkpoints, or "shipped"; "" is the newest run. number: of updates,
    "latest" or "best". Raises realm.errors.UserError with one sentence, such as where there is no such run.
    """
    from realm.commands.models import chosen_model  # late: torch, and `import realm` stays light
    from realm.learn.checkpoint import find
    from realm.learn.evaluate import load_player
    from realm.learn.policy import TrainedPolicy

    config, folder, which = chosen_model(str(model), number, (), None)
    config = config.evaluated()
    return TrainedPolicy(load_player(config, find(folder, which), config.env, 1, 0), config)
