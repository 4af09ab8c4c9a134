"""What a process must know about the project whose code it runs, and how it gets ready for that code.

`project.py` fills in the fields. The framework calls `enter` first in each process that will run the project's code.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Config:
    """The table [kaiwu] of a run's config.toml; written by `project.py`, not by users.

    project      the project's folder
    package      the package in it that trains, like "diy"
    keys         the project's own table [app] as JSON: what `CONFIG` shows
    sample_dim   numbers in a sample's vector (SAMPLE_DIM)
    obs, act     with prediction at the actor: field of ObsData or ActData -> "kind dtype shape" (`records.py`)
    predict_batch_size   the most observations of one call of `predict` at the actor
    dump_model_freq      train steps between two models in restore_dir
    keep_models          how many of these stay
    user_saves, user_saves_per_min   the most models that the project's code may save, in all and a minute; 0: no limit
    preload_dir, preload_id          model files that the learner begins with; "" for none
    """

    project: str = ""
    package: str = "diy"
    keys: str = "{}"
    sample_dim: int = 1
    obs: dict[str, str] = field(default_factory=dict)
    act: dict[str, str] = field(default_factory=dict)
    predict_batch_size: int = 1
    dump_model_freq: int = 100
    keep_models: int = 200
    user_saves: int = 0
    user_saves_per_min: int = 0
    preload_dir: str = ""
    preload_id: str = ""

    @property
    def root(self) -> Path:
        return Path(self.project)

    @property
    def app(self) -> dict[str, Any]:
        """The project's table [app]."""
        keys: dict[str, Any] = json.loads(self.keys)
        return keys

    @property
    def model_folder(self) -> str:
        """The name of the folder of models below restore_dir and user_ckpt_dir."""
        return f"{self.app.get('app', 'back_to_the_realm')}_{self.package}"


def enter(config: Config, role: str, run_dir: Path) -> None:
    """Make this process one that the project's code can run in."""
    from realm.kaiwu.process import begin  # late: other processes read only the fields

    begin(config, role, run_dir)
    if role == "aisrv":  # it imports the project's code, which may take long, before it says that it is ready
        from realm.kaiwu import code
        from realm.kaiwu.algorithm.agent import agent_to_look_at

        code.load_agent()
        code.load_workflow()
        if config.obs:  # the actor predicts
            agent_to_look_at()
