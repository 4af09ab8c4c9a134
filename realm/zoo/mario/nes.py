"""Super Mario Bros. in nes-py, which reads what the game's memory says.

gym-super-mario-bros is "free for educational use" and holds the game, so both are in no lock, image or wheel. Version 7
of it and version 8 of nes-py know gym alone, and NumPy before 2.
"""

import hashlib
import io
from contextlib import nullcontext, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from gymnasium.error import DependencyNotInstalled
from PIL import Image

from realm.zoo.mario.rewards import State

PACKAGES = "'gym-super-mario-bros==7.4.0' 'nes-py==8.2.1'"
_HEADER, _PROGRAM = 16, 32 * 1024  # bytes of a ROM; what follows is pictures, which may be others
_GAME = "75508b83d54b643ca551430d56ea4337ea7fe9690baa8c06ef3c356ceee3bd39"


def check_rom(path: str) -> None:
    """Raise ValueError, one sentence, unless the file holds Super Mario Bros."""
    try:
        rom = Path(path).read_bytes()
    except OSError as error:
        raise ValueError(f"rom is {path!r}, which cannot be read: {error.strerror}") from None
    if hashlib.sha256(rom[_HEADER : _HEADER + _PROGRAM]).hexdigest() != _GAME:
        raise ValueError(f"rom is {path!r}, which is not Super Mario Bros. (World)")


class Nes:
    """One level of the game, with one life. Ends with a death or at the flag."""

    def __init__(self, world: int, stage: int, rom: str = "") -> None:
        """rom: the path of one's own; "": the package's. Raises DependencyNotInstalled, or ValueError for the path."""
        if rom:
            check_rom(rom)
        if int(np.__version__.partition(".")[0]) > 1:
            needs = "nes-py 8 needs one before 2: run `pip install 'numpy<2'`"
            raise DependencyNotInstalled(f"NumPy is {np.__version__}, and {needs}")
        try:
            with redirect_stderr(io.StringIO()), redirect_stdout(io.StringIO()):  # gym says that it is old
                from gym_super_mario_bros import smb_env
        except ModuleNotFoundError as error:
            raise DependencyNotInstalled(f"run `pip install {PACKAGES}`") from error
        with mock.patch.object(smb_env, "rom_path", return_value=rom) if rom else nullcontext():
            self._game: Any = smb_env.SuperMarioBrosEnv(target=(world, stage))

    def reset(self) -> State:
        self._game.reset()
        return self._state(self._game._get_info())

    def step(self, buttons: int) -> State:
        """Play a frame. buttons: bits, as `presses.BITS` has them."""
        _, _, _, info = self._game.step(buttons)
        return self._state(info)

    def _state(self, info: dict[str, Any]) -> State:
        dead = self._game._is_dying or self._game._is_dead
        return State(
            int(info["x_pos"]), int(info["score"]), int(info["time"]), bool(info["flag_get"]), bool(dead),
            bool(self._game._y_viewport > 1),
        )  # fmt: skip

    def picture(self) -> Image.Image:
        """The screen, 256 x 240 in colour."""
        pixels = self._game.screen.base  # of which nes-py shows three of four bytes, in another order
        return Image.frombuffer("RGB", (256, 240), pixels, "raw", "BGRX", 0, 1)

    def close(self) -> None:
        self._game.close()
