"""Checks what a user's environment returns, and names the environment that returned something else.

`rounds.py` calls it at each step. Every error is a UserCodeError: `file:line: Class.step returned reward None; ...`.
"""

from __future__ import annotations

import inspect
import re
import sys
import traceback
from collections.abc import Iterator
from types import CodeType
from typing import Any

import numpy as np
from gymnasium import spaces

from realm.contract import ActionSpec, Array, Fields, check_arrays
from realm.errors import ContractError, UserCodeError, one_line, place_of

_MOST_REWARD = np.finfo(np.float32).max


def check_envs(envs: Any, number: int) -> None:
    """Refuse what `make_envs(number, ...)` returned if it is no vector of this many environments to train on."""
    name = type(envs).__qualname__
    if not hasattr(envs, "num_envs"):
        single = hasattr(envs, "reset") and hasattr(envs, "step")
        raise UserCodeError(
            f"make_envs returned {f'a single environment, {name}' if single else shown(envs)}; it must return a vector "
            "environment, such as gymnasium.vector.SyncVectorEnv([make_one] * num_envs)"
        )
    if envs.num_envs != number:
        raise UserCodeError(
            f"make_envs returned {name} with num_envs = {envs.num_envs}; it was asked for num_envs = {number}"
        )
    mode = (getattr(envs, "metadata", None) or {}).get("autoreset_mode")
    mode = getattr(mode, "value", mode)
    next_step = "gymnasium.vector.AutoresetMode.NEXT_STEP"
    if mode is None:
        raise UserCodeError(
            f"make_envs returned {name}, whose metadata does not say how it resets; if the step after an episode's end "
            f'is its reset, set metadata["autoreset_mode"] = {next_step}; if it resets in the step that ends an '
            "episode, it must wait for the next one, or the last observation of an episode would be lost"
        )
    if mode != "NextStep":
        raise UserCodeError(
            f"make_envs returned {name} with autoreset mode {mode}; it must be NEXT_STEP, so that the last observation "
            f"of an episode is seen: autoreset_mode={next_step}"
        )


def check_action_space(envs: Any, action: ActionSpec) -> None:
    """Refuse a Spec whose action is not of the environments' action space."""
    space = getattr(envs, "single_action_space", None)
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete) and np.any(space.start):
        wanted, fits = "numbers of an action space that starts at 0", False
    elif isinstance(space, spaces.Discrete):
        wanted, fits = f"n={space.n}", action.n == space.n
    elif isinstance(space, spaces.MultiDiscrete) and space.nvec.ndim == 1:
        wanted, fits = f"nvec={tuple(space.nvec.tolist())}", action.nvec == tuple(space.nvec)
    elif isinstance(space, spaces.Box) and len(space.shape) == 1:
        wanted, fits = f"low and high of {space.shape[0]} numbers", len(action.low) == space.shape[0]
    else:
        return
    if not fits:
        given = f"n={action.n}" if action.n else f"nvec={action.nvec}" if action.nvec else f"low={action.low}"
        raise UserCodeError(
            f"spec returned ActionSpec({given}), but the environments' action space is {space}; it must have {wanted}"
        )


def check_obs(env: Any, method: str, obs: Any, fields: Fields) -> None:
    """Compare the observations of a vector environment with the Spec's."""
    if not isinstance(obs, dict) or not all(isinstance(array, np.ndarray) for array in obs.values()):
        raise _wrong(env, method, "observation", obs, "must be a dict of NumPy arrays")
    try:
        check_arrays(obs, fields, (env.num_envs,), f"observation of {method}")
    except ContractError as error:
        raise UserCodeError(f"{_place(env, method)}: spec and environment differ: {error}") from error
    for name, array in obs.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise _wrong(env, method, f"observation {name!r}", array, "must be finite")


