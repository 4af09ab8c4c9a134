"""A level of Super Mario Bros., played on an emulator: what its memory says, and the parts that nobody plays.

The addresses, and what is skipped, are those of gym-super-mario-bros.
"""

from realm.contract import Array
from realm.zoo.mario.emulators import Fce, Nes
from realm.zoo.mario.rewards import State

_START = 0x08  # a button
_WORLD, _STAGE, _AREA = 0x075F, 0x075C, 0x0760
_TIMER_OF_CARD, _TIMER_OF_AREA = 0x07A0, 0x06DE
_BUSY = (0x00, 0x01, 0x02, 0x03, 0x04, 0x05, 0x07)  # in pipes, on vines, walking by itself
_DYING, _DEAD, _SLIDES = 0x0B, 0x06, 3
_BOWSER, _FLAG = 0x2D, 0x31
_WITH_TWO_AREAS = (1, 2, 4, 7)  # worlds whose second stage begins with a walk to a pipe
_MOST_PRESSES = 2_000  # of the button that starts the game


class Level:
    """One level, with one life. Ends with a death or at the flag."""

    def __init__(self, emulator: Nes | Fce, world: int, stage: int) -> None:
        """Raises ValueError if the game does not start."""
        self._emulator, self._presses = emulator, 0
        self._start(world, stage)
        emulator.keep()

    def _start(self, world: int, stage: int) -> None:
        game = self._emulator
        area = stage + (world in _WITH_TWO_AREAS and stage > 1)
        self._press_start()
        clock = _clock(game.frame(0))
        while clock == 0:
            self._press_start()
            game.write({_WORLD: world - 1, _STAGE: stage - 1, _AREA: area - 1})
            clock = _clock(game.frame(0))
            game.write({_TIMER_OF_CARD: 0})
        before = clock
        while clock >= before:
            before = clock
            self._press_start()
            clock = _clock(game.frame(0))

    def _press_start(self) -> None:
        self._presses += 1
        if self._presses > _MOST_PRESSES:
            raise ValueError("rom is damaged: the game does not start; it must be an unchanged file")
        self._emulator.frame(_START)

    def reset(self) -> State:
        self._emulator.back()
        return _state(self._emulator.memory())

    def step(self, buttons: int) -> State:
        """Play a frame. buttons: bits, as `presses.BITS` has them."""
        memory = self._emulator.frame(buttons)
        state = _state(memory)
        if not state.dead and not state.flag:
            self._skip(memory)
        return state

    def _skip(self, memory: bytes) -> None:
        """What nobody plays: Mario in a pipe, and the black picture between two areas."""
        if 1 < memory[_TIMER_OF_AREA] < 255:
            self._emulator.write({_TIMER_OF_AREA: 1})
        while memory[0x0E] in _BUSY or memory[0x0770] == 2:
            self._emulator.write({_TIMER_OF_CARD: 0})
            memory = self._emulator.frame(0)

    def picture(self) -> Array:
        """The screen, u8 [224, 240, 3]."""
        return self._emulator.picture()

    def close(self) -> None:
        self._emulator.close()


def _state(memory: bytes) -> State:
    below = memory[0xB5] > 1
    ends = memory[0x1D] == _SLIDES and any(kind in (_BOWSER, _FLAG) for kind in memory[0x16:0x1B])
    return State(
        256 * memory[0x6D] + memory[0x86], _number(memory[0x07DE:0x07E4]), _clock(memory), ends or memory[0x0770] == 2,
        below or memory[0x0E] in (_DYING, _DEAD), below,
    )  # fmt: skip


def _clock(memory: bytes) -> int:
    return _number(memory[0x07F8:0x07FB])


def _number(digits: bytes) -> int:
    return int("".join(map(str, digits)))
