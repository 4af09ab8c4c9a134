"""Super Mario Bros. behind gymnasium: an action is one decision, which lasts some frames of the game.

`[env]` of a run has the arguments of `Mario`. Observations are grey pictures of 84 x 84, u8 [84, 84] after a decision,
or u8 [84, 84, shots] where decisions differ in length. A package that looks back (`frames`) stores each once.
"""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from PIL import Image, ImageDraw

from realm.contract import Array
from realm.errors import did_you_mean
from realm.zoo.mario import rewards
from realm.zoo.mario.emulators import Fce, Nes, rom_of
from realm.zoo.mario.level import Level
from realm.zoo.mario.picture import edges, shrunk
from realm.zoo.mario.presses import BITS, BUTTONS, FPS, PLANS, SETS, Plan, bits, bits_of
from realm.zoo.mario.rewards import TERMS, paid, terms_of, values
from realm.zoo.mario.starts import Starts, write_episode

SIDE = 84
_STATUS = 24  # rows of the screen above the level
_ACTIONS = (*SETS, "buttons", "durations")
_STRIP, _SIGNS = 16, "><v^sBA"  # below a rendered picture, rows and a sign for each button
CAUSES = ("fall", "enemy", "clock")
_EMULATORS: dict[str, Callable[[str], Nes | Fce]] = {"stable-retro": Fce, "nes-py": Nes}


