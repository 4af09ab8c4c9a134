"""Any gymnasium environment as a package needs it: vector environments with dicts as observations, and their shapes.

A package of the zoo takes its environment's name from the table `[env]`: `id = "Pendulum-v1"`, or `id =
"my_module:MyEnv-v0"` for one that a module registers; the other keys of that table go to `gymnasium.make`. Workers call
this, so it imports no torch. Atari's `id = "ALE/Pong-v5"` gives single grey frames of 84 x 84, made by ale_py.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Hashable, Iterator, Mapping
from functools import partial
from importlib.util import find_spec
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv, VectorActionWrapper, VectorEnv, VectorObservationWrapper
from gymnasium.vector.utils import batch_space
from gymnasium.wrappers.vector import RecordEpisodeStatistics, TransformObservation, TransformReward

from realm.contract import ActionSpec, Array, Arrays, Field, Fields
from realm.errors import ConfigError, ContractError, pip_here

_MOST_CHOICES = 4096  # outputs of a network
_IMAGE_SIDE = 36  # smaller ones are no images to `realm.algorithms.networks.Encoder`
_MOST_CHANNELS = 16
MASK = "legal"
_MASK_KEYS = (MASK, "action_mask")  # the second is what most environments call it
_CHOICES = (spaces.Discrete, spaces.MultiDiscrete)
_Path = tuple[Hashable, ...]


def make_vec(num_envs: int, options: Mapping[str, Any], default: str, joint: bool = False) -> VectorEnv[Any, Any, Any]:
    """Environments that report each episode's return; observations are dicts of numbers (see `_number_space`), and
    `{"state": ...}` where they were no dicts. One named `legal` or `action_mask` is the mask of legal actions, here
    called `legal`. Actions are whole numbers from 0, i64 [E] or i64 [E, numbers], or f32 [E, A] (see `_OwnActions`).

    An environment with a method `action_masks()`, as sb3-contrib has it, gets its answer as the mask, too.

    options: the table `[env]`, of which `reward_scale` multiplies rewards and `clip_reward` then bounds them (by 1 for
    Atari, if it is not there), while episodes report their own; default: the id if it names none; joint: several whole
    numbers become one, each combination an action. They do so anyway where the mask has a number for each combination.
    """
    given = dict(options)
    env_id = name = given.pop("id", default)
    atari = str(name).startswith("ALE/")
    scale, bound = given.pop("reward_scale", 1.0), given.pop("clip_reward", 1.0 if atari else np.inf)
    for key, number, ok in (("reward_scale", scale, math.isfinite), ("clip_reward", bound, lambda most: most > 0)):
        if isinstance(number, bool) or not isinstance(number, (int, float)) or not ok(number):
            raise ValueError(f"{key} is {number!r}, it must be a number{' above 0' if key == 'clip_reward' else ''}")
    envs: Any
    try:
        if str(name).startswith(("ALE/", "ale_py:")) and find_spec("ale_py") is None:
            raise gymnasium.error.DependencyNotInstalled("run `pip install 'gymnasium[atari]' ale-py`")
        if atari:
            # its own vector environment; a frame stacked there would be stored several times; `Draw.look_back` stacks
            # and rewards that it clips would be those of the episode's statistics, too
            given = {"vectorization_mode": "vector_entry_point", "stack_num": 1, "reward_clipping": False, **given}
            shown = given.pop("render_mode", None) == "rgb_array"
            envs = gymnasium.make_vec(f"ale_py:{name}", num_envs, **given)
            envs = _Grey(envs) if shown else envs
        else:
            envs = _Envs([partial(_masked, name, given)] * num_envs)
    except gymnasium.error.DependencyNotInstalled as error:
        text = pip_here(str(error))
        raise ConfigError(f"[env] id is {env_id!r}, which needs a package that is not installed: {text}") from error
    except (gymnasium.error.Error, ModuleNotFoundError) as error:
        old = re.fullmatch(r"(\w+)Deterministic-v\d", str(name))  # of a gym that is gone
        same = f"there is no such id; ALE/{old[1]}-v5 is the same" if old else str(error).splitlines()[0]
        unknown = isinstance(error, gymnasium.error.UnregisteredEnv)
        module = sys.modules.get(str(name).rpartition(":")[0]) if unknown else None
        where = f"; {getattr(module, '__file__', module)} registers none of this name" if module else ""
        raise ConfigError(f"[env] id is {env_id!r}: {same}{where}") from error
    parts = _named(_parts(envs.single_observation_space))
    envs = _with_own_actions(envs, joint, parts[MASK][1].shape if MASK in parts else None)
    single: dict[str, spaces.Space[Any]] = {name: _number_space(space) for name, (_, space) in parts.items()}
    if MASK in parts:
        single[MASK] = _mask_space(parts[MASK], envs.single_action_space)
    if not single.keys() - {MASK}:
        raise ConfigError(f"the observation space is {envs.single_observation_space}; it must have more than a mask")

    labels = {name: f"the observation {name!r} of {env_id}" for name in parts}

    def observed(obs: Any) -> Arrays:
        return {
            name: _part(obs, path) > 0 if name == MASK else _numbers(space, _part(obs, path), labels[name])
            for name, (path, space) in parts.items()
        }

    space = spaces.Dict(single)
    envs = RecordEpisodeStatistics(envs)
    if (scale, bound) != (1.0, np.inf):
        envs = TransformReward(envs, lambda reward: np.clip(scale * reward, -bound, bound))
    numbers = Observed(envs, observed, batch_space(space, num_envs), space)
    numbers.inputs = {name: _described(path, own, single[name]) for name, (path, own) in parts.items()}
    return numbers


def _masked(name: Any, options: dict[str, Any]) -> gymnasium.Env[Any, Any]:
    """The environment; what its `action_masks()` gives, if it has such, is its observation `action_mask`."""
    env = gymnasium.make(name, **options)
    own = env.observation_space
    parts = own.spaces if isinstance(own, spaces.Dict) else {"state": own}
    masks = env.has_wrapper_attr("action_masks") and np.dtype(env.action_space.dtype).kind in "biu"
    if not masks or parts.keys() & set(_MASK_KEYS):
        return env

    def with_mask(obs: Any) -> dict[str, Any]:
        mask = np.asarray(env.get_wrapper_attr("action_masks")(), np.int8)
        return {**(obs if isinstance(obs, Mapping) else {"state": obs}), "action_mask": mask}

    space = spaces.Dict({**parts, "action_mask": spaces.MultiBinary(sum(_whole(env.action_space)[1]))})
    return gymnasium.wrappers.TransformObservation(env, with_mask, space)


class _Envs(SyncVectorEnv):
    """Drops what environments tell in `info`: nothing here reads it, and gymnasium cannot join arrays that change their
    length, or what they say of their episodes with what its own recorder says."""

    told: Any = None
    """What the last environment told."""

    def _add_info(self, vector_infos: dict[str, Any], env_info: dict[str, Any], env_num: int) -> dict[str, Any]:
        self.told = env_info
        return vector_infos


class _Grey(VectorObservationWrapper):
    """Renders what an agent sees of Atari's vector environment, which renders nothing: each pixel four times."""

    def __init__(self, envs: VectorEnv[Any, Any, Any]) -> None:
        super().__init__(envs)
        self.metadata = {**envs.metadata, "render_fps": 15}  # a step is four frames

    def observations(self, observations: Any) -> Any:
        """u8 [E, 1, H, W]."""
        self.seen = observations
        return observations

    def render(self) -> tuple[Array, ...]:
        """u8 [4 H, 4 W, 3] of each environment."""
        return tuple(np.repeat(np.kron(one[0], np.ones((4, 4), np.uint8))[..., None], 3, -1) for one in self.seen)


