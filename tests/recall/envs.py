"""Two tasks that need a memory: a cue to recall, and CartPole without its velocities."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import TransformObservation


class Recall(gymnasium.Env[Any, Any]):
    """One of two cues is shown at first; after `wait` steps the action that names it is worth 1, the other nothing."""

    observation_space = spaces.Box(-1.0, 1.0, (3,), np.float32)  # the cue, whether it is shown, whether it is asked for
    action_space = spaces.Discrete(2)

    def __init__(self, wait: int = 12) -> None:
        self.wait = wait

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.cue, self.at = int(self.np_random.integers(2)), 0
        return self.look(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        asked = self.at == self.wait
        self.at += 1
        return self.look(), float(asked and action == self.cue), asked, False, {}

    def look(self) -> Any:
        shown = self.at == 0
        return np.array([(2 * self.cue - 1) * shown, shown, self.at == self.wait], np.float32)


def blind_pole() -> gymnasium.Env[Any, Any]:
    seen = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    return TransformObservation(gymnasium.make("CartPole-v1"), lambda obs: obs[[0, 2]] * np.float32([1, 5]), seen)


gymnasium.register("Recall-v0", entry_point=Recall)
gymnasium.register("BlindPole-v0", entry_point=blind_pole)