def check_step(env: Any, reward: Any, terminated: Any, truncated: Any, info: Any, ended: Array) -> None:
    """Check the rest of a vector environment's step. ended: bool [E], the environments whose step was a reset."""
    count = env.num_envs
    for name, flags in (("terminated", terminated), ("truncated", truncated)):
        if np.shape(flags) != (count,) or np.asarray(flags).dtype.kind not in "bi":
            raise _wrong(env, "step", name, flags, f"must be an array of shape [E], E is {count}")
    if np.shape(reward) != (count,) or np.asarray(reward).dtype.kind not in "biuf":
        raise _wrong(env, "step", "reward", reward, f"must be an array of numbers of shape [E], E is {count}")
    if not (np.abs(np.where(ended, 0.0, reward)) <= _MOST_REWARD).all():
        raise _wrong(env, "step", "reward", reward, "must be finite in float32")
    if not isinstance(info, dict):
        raise _wrong(env, "step", "info", info, "must be a dict")
    if "final_obs" in info or "final_observation" in info:
        raise UserCodeError(
            f"{_place(env, 'step')} gave the last observation of an episode in info, so its observation is that of the "
            "next episode already; it must reset in the step after an episode's end, which is what its metadata says "
            "(AutoresetMode.NEXT_STEP)"
        )
    mask = info.get("_episode")
    if mask is None or not np.any(mask):
        return
    statistics = info.get("episode")
    if np.shape(mask) != (count,) or not isinstance(statistics, dict):
        raise _wrong(env, "step", "info['episode']", statistics, "must be a dict of arrays of shape [E]")
    for name, values in statistics.items():
        if np.shape(values) != (count,) or np.asarray(values).dtype.kind not in "biuf":
            raise _wrong(env, "step", f"info['episode'][{name!r}]", values, "must be numbers of shape [E]")


def bad_rows(obs: Any, reward: Any, ended: Array) -> Array:
    """Which environments of a vector have NaN or infinity in this step, or no number as the reward: bool [E].

    ended: bool [E], those whose step was a reset, so that the reward does not matter.
    """
    count, bad = len(ended), np.zeros(len(ended), np.bool_)
    for array in obs.values() if isinstance(obs, dict) else ():
        if isinstance(array, np.ndarray) and array.dtype.kind == "f" and array.shape[:1] == (count,):
            bad |= ~np.isfinite(array.reshape(count, -1)).all(1)
    if np.shape(reward) == (count,):
        numbers = [np.asarray(one).dtype.kind in "biuf" and bool(abs(one) <= _MOST_REWARD) for one in reward]
        bad |= ~np.array(numbers) & ~ended
    return bad


def finite(obs: Any) -> Any:
    """An observation with 0 for NaN and infinity. An environment may have written them into the array that it gave
    before."""
    if isinstance(obs, dict):
        return {name: finite(part) for name, part in obs.items()}
    if isinstance(obs, np.ndarray) and obs.dtype.kind == "f":
        return np.nan_to_num(obs, nan=0.0, posinf=0.0, neginf=0.0)
    return obs


def reset_pair(env: Any, given: Any) -> Any:
    if not (isinstance(given, tuple) and len(given) == 2):
        raise _wrong(env, "reset", "", given, "must be (observation, info)")
    return given


def step_five(env: Any, given: Any) -> Any:
    if not (isinstance(given, tuple) and len(given) == 5):
        raise _wrong(env, "step", "", given, "must be (observation, reward, terminated, truncated, info)")
    return given


def check_one(env: Any, method: str, obs: Any) -> None:
    """Compare an observation of one environment with its space."""
    for name, space, value in _leaves(env, method, "observation", env.observation_space, obs):
        array = np.asarray(value)
        if array.shape != space.shape or not np.can_cast(array.dtype, space.dtype, "same_kind"):
            raise _wrong(env, method, name, value, f"must be {space.dtype}{list(space.shape)}")
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise _wrong(env, method, name, value, "must be finite")
        whole = array.dtype.kind in "iu" and space.dtype.kind in "iu"
        if whole and array.dtype != space.dtype and (array.astype(space.dtype) != array).any():
            raise _wrong(env, method, name, array.tolist(), f"must fit into {space.dtype}")
        if not isinstance(space, spaces.Box) and not space.contains(array.astype(space.dtype)):
            raise _wrong(env, method, name, array.tolist(), f"must be of {space}")


def check_statistics(env: Any, info: Any) -> None:
    """Check what one environment says of an episode that has ended: gymnasium could not gather other things."""
    statistics = info.get("episode") if isinstance(info, dict) else None
    for name, value in statistics.items() if isinstance(statistics, dict) else ():
        if np.size(value) != 1 or np.asarray(value).dtype.kind not in "biuf":
            raise _wrong(env, "step", f"info['episode'][{name!r}]", value, "must be a number")