# ---- actions ----


class _OwnActions(VectorActionWrapper):
    """Gives the environments an action of their space for one that an algorithm knows.

    table    for one whole number: [n, ...], the environment's action for each number from 0
    start    for several: [...], the least of each
    columns  for a Box, whose numbers the algorithm has side by side, f32 [E, A], without those that cannot change:
             i64 [numbers of the Box], the column of each. They are cut to the bounds in the Box's own dtype.
    """

    def __init__(
        self,
        envs: VectorEnv[Any, Any, Any],
        shown: spaces.Space[Any],
        table: Array | None = None,
        start: Array | None = None,
        columns: Array | None = None,
    ) -> None:
        """shown: the action space of one environment as the algorithm sees it."""
        super().__init__(envs)
        self.table, self.start, self.columns = table, start, columns
        self.single_action_space, self.action_space = shown, batch_space(shown, envs.num_envs)

    def actions(self, actions: Any) -> Any:
        """actions: i64 [E], i64 [E, numbers] or f32 [E, A]."""
        space: Any = self.env.single_action_space
        if self.table is not None:
            return self.table[actions]
        if self.start is not None:
            return np.asarray(actions).reshape(-1, *space.shape).astype(space.dtype) + self.start
        own = np.asarray(actions)[:, self.columns].astype(space.dtype).reshape(-1, *space.shape)
        return np.clip(own, space.low, space.high)

    def tensors(self, actions: Any) -> Any:
        """The same by torch alone, for `realm export`."""
        import torch  # late: workers do not need it

        space: Any = self.env.single_action_space
        if self.table is not None:
            return torch.from_numpy(self.table)[actions]
        if self.start is not None:
            start = torch.from_numpy(self.start)
            return actions.reshape(-1, *space.shape).to(start.dtype) + start
        low, high = torch.from_numpy(space.low), torch.from_numpy(space.high)
        own = actions[:, torch.from_numpy(self.columns)].to(low.dtype).reshape(-1, *space.shape)
        return torch.minimum(torch.maximum(own, low), high)


