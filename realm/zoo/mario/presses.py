"""From an action to the frames for which each button is held. Pure functions and one small state; no emulator."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

BUTTONS = ("right", "left", "down", "up", "select", "B", "A")
"""Of the controller but start, which stops the game. Select does nothing in a level, so its press is a wait."""
BITS = (0x80, 0x40, 0x20, 0x10, 0x04, 0x02, 0x01)

_RIGHT = ("", "right", "right A", "right B", "right A B")
_SIMPLE = (*_RIGHT, "A", "left")
_COMPLEX = (*_SIMPLE, "left A", "left B", "left A B", "down", "up")
SETS = {"right": _RIGHT, "simple": _SIMPLE, "complex": _COMPLEX}
"""Those of gym-super-mario-bros."""
PLANS = ("to the end", "can change")
FPS = 60

Frames = NDArray[np.int64]


def bits(held: Sequence[bool] | NDArray[np.bool_]) -> int:
    """The buttons [7] that are held, as the controller has them."""
    return sum(bit for bit, down in zip(BITS, held, strict=True) if down)


def bits_of(names: str) -> int:
    return bits([name in names.split() for name in BUTTONS])


class Plan:
    """How long a decision lasts, and what is held in each of its frames.

    "to the end": the longest press ends it. "can change": the shortest does; the others are held on and count down over
    the next decisions, which begin presses of other buttons, and let go of a button by a negative number.
    """

    def __init__(self, plan: str, least: int, most: int) -> None:
        """least, most: frames of a press."""
        self._ends_with_shortest, self._least, self._most = plan == PLANS[1], least, most
        self.left: Frames = np.zeros(len(BUTTONS), np.int64)
        """Frames for which each button is still held."""

    def reset(self) -> None:
        self.left[:] = 0

    def decide(self, seconds: NDArray[np.float32]) -> list[int]:
        """The buttons of each frame of a decision, as bits; without a press, of the least frames.

        seconds: f32 [7]. A press has round(60 a) frames; below half a frame none, else within the bounds.
        """
        frames = np.floor(FPS * np.maximum(seconds, 0).astype(np.float64) + 0.5).astype(np.int64)
        new = np.where(frames > 0, np.clip(frames, self._least, self._most), 0)
        self.left = np.where(self.left > 0, np.where(seconds < 0, 0, self.left), new)
        pressed = self.left[self.left > 0]
        lasts = self._least
        if len(pressed):
            lasts = int(pressed.min() if self._ends_with_shortest else pressed.max())
        plan = [bits(self.left > frame) for frame in range(lasts)]
        self.left = np.maximum(self.left - lasts, 0)
        return plan
