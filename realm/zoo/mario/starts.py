"""A curriculum: episodes that begin along the level, at its end at first, over an earlier episode of one's own."""

import json
from pathlib import Path

import numpy as np

from realm.files import replace_file

_END = 0.9  # of the earlier episode; what comes after it is played in any case


def write_episode(path: Path, level: str, held: list[int]) -> None:
    """Write an episode as `Starts` reads it. held: the buttons of each frame, as bits"""
    replace_file(path, json.dumps({"level": level, "held": held}).encode())


class Starts:
    """Where episodes begin: at a random frame of the earlier one, which may lie further back the longer the run is."""

    def __init__(self, path: str, steps: int, level: str) -> None:
        """path: of `write_episode`. steps: env steps until episodes begin where the level does. Raises ValueError."""
        try:
            body = json.loads(Path(path).read_bytes())
            held, of = [*bytes([*body["held"]])], body["level"]
        except (OSError, ValueError, LookupError, TypeError, RecursionError):
            raise ValueError(f"start_along is {path!r}, it must be a file that keep_episode wrote") from None
        if of != level:
            raise ValueError(f"start_along is {path!r}, an episode of {of}, it must be one of {level}")
        self.longest, self._steps = held[: int(_END * len(held))], steps

    def before(self, env_steps: int, random: np.random.Generator) -> list[int]:
        """The buttons of the frames that are played before an episode begins."""
        share = env_steps / self._steps
        if share >= 1:
            return []
        return self.longest[: int(len(self.longest) * random.uniform(1 - share, 1))]