def _with_own_actions(
    envs: VectorEnv[Any, Any, Any], joint: bool, mask: tuple[int, ...] | None
) -> VectorEnv[Any, Any, Any]:
    """Environments that take whole numbers from 0 or f32 [E, A], if their actions can be said so. Raises ConfigError.

    joint: see `make_vec`; mask: the shape of the mask of legal actions.
    """
    space: Any = envs.single_action_space
    if isinstance(space, spaces.Box) and space.dtype.kind == "f":
        if not _is_bounded(space) or 0 in space.shape:
            return envs
        low, high = (bound.astype(np.float32).reshape(-1) for bound in (space.low, space.high))
        free = low < high
        if not free.any():
            raise ConfigError(f"the action space is {space}, which leaves no choice; it must have a low below its high")
        if free.all() and space.dtype == np.float32 and len(space.shape) == 1:
            return envs
        columns = np.where(free, np.cumsum(free) - 1, 0)
        return _OwnActions(envs, spaces.Box(low[free], high[free], dtype=np.float32), columns=columns)
    if isinstance(space, spaces.Discrete) and space.start == 0 and space.dtype == np.int64:
        return envs
    if not isinstance(space, (*_CHOICES, spaces.MultiBinary, spaces.Box)):
        return envs
    start, counts = _whole(space)
    combinations = math.prod(counts)
    joint = joint or mask == (combinations,) != (sum(counts),)
    if len(counts) > 1 and not joint and sum(counts) <= _MOST_CHOICES:
        return _OwnActions(envs, spaces.MultiDiscrete(counts), start=np.asarray(start).astype(space.dtype))
    if not counts or combinations > _MOST_CHOICES:
        what = "combinations, each of which becomes an action" if joint else "choices"
        number = combinations if joint else sum(counts)
        raise ConfigError(f"the action space {space} has {number or 'no'} {what}; it must have 1 to {_MOST_CHOICES}")
    parts = np.stack(np.unravel_index(np.arange(combinations), counts), -1)
    own = parts.reshape(combinations, *(space.shape or ())) + start
    return _OwnActions(envs, spaces.Discrete(combinations), table=own.astype(space.dtype))


def _is_bounded(space: spaces.Box) -> bool:
    """Whether its range is one of numbers that float32 has; its greatest number stands for none."""
    with np.errstate(over="ignore"):
        bounds = np.array([space.low, space.high]).astype(np.float32)
    return bool((np.abs(bounds) < np.finfo(np.float32).max).all())


def _whole(space: Any) -> tuple[Any, list[int]]:
    """The least of each number of a space, and how many there are."""
    if isinstance(space, spaces.Box):
        low = space.low.astype(object)  # Python's whole numbers: differences of int64 overflow
        return low, [int(high) - int(one) + 1 for one, high in zip(low.flat, space.high.flat, strict=True)]
    if isinstance(space, spaces.MultiBinary):
        return 0, [2] * int(np.prod(space.shape))
    counts = space.n if isinstance(space, spaces.Discrete) else space.nvec
    return np.asarray(space.start, np.int64), np.ravel(counts).tolist()


# ---- observations ----


class Observed(TransformObservation):
    inputs: dict[str, dict[str, Any]]
    """Name -> what `_described` gives, for `realm export`."""