class Mario(gymnasium.Env[Array, Any]):
    """One of its levels, each with one life.

    `info` has the statistics of the episode so far, plain numbers: score, x (the farthest), cleared, clock, frames,
    cause_fall, cause_enemy and cause_clock (what Mario died of), and of each term of the reward paid_<term>, the sum of
    what it paid. What is or is not so is 100 or 0, so that means are rates in percent. `[app] log_info` makes curves of
    them; models are compared by the score.
    """

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012 (gymnasium's)

    def __init__(
        self,
        level: str | Sequence[str] = "1-1",
        actions: str = "simple",
        skip: int = 4,
        reward: Sequence[Mapping[str, Any]] | None = None,
        status_line: bool = False,
        rom: str = "",
        plan: str = PLANS[0],
        signed: bool = False,
        least: int = 1,
        most: int = 60,
        shots: int = 4,
        emulator: str | Callable[[int, int], Level] = "stable-retro",
        keep_episode: str = "",
        start_along: str = "",
        start_steps: int = 500_000,
        render_mode: str | None = None,
    ) -> None:
        """level: "1-1" to "8-4", or a list, of which each episode draws one. actions: "right", "simple" or "complex",
        one of 5, 7 or 12 combinations of buttons; "buttons", 7 that are held or not; "durations", 7 numbers of seconds.
        skip: frames of a decision; with durations, of a step of the discount. reward: see `rewards.Term`. rom: the path
        of one's own. plan, signed (numbers from -1 to 1 instead of from 0), least, most (frames of a press) and shots
        (pictures of a decision: first, last, random ones between): of durations. emulator: "stable-retro" or "nes-py",
        whose colours differ. keep_episode: a file that gets the first cleared episode, if it is not there; start_along:
        one that was written so, over which episodes of training begin (`Starts`), until the env steps start_steps.
        """
        self.render_mode = render_mode
        levels = [level] if isinstance(level, str) else list(level) if isinstance(level, Sequence) else []
        _check("actions", actions, actions in _ACTIONS, f"one of {', '.join(_ACTIONS)}", _ACTIONS)
        _check("plan", plan, plan in PLANS, f"one of {', '.join(map(repr, PLANS))}", PLANS)
        _check("skip", skip, _whole(skip) and 0 < skip <= 600, "a whole number from 1 to 600")
        _check("least", least, _whole(least) and 0 < least <= FPS, f"a whole number of frames from 1 to {FPS}")
        _check("most", most, _whole(most) and least <= most <= FPS, f"from `least`, {least}, to {FPS} frames")
        _check("shots", shots, _whole(shots) and 2 <= shots <= FPS, f"from 2, the first and the last, to {FPS}")
        ok = bool(levels) and all(re.fullmatch("[1-8]-[1-4]", str(one)) for one in levels)
        _check("level", level, ok, "a world from 1 to 8 and a stage from 1 to 4, such as '1-1', or a list of these")
        _check("start_steps", start_steps, _whole(start_steps) and start_steps > 0, "a whole number from 1")
        _check("start_along", start_along, not start_along or len(levels) == 1, "empty with several levels")
        for name, path in {"rom": rom, "start_along": start_along, "keep_episode": keep_episode}.items():
            _check(name, path, isinstance(path, str), "the path of a file")
        for name, yes in {"status_line": status_line, "signed": signed}.items():
            _check(name, yes, isinstance(yes, bool), "true or false")
        kept = Path(keep_episode).absolute()
        ok = not keep_episode or (os.access(kept.parent, os.W_OK) and not kept.is_dir())
        _check("keep_episode", keep_episode, ok, "a file in a folder that is there and can be written")
        self._starts = Starts(start_along, start_steps, levels[0]) if start_along else None
        self._keep = Path(keep_episode) if keep_episode else None
        self.env_steps: int | None = None
        """Of the run, as its workflow tells; None in an evaluation, which begins where the level does."""
        terms = terms_of(reward)
        self._terms = tuple(term for term in terms if term.term != rewards.BUTTONS)
        self._of_buttons = next((term for term in terms if term.term == rewards.BUTTONS), None)
        if self._of_buttons:
            _check("actions", actions, actions in _ACTIONS[-2:], "'buttons' or 'durations' with the term 'buttons'")
            self.credit = np.zeros(len(BUTTONS), np.float32)  # of the last decision, what each button is paid alone
        self._make = emulator if callable(emulator) else _maker(emulator, rom)
        self._levels, self._played = levels, dict[str, Level]()
        self._rows, self._columns = edges(0 if status_line else _STATUS, 224, SIDE), edges(0, 240, SIDE)
        self._skip, self._durations = skip, actions == "durations"
        self._plan, self._shots = Plan(plan, least, most), shots if self._durations else 1
        self._of_action = [bits_of(names) for names in SETS.get(actions, ())]
        shape = (SIDE, SIDE, shots) if self._durations else (SIDE, SIDE)
        self.observation_space = spaces.Box(0, 255, shape, np.uint8)
        self.action_space = spaces.MultiBinary(len(BUTTONS))
        if self._of_action:
            self.action_space = spaces.Discrete(len(self._of_action))
        elif self._durations:
            self.action_space = spaces.Box(-1.0 if signed else 0.0, 1.0, (len(BUTTONS),))
            self.duration = 1.0  # of the last decision, in those of `skip` frames: the discount goes by it
        offered = [name for name in ("env_steps", "credit", "duration") if hasattr(self, name)]
        frames = (least + most) / 2 if self._durations else skip  # of a decision, about
        self.metadata = {**self.metadata, "render_fps": FPS / frames, "realm": offered}
        self._game = self._level(levels[0])  # what is missing is missed before a run begins
        if self._starts:
            self._game.reset()
            ok = not any(one.dead or one.flag for one in map(self._game.step, self._starts.longest))
            _check("start_along", start_along, ok, "one of this game; played again, it ends too soon")

    def _level(self, name: str) -> Level:
        if name not in self._played:
            world, _, stage = name.partition("-")
            self._played[name] = self._make(int(world), int(stage))
        return self._played[name]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self._name = self._levels[int(self.np_random.integers(len(self._levels)))]
        self._game = self._level(self._name)
        self._state, self._played_so = self._game.reset(), list[int]()
        if self._starts and self.env_steps is not None:
            self._played_so = self._starts.before(self.env_steps, self.np_random)
            for buttons in self._played_so:
                self._state = self._game.step(buttons)
        self._plan.reset()
        self._farthest, self._frames, self._held_last = self._state.x, 0, 0
        self._paid = dict.fromkeys((*TERMS, *([rewards.BUTTONS] if self._of_buttons else [])), 0.0)
        return self._seen([self._picture()] * self._shots), self._told()

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        held = self._held(action)
        wanted = self._wanted(len(held))
        states, pictures = [self._state], {}
        for frame, buttons in enumerate(held):
            states.append(self._game.step(buttons))
            over = states[-1].dead or states[-1].flag
            if over or frame in wanted:
                pictures[frame] = self._picture()
            if over:
                break
        last = len(states) - 2
        self._state, self._held_last = states[-1], held[last]
        if self._keep:
            self._played_so += held[: last + 1]
            if self._state.flag and not self._keep.exists():
                write_episode(self._keep, self._name, self._played_so)
        self._frames += len(states) - 1
        self._farthest = max(self._farthest, *(one.x for one in states))
        if self._durations:
            self.duration = (len(states) - 1) / self._skip
        if self._of_buttons:
            down = [[bool(buttons & bit) for bit in BITS] for buttons in held[: last + 1]]
            self.credit = rewards.credit(self._of_buttons, self._terms, states, down, self.env_steps or 0)
            self._paid[rewards.BUTTONS] += float(self.credit.sum())
        reward = paid(self._terms, values(states), self.env_steps or 0)
        for name, amount in reward.items():
            self._paid[name] += amount
        obs = self._seen([pictures[min(frame, last)] for frame in wanted])
        return obs, sum(reward.values()), self._state.dead or self._state.flag, False, self._told()

    def _held(self, action: Any) -> list[int]:
        """The buttons of each frame."""
        if self._durations:
            return self._plan.decide(np.asarray(action, np.float32))
        return [self._of_action[int(action)] if self._of_action else bits(np.asarray(action) > 0)] * self._skip

    def _wanted(self, frames: int) -> list[int]:
        """The frames of a decision that are shown: the last; of several the first, too, and random ones between."""
        if self._shots == 1:
            return [frames - 1]
        between = self.np_random.integers(frames, size=self._shots - 2)
        return [0, *sorted(between.tolist()), frames - 1]

    def _picture(self) -> Array:
        """u8 [84, 84]."""
        return shrunk(self._game.picture(), self._rows, self._columns)

    def _seen(self, pictures: list[Array]) -> Array:
        return np.stack(pictures, -1) if self._durations else pictures[-1]

    def _told(self) -> dict[str, Any]:
        state = self._state
        late = state.dead and state.clock == 0
        cause = dict(zip(CAUSES, (state.below and not late, not state.below and not late, late), strict=True))
        return {
            "score": state.score, "x": self._farthest, "cleared": 100 * int(state.flag), "clock": state.clock,
            "frames": self._frames,
            **{f"cause_{name}": 100 * int(state.dead and is_it) for name, is_it in cause.items()},
            **{f"paid_{name}": amount for name, amount in self._paid.items()},
        }  # fmt: skip

    def render(self) -> Array:
        """The screen, and below it the buttons; those that are held are bright. u8 [240, 240, 3]"""
        whole = Image.new("RGB", (240, 224 + _STRIP))
        whole.paste(Image.fromarray(self._game.picture()))
        draw, wide = ImageDraw.Draw(whole), 240 // len(BUTTONS)
        for number, (name, bit) in enumerate(zip(_SIGNS, BITS, strict=True)):
            left, down = number * wide, bool(self._held_last & bit)
            draw.rectangle((left, 224, left + wide - 2, 223 + _STRIP), (230, 200, 60) if down else (40, 40, 40))
            draw.text((left + wide // 2, 224 + _STRIP // 2), name, (0, 0, 0) if down else (150, 150, 150), anchor="mm")
        return np.array(whole)

    def close(self) -> None:
        for level in self._played.values():
            level.close()
        self._played.clear()


def _maker(emulator: str, rom: str) -> Callable[[int, int], Level]:
    """What makes a level. emulator, rom: as `Mario` has them."""
    known = tuple(_EMULATORS)
    _check("emulator", emulator, emulator in known, f"one of {', '.join(known)}", known)
    chosen, path = _EMULATORS[emulator], rom_of(rom)
    return lambda world, stage: Level(chosen(path), world, stage)


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _check(name: str, value: Any, ok: bool, must_be: str, known: Sequence[str] = ()) -> None:
    """Raise ValueError, one sentence, unless `ok`."""
    if not ok:
        raise ValueError(f"{name} is {value!r}, it must be {must_be}{did_you_mean(str(value), known) if known else ''}")
