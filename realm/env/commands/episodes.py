"""One episode of a trained model, for `realm record` and `realm play`: played, told in a line, and drawn to a file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from gymnasium import spaces
from loguru import logger

from realm.apart import apart
from realm.commands.parser import writing
from realm.config.load import RunConfig
from realm.contract import Array, Arrays
from realm.env import draw, options, physics
from realm.env.draw import Recording
from realm.env.layouts import plays_layouts
from realm.env.realm_env import RealmEnv
from realm.errors import ConfigError, UserError
from realm.rollout.rounds import close
from realm.user import folder_of, make_envs
from realm.watch.progress import busy

if TYPE_CHECKING:
    from realm.learn.evaluation import Player

PICTURES = (".gif", ".png", ".html")


def treasure_ids(text: str) -> list[int]:
    """ "3,7,12" as a list; whether these are ids is checked with the other options."""
    parts = [part.strip() for part in text.split(",")] if text.strip() else []
    if not all(part.isdecimal() for part in parts):
        raise ConfigError(f"--treasures {text}: it must be ids with commas between, like 3,7,12")
    return [int(part) for part in parts]


def chosen(env: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The table [env] with these options, also in each of its layouts, which may name other points."""
    points, layouts = {key: value for key, value in given.items() if key != "map"}, env.get("layouts")
    of_each = {"layouts": [{**options.of_layout(one), **points} for one in layouts]} if layouts and points else {}
    return {**env, **given, **of_each}


def fixed_options(env: Mapping[str, Any], treasures: list[int] | None, random: int | None, seed: int) -> dict[str, Any]:
    """The options `env` (the table [env]) with one certain episode in place of random ones: with these treasures, or
    `random` ones drawn from `seed`, or as `env` has it."""
    conf = options.of_table(env)
    layouts = env.get("layouts")
    if treasures is not None or random is not None:
        conf = {key: value for key, value in conf.items() if key not in options.TREASURE_KEYS}
        conf |= {"treasure_id": treasures} if treasures is not None else {"treasure_num": random}
        layouts = None
    drawn = RealmEnv(usr_conf=conf, layouts=layouts, map=env.get("map", "default"), observation="none")
    drawn.reset(seed=seed)
    state = drawn.state
    fixed = {name: int(getattr(state, name)[0]) for name in ("start", "end", "max_step")}
    fixed |= {"treasure_random": 0, "treasure_id": np.flatnonzero(state.planned[0]).tolist()}
    rest = {key: value for key, value in env.items() if key not in ("layouts", *options.TREASURE_KEYS)}
    return {**rest, **fixed}


def agent_episode(
    config: RunConfig,
    folder: Path,
    model: int | Literal["latest"],
    treasures: list[int] | None,
    random: int | None,
    seed: int,
    stochastic: bool,
) -> Recording:
    """An episode of a trained model.

    The model plays the environments of its own package; a `RealmEnv` plays the same actions for the picture, which
    gives the same episode, since with treasures fixed nothing in it is random.
    """
    if isinstance(names := config.env.get("map"), list):
        raise ConfigError(f"[env] of this run has {len(names)} maps; name the one to play, like --map generated:1")
    env = fixed_options(config.env, treasures, random, seed)
    with busy("the model plays"):
        actions, probability, value = _agent_plays(replace(config, env=env), folder, model, seed, stochastic)
    conf = options.of_table(env)
    recording = draw.record(RealmEnv(conf, map=env.get("map", "default"), observation="none"), actions)
    last = recording.moments[-1]
    if not (last.terminated or last.truncated) or len(recording.actions) != len(actions):
        raise ConfigError(
            f"{config.app.algo}: its episode of {len(actions)} steps is not one of the realm with the options of "
            "[env], so it cannot be drawn"
        )
    return recording._replace(probability=probability, value=value)


def is_realm(config: RunConfig, seed: int) -> bool:
    """Whether these environments can be the realm; asked before torch is loaded and kernels are compiled."""
    with apart(over=True):
        envs = make_envs(config, 1, seed)
        close(envs)
    space = getattr(envs, "single_action_space", None)
    return plays_layouts(envs) or ("id" not in config.env and bool(space == spaces.Discrete(physics.ACTIONS)))