def _described(path: _Path, own: Any, space: Any) -> dict[str, Any]:
    """What `_numbers` makes of the part of an observation at these keys, as JSON has it: the space; then each number as
    `one_hot`, side by side, with the least value and the count of each; or the axes in another order (`transpose`); and
    at last `shape` and `dtype` of the array."""
    steps: dict[str, Any] = {"path": list(path), "space": " ".join(str(own).split())}
    if isinstance(own, _CHOICES):
        start, counts = _whole(own)
        steps["one_hot"] = [list(pair) for pair in zip(np.ravel(start).tolist(), counts, strict=True)]
    elif len(own.shape) == 3 and own.shape != space.shape:
        steps["transpose"] = [1, 2, 0]
    return {**steps, "shape": list(space.shape), "dtype": str(space.dtype)}


def _parts(space: spaces.Space[Any], path: _Path = ()) -> Iterator[tuple[_Path, Any]]:
    """Keys and space of every leaf of a Dict or Tuple, which may have others in it. Raises ConfigError."""
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        for key, inner in space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces):
            yield from _parts(inner, (*path, key))
    elif isinstance(space, (spaces.Box, *_CHOICES, spaces.MultiBinary)) and 0 not in (space.shape or ()):
        yield path, space
    else:
        raise ConfigError(
            f"the observation space is or has {space}; it must be a Box, Discrete, MultiDiscrete, MultiBinary, or a "
            "Dict or Tuple of these, with one number at least; wrap the environment into one that gives these"
        )


def _named(parts: Iterator[tuple[_Path, Any]]) -> dict[str, tuple[_Path, Any]]:
    """Name -> keys and space of each leaf. Raises ConfigError if two get the same name."""
    named: dict[str, tuple[_Path, Any]] = {}
    for path, space in parts:
        name = MASK if path and path[-1] in _MASK_KEYS else ".".join(map(str, path)) or "state"
        if name in named:
            raise ConfigError(
                f"the observations {named[name][0]} and {path} would both be called {name!r}; rename one of these keys"
            )
        named[name] = path, space
    return named


def _part(obs: Any, path: _Path) -> Array:
    for key in path:
        obs = obs[key]
    return np.asarray(obs)


def _number_space(space: Any) -> spaces.Box:
    """The space of what `_numbers` gives: images as they are but with channels last, f64 as f32, choices one-hot."""
    if isinstance(space, _CHOICES):
        return spaces.Box(0.0, 1.0, (sum(_whole(space)[1]),), np.float32)
    if isinstance(space, spaces.MultiBinary):
        return spaces.Box(0, 1, space.shape, np.int8)
    with np.errstate(over="ignore"):
        low, high = (_numbers(space, bound[None], "")[0] for bound in (space.low, space.high))
    return spaces.Box(low, high, low.shape, dtype=low.dtype.type)


def _mask_space(part: tuple[_Path, Any], action: Any) -> spaces.Box:
    """Raises ConfigError unless it has a number for each action."""
    (path, space), wanted = part, (int(np.sum(getattr(action, "nvec", getattr(action, "n", 0)))),)
    if space.shape != wanted:
        raise ConfigError(
            f"the observation {path[-1]!r} is {space}, but what has this name is a mask of the legal actions, a number "
            f"for each choice of the action space {action}; give it another name if it is none"
        )
    return spaces.Box(0, 1, wanted, np.bool_)  # type: ignore[arg-type]  # its stubs know numbers alone


def _numbers(space: Any, array: Array, label: str) -> Array:
    """array: [E, ...] of `space`. Returns [E, ...] with one axis more at least. Raises ContractError for a choice that
    is not of the space."""
    if isinstance(space, _CHOICES):
        start, counts = _whole(space)
        chosen = (array - start).reshape(len(array), -1)
        if (wrong := (chosen < 0) | (chosen >= counts)).any():
            raise ContractError(f"{label} is {array[wrong.any(-1)][0]}, which is not of {space}")
        hot = np.zeros((len(array), sum(counts)), np.float32)
        np.put_along_axis(hot, (chosen + np.cumsum([0, *counts[:-1]])).astype(np.int64), 1.0, axis=1)
        return hot
    array = array if array.ndim > 1 else array[:, None]
    wide = array.dtype.kind == "f" and array.dtype.itemsize > 4
    if wide or array.dtype.name in ("uint16", "uint32", "uint64"):  # of these torch knows little
        return array.astype(np.float32)
    if array.dtype == np.uint8 and min(array.shape[-2:]) >= _IMAGE_SIDE:
        if array.ndim == 3:
            return array[..., None]
        if array.ndim == 4 and array.shape[1] <= _MOST_CHANNELS:
            return np.ascontiguousarray(np.moveaxis(array, 1, -1))
    return array


