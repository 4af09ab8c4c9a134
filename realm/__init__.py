"""Realm: an open, fast and readable framework for distributed reinforcement learning. See docs/architecture.md.

Importing it registers the game `Realm-v0` with gymnasium, which it does not load itself: see docs/library.md.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # not from typing: until a command has imported this, Ctrl+C is a traceback
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from realm.learn.policy import TrainedPolicy

__version__ = "0.2.0"

# Set before anything imports torch, because OpenMP reads it only once. Threads that wait by spinning starve each other
# on a busy machine: next to one other program `realm eval` took 52 s, and 9 s with this setting.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def _register(gymnasium: Any) -> None:
    gymnasium.register(
        id="Realm-v0",
        entry_point="realm.env.realm_env:RealmEnv",
        vector_entry_point="realm.env.realm_env:RealmVectorEnv",
    )


class _WithGymnasium:
    """Registers the game when gymnasium is imported; buffer and model_pool never do."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        if fullname != "gymnasium":
            return None
        import importlib.util
        from contextlib import suppress

        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            sys.meta_path.insert(0, self)  # somebody may only have looked whether it is there
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_register(module: Any) -> None:
                load(module)
                with suppress(ValueError):
                    sys.meta_path.remove(self)
                _register(module)

            spec.loader.exec_module = load_and_register  # type: ignore[method-assign]
        return spec


if "gymnasium" in sys.modules:
    _register(sys.modules["gymnasium"])
else:
    sys.meta_path.insert(0, _WithGymnasium())


def load_policy(model: str | Path = "", number: str | int = "latest") -> TrainedPolicy:
    """Load a trained model, to act with: `policy.act(obs)`.

    model: name or path of a run, one of its checkpoints, or "shipped"; "" is the newest run. number: of updates,
    "latest" or "best". Raises realm.errors.UserError with one sentence, such as where there is no such run.
    """
    import torch  # late: `import realm` stays light

    from realm.commands.locate import chosen_model
    from realm.learn.checkpoint import find
    from realm.learn.evaluation import load_player
    from realm.learn.policy import TrainedPolicy

    config, folder, which = chosen_model(str(model), str(number), (), None)
    with torch.random.fork_rng(devices=()):  # an agent seeds torch, which is the caller's here
        player = load_player(config.evaluated(), find(folder, which), 1, 0)
    player.envs.close()  # only what acts is wanted
    return TrainedPolicy(player, config)
