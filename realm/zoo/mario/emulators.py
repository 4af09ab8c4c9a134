"""The two emulators behind one small face: a frame, the memory of the game, the picture, and one moment to return to.

`stable-retro` (FCEUmm) is four times as fast as `nes-py`. The ROM is that of gym-super-mario-bros, which is "free for
educational use": so these are in no lock, image or wheel. Their versions of pyglet, which neither needs here, exclude
each other.
"""

import hashlib
import io
from collections.abc import Mapping
from contextlib import redirect_stderr
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.error import DependencyNotInstalled

from realm.contract import Array

FAST, SLOW, GAME = "stable-retro==1.0.1", "nes-py==8.2.1", "gym-super-mario-bros==7.4.0"
MEMORY = 2048
"""Bytes of the console's memory."""
_LEFT, _TOP = 8, 8  # of the screen, which a television does not show
_HEADER, _PROGRAM = 16, 32 * 1024  # bytes of a ROM; what follows is pictures, which may be others
_GAME = "75508b83d54b643ca551430d56ea4337ea7fe9690baa8c06ef3c356ceee3bd39"


def rom_of(path: str) -> str:
    """The path of the game; "": the package's. Raises DependencyNotInstalled, or ValueError for one's own."""
    if not path:
        package = find_spec("gym_super_mario_bros")  # not imported: it needs nes-py
        if package is None or not package.submodule_search_locations:
            raise DependencyNotInstalled(
                f"run `pip install --no-deps {FAST} {GAME}`, the second of which holds the game, or say `rom`"
            )
        return str(Path(package.submodule_search_locations[0]) / "_roms" / "super-mario-bros.nes")
    if not path.endswith(".nes"):
        raise ValueError(f"rom is {path!r}, its name must end in .nes")
    try:
        rom = Path(path).read_bytes()
    except OSError as error:
        raise ValueError(f"rom is {path!r}, which cannot be read: {error.strerror}") from None
    if hashlib.sha256(rom[_HEADER : _HEADER + _PROGRAM]).hexdigest() != _GAME:
        raise ValueError(f"rom is {path!r}, which is not Super Mario Bros. (World)")
    return path


class Nes:
    """nes-py: a console that has just been switched on, its memory empty. `Fce` has the same methods."""

    def __init__(self, rom: str) -> None:
        """Raises DependencyNotInstalled."""
        if int(np.__version__.partition(".")[0]) > 1:
            needs = "nes-py 8 needs one before 2: run `pip install 'numpy<2'`"
            raise DependencyNotInstalled(f"NumPy is {np.__version__}, and {needs}")
        try:
            with redirect_stderr(io.StringIO()):  # gym says that it is old
                from nes_py import NESEnv
        except ModuleNotFoundError as error:
            raise DependencyNotInstalled(f"run `pip install {SLOW}`") from error
        self._console: Any = NESEnv(rom)
        self._console.reset()

    def frame(self, buttons: int) -> bytes:
        """Play a frame; returns the memory. buttons: bits, as `presses.BITS` has them; the game sees them one later."""
        self._console._frame_advance(buttons)
        return self.memory()

    def memory(self) -> bytes:
        return bytes(self._console.ram)

    def write(self, values: Mapping[int, int]) -> None:
        """values: address -> byte."""
        for address, value in values.items():
            self._console.ram[address] = value

    def picture(self) -> Array:
        """What a television shows, u8 [224, 240, 3]."""
        shown: Array = self._console.screen[_TOP:-_TOP, _LEFT:-_LEFT]
        return shown.copy()

    def keep(self) -> None:
        """Keep this moment in place of the one before."""
        self._console._backup()

    def back(self) -> None:
        """Return to the moment that was kept."""
        self._console._restore()

    def close(self) -> None:
        self._console.close()


class _Core:
    """FCEUmm, of which a process has one: who plays brings its state."""

    rom = ""
    player: "Fce | None" = None

    def __init__(self, rom: str) -> None:
        from stable_retro import RetroEmulator

        self.console: Any = RetroEmulator(rom)
        _Core.rom = rom
        state = self.console.get_state()
        self._at = state.index(b"RAM\0" + MEMORY.to_bytes(4, "little")) + 8
        self.switched_on = self.replaced(state, dict.fromkeys(range(MEMORY), 0))

    def memory(self) -> bytes:
        state: bytes = self.console.get_state()
        return state[self._at : self._at + MEMORY]  # 2 us; its own reader takes 170

    def replaced(self, state: bytes, values: Mapping[int, int]) -> bytes:
        changed = bytearray(state)
        for address, value in values.items():
            changed[self._at + address] = value
        return bytes(changed)


_core = cache(_Core)
_NAMES = (0x02, 0, 0x04, 0x08, 0x10, 0x20, 0x40, 0x80, 0x01)  # its order of the buttons
_MASKS = [np.array([bool(buttons & bit) for bit in _NAMES], np.uint8) for buttons in range(256)]


class Fce:
    """stable-retro's FCEUmm. Any number of these play in turns on the one core of the process, each with its state."""

    def __init__(self, rom: str) -> None:
        """Raises DependencyNotInstalled, or ValueError if this process plays another file."""
        if _Core.rom not in ("", rom):
            raise ValueError(f"rom is {rom!r}, but this process plays {_Core.rom!r}, it must be one file for both")
        try:
            self._core = _core(rom)
        except ModuleNotFoundError as error:
            raise DependencyNotInstalled(f"run `pip install {FAST}`") from error
        except RuntimeError as error:
            raise ValueError(f"rom is {rom!r}, which stable-retro does not play: {error}") from None
        self._state, self._held = self._core.switched_on, 0
        self._picture: Array | None = None

    def _play(self) -> Any:
        """The console, with this game in it."""
        core = self._core
        if core.player is not self:
            if core.player:
                core.player.picture()
                core.player._state = core.console.get_state()
            core.console.set_state(self._state)
            core.player = self
        return core.console

    def frame(self, buttons: int) -> bytes:
        console = self._play()
        console.set_button_mask(_MASKS[self._held], 0)
        console.step()
        self._held, self._picture = buttons, None  # the core gives them to the same frame, nes-py to the next
        return self._core.memory()

    def memory(self) -> bytes:
        self._play()
        return self._core.memory()

    def write(self, values: Mapping[int, int]) -> None:
        console = self._play()
        console.set_state(self._core.replaced(console.get_state(), values))

    def picture(self) -> Array:
        if self._picture is None:
            self._picture = self._play().get_screen()
        return self._picture

    def keep(self) -> None:
        self._kept = self._play().get_state(), self._held, self.picture()

    def back(self) -> None:
        state, self._held, self._picture = self._kept
        self._play().set_state(state)

    def close(self) -> None:
        pass  # the core stays for the others