def obs_fields(envs: VectorEnv[Any, Any, Any]) -> Fields:
    """Name -> shape and dtype of one environment's observation."""
    space = envs.single_observation_space
    assert isinstance(space, spaces.Dict)
    return {name: Field(part.shape or (), str(part.dtype)) for name, part in space.spaces.items()}


def step_fields(envs: VectorEnv[Any, Any, Any], each: bool = False) -> Fields:
    """`discount`, if an environment offers a number `duration`: how long its last step took, in usual ones. `credit`,
    if it offers that, f32 [A]: what each number of the action is paid for itself. each: the algorithm can use this one;
    else it raises ConfigError."""
    offered = [name for name in ("duration", "credit") if offers(envs, name)]
    for name in offered:  # an environment that was made again has none before its first step, either
        if not envs.unwrapped.envs[0].has_wrapper_attr(name):  # type: ignore[attr-defined]
            raise ConfigError(f"metadata names {name!r}, and the environment has none yet; set it in __init__")
    fields = {"discount": Field((), "float32")} if "duration" in offered else {}
    if "credit" in offered:
        if not each:
            raise ConfigError("the reward pays each number of an action alone; that needs PPO with ppo.ratio = 'each'")
        fields["credit"] = Field(tuple(envs.single_action_space.shape or ()), "float32")
    return fields


def offers(envs: VectorEnv[Any, Any, Any], name: str) -> bool:
    """Whether `metadata["realm"]` of the environments, behind their wrappers, names this attribute. One that has it by
    chance, such as a counter `env_steps` of its own, means something else."""
    vector = envs.unwrapped
    return isinstance(vector, SyncVectorEnv) and name in vector.envs[0].metadata.get("realm", ())


def frames_before(obs: Fields, before: int) -> Fields:
    """The memory of a policy that looks back (`Spec.state`): the last `before` observations, but for the mask."""
    seen = {name: field for name, field in obs.items() if name != MASK} if before else {}
    return {name: Field((before, *field.shape), field.dtype) for name, field in seen.items()}


def attention_memory(layers: int, steps: int, width: int) -> Fields:
    """That of `realm.algorithms.attention.AttentionNetwork`."""
    return {"rows": Field((layers, steps, 2 * width), "float32"), "age": Field((), "int64")}


def action_spec(envs: VectorEnv[Any, Any, Any], kind: type[spaces.Space[Any]] | None = None) -> ActionSpec:
    """The action space as an ActionSpec. kind: `spaces.Discrete` or `spaces.Box`, what the algorithm needs; None: any.

    Raises ConfigError for another one, and for a Box that has no bounds.
    """
    space: Any = envs.single_action_space
    if isinstance(space, spaces.Discrete) and kind in (None, spaces.Discrete):
        return ActionSpec(n=int(space.n))
    if isinstance(space, spaces.MultiDiscrete):
        if kind is None:
            return ActionSpec(nvec=tuple(space.nvec))
        if kind is spaces.Discrete and math.prod(space.nvec.tolist()) <= _MOST_CHOICES:
            return ActionSpec(n=math.prod(space.nvec.tolist()))  # of environments that `make_vec(joint=True)` makes
    if isinstance(space, spaces.Box) and _is_bounded(space) and len(space.low) and kind in (None, spaces.Box):
        return ActionSpec(low=tuple(map(float, space.low)), high=tuple(map(float, space.high)))
    discrete = "Discrete, MultiDiscrete, MultiBinary or a Box of whole numbers"
    box = "a Box of a float or more, whose bounds are finite and not the greatest there are"
    wanted = f"{discrete}, or {box}" if kind is None else discrete if kind is spaces.Discrete else box
    own: Any = getattr(envs.unwrapped, "single_action_space", space)
    wrap = "gymnasium.wrappers.TransformAction makes one of it (docs/your-own.md)"
    raise ConfigError(f"the action space is {own}; it must be {wanted}; {wrap}")