def _agent_plays(
    config: RunConfig,
    folder: Path,
    model: int | Literal["latest"],
    seed: int,
    stochastic: bool,
) -> tuple[list[int], Array | None, Array | None]:
    """The T actions of a checkpoint's model in one episode, and what it thought before each, as
    `_explain` gives it: f32 [T, A] and f32 [T]."""
    # late: all of this is slow to import, torch above all, whose threads would only wait for each other over one row
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from realm.contract import PredictContext
    from realm.learn.checkpoint import find
    from realm.learn.evaluation import load_player

    try:
        player = load_player(config, find(folder, model), 1, seed)
    except UserError as error:
        if isinstance(error.__cause__, TypeError):  # the constructor has no such arguments
            text = "its environments take no options of Back to the Realm, as whose episode they shall be shown"
            raise ConfigError(f"{config.app.algo}: {text}") from error
        raise
    logger.info("the package {} plays ({})", config.app.algo, folder_of(config.app.algo))
    envs = player.envs
    slot, explore, first = np.zeros(1, np.int64), np.full(1, float(stochastic), np.float32), np.ones(1, np.bool_)
    obs, _ = envs.reset(seed=seed)
    actions, thoughts = list[int](), list[Any]()
    # one step more than an episode can have: then it is not an episode of the realm
    while len(actions) <= config.env["max_step"]:
        thoughts.append(_explain(player, obs))
        action, _ = player.predict(obs, PredictContext(slot, first, explore))
        obs, _, terminated, truncated, _ = envs.step(action)
        actions.append(int(action[0]))
        first = terminated | truncated
        if first[0]:
            break
    envs.close()
    probability, value = (None if one[0] is None else np.concatenate(one) for one in zip(*thoughts, strict=True))
    return actions, probability, value


def _explain(player: Player, obs: Arrays) -> tuple[Array | None, Array | None]:
    """What a trained policy thinks of N observations: how likely each discrete action is to it, f32 [N, A], and the
    value, f32 [N]; None where the agent cannot say.

    Asks an agent with `greedy` (`contract.Agent`), and the critic of a network of PPO (`algorithms.ppo.Network`) if the
    checkpoint has its weights.
    """
    import torch  # late, as above

    agent = player.agent
    if not hasattr(agent, "greedy"):
        return None, None
    seen = {name: torch.from_numpy(array) for name, array in obs.items()}
    critic = None if any(name.startswith("critic") for name in player.lacking) else getattr(agent.model, "critic", None)
    with torch.inference_mode():
        logits = agent.greedy(seen).get("logits")
        probability = None if logits is None else logits.float().softmax(-1).numpy()
        return probability, None if critic is None else critic(seen).float().numpy()


def summary(recording: Recording) -> str:
    """What happened in an episode, in a line."""
    last = recording.moments[-1]
    end = f"ran {last.ending}" if last.truncated else last.ending or "stopped"
    return (
        f"{end} in {last.steps} steps: score {last.score:.1f}, "
        f"treasures {last.taken} of {sum(last.planned)}, "
        f"flashes {int(recording.route[:, 2].sum())}"
    )


def write_recording(recording: Recording, out: Path, title: str) -> None:
    """Draw an episode to `out`: the whole of it (.gif, or as a page .html) or its end (.png)."""
    if out.suffix.lower() == ".html":
        with writing(out):
            out.write_text(draw.page(recording, f"{title}: {summary(recording)}"), "utf-8")
        what = "a page for any browser"
    elif out.suffix.lower() == ".gif":
        with busy("drawing"), writing(out):
            pictures = draw.frames(recording)
            draw.write_gif(pictures, out)
        what = f"{len(pictures)} frames"
    else:
        picture, what = draw.draw(recording.map, recording.moments[-1], recording.route, scale=2), "the end"
        with writing(out):
            draw.write_png(picture, out)
    print(f"drawn in {out} ({what}, {out.stat().st_size / 1e6:.1f} MB)")