def _leaves(env: Any, method: str, name: str, space: Any, value: Any) -> Iterator[tuple[str, Any, Any]]:
    """Name, space and value of each array in an observation; other spaces than those of arrays are not looked at."""
    if isinstance(space, spaces.Dict):
        if not isinstance(value, dict) or value.keys() != space.spaces.keys():
            raise _wrong(env, method, name, value, f"must be a dict with the keys {list(space.spaces)}")
        for key, inner in space.spaces.items():
            yield from _leaves(env, method, f"{name}[{key!r}]", inner, value[key])
    elif isinstance(space, spaces.Tuple):
        if not isinstance(value, tuple | list) or len(value) != len(space.spaces):
            raise _wrong(env, method, name, value, f"must be a tuple of {len(space.spaces)}")
        for number, inner in enumerate(space.spaces):
            yield from _leaves(env, method, f"{name}[{number}]", inner, value[number])
    elif isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        yield name, space, value
    elif value is None:
        raise _wrong(env, method, name, value, f"must be of {space}")


def check_scalars(env: Any, reward: Any, terminated: Any, truncated: Any) -> None:
    array = np.asarray(reward)
    if array.size != 1 or array.dtype.kind not in "biuf":
        raise _wrong(env, "step", "reward", reward, "must be a number")
    if not (np.abs(array) <= _MOST_REWARD).all():
        raise _wrong(env, "step", "reward", reward, "must be finite in float32")
    for name, flag in (("terminated", terminated), ("truncated", truncated)):
        if np.size(flag) != 1 or np.asarray(flag).dtype.kind not in "bi":
            raise _wrong(env, "step", name, flag, "must be True or False")


# --- whom to name


def _wrong(env: Any, method: str, what: str, given: Any, must: str) -> UserCodeError:
    return UserCodeError(f"{_place(env, method)} returned {f'{what} {shown(given)}'.strip()}; it {must}")


def shown(value: Any) -> str:
    if isinstance(value, np.ndarray) and value.size != 1:
        wrong = np.argwhere(~np.isfinite(value))[:1].tolist() if value.dtype.kind == "f" else []
        bad = f" with NaN or infinity at {wrong[0]}" if wrong else ""
        return f"{value.dtype}{list(value.shape)}{bad}"
    try:
        text = " ".join(repr(value).split())
    except Exception as error:  # a number of thousands of digits, or a class whose repr is wrong
        text = f"{type(value).__name__} ({type(error).__name__} in its repr)"
    return text if len(text) <= 60 else f"{text[:60]}... ({type(value).__name__})"


def _users_class(env: Any) -> type[Any]:
    """The outermost class around an environment, or around the first of many, that is neither Realm's nor gymnasium's;
    else the innermost."""
    while type(env).__module__.startswith(("realm.", "gymnasium.")):
        inner = getattr(env, "env", None) or next(iter(getattr(env, "envs", ())), None)
        if inner is None:
            break
        env = inner
    return type(env)


def _file_of(cls: type[Any]) -> str:
    return getattr(sys.modules.get(cls.__module__), "__file__", None) or cls.__module__


def _place(env: Any, method: str) -> str:
    """`file:line: Class.method` of the user's environment."""
    cls = _users_class(env)
    own = next((one for one in cls.__mro__ if method in one.__dict__), cls)
    code = getattr(inspect.unwrap(own.__dict__.get(method, own)), "__code__", None)
    where = f"{code.co_filename}:{code.co_firstlineno}" if isinstance(code, CodeType) else _file_of(cls)
    return f"{where}: {cls.__qualname__}.{method}"


def sentence(env: Any, method: str, error: BaseException) -> str:
    """An error of an environment with the deepest line of the user's, else the deepest in its class's file, else with
    its class: then gymnasium could not use what it gave."""
    text, place = f"{type(error).__name__}: {one_line(error)}", place_of(error)
    if not place and isinstance(error, TypeError | ValueError | AssertionError) and _OLD_API.search(text):
        return f"{_place(env, method)} is written for gym before 0.26 ({text}); {_NEW_API}"
    cls = _users_class(env)
    own = [one for one in traceback.extract_tb(error.__traceback__) if one.filename == _file_of(cls)]
    place = place or (f"{own[-1].filename}:{own[-1].lineno}" if own else _place(env, method))
    return f"{place}: {text}"


_OLD_API = re.compile(
    r"reset\(\) got an unexpected keyword argument '(seed|options)'"
    r"|\(expected 5, got 4\)|\(expected 2(, got \d+)?\)|not a tuple of the form `\(obs, info\)`"
)
_NEW_API = (
    "it must have reset(self, *, seed=None, options=None), which returns (observation, info), and step(self, action), "
    "which returns (observation, reward, terminated, truncated, info)"
)
