"""Plays given layouts with a trained model, one episode each, and collects what they came to.

Called by `realm eval` and by the tools. An environment that accepts layouts has `metadata["layouts"]` true. Then
`reset(options={"layouts": [...]})` numbers the episodes of all its environments together from 0, episode n plays layout
n (modulo the number of layouts), and `info["episode"]["turn"]` is n. It also reports score, length, missed and
reached_end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from realm.contract import Array
from realm.errors import UserCodeError
from realm.learn.evaluation import SHOWN_EVERY, Predict, reported, steps_of

if TYPE_CHECKING:
    from realm.watch.progress import Show

LAYOUT_STATS = ("turn", "score", "length", "missed", "reached_end")


class Outcome(NamedTuple):
    """The results of K layouts, one episode each; arrays [K] in the order of the layouts."""

    steps: Array  # i64
    score: Array  # f64
    missed: Array  # i64, treasures not collected
    reached_end: Array  # bool
    stats: dict[str, Array]  # all statistics that the environment reports
    actions: list[Array]  # per episode [T, ...] with keep_actions, else an empty list


def plays_layouts(envs: Any) -> bool:
    """Whether these environments accept layouts, as `evaluate_layouts` needs."""
    return bool((getattr(envs, "metadata", None) or {}).get("layouts", False))


def evaluate_layouts(
    envs: Any,
    predict: Predict,
    layouts: Sequence[Any],
    explore: float = 0.0,
    seed: int = 0,
    show: Show | None = None,
    keep_actions: bool = False,
) -> Outcome:
    """Play each layout once, in all environments at the same time.

    layouts: in the environment's form; in the realm usr_confs or lists of treasure ids. explore: 0 takes the greedy
    action, 1 samples it. Environments without a layout left get no more predictions.
    """
    count, num_envs = len(layouts), envs.num_envs
    over = np.zeros(count, np.bool_)
    stats: dict[str, Array] = {}
    actions: list[Array] = [np.zeros(0)] * count if keep_actions else []
    env_steps = 0
    while not over.all():  # again with those that are left, where the environments failed
        left = np.flatnonzero(~over)
        awake, begun = np.ones(num_envs, np.bool_), num_envs
        history, since = list[Array](), np.zeros(num_envs, np.int64)
        obs, _ = envs.reset(seed=seed, options={"layouts": [layouts[k] for k in left]})
        for t, (action, _, ended, _, lost, info) in enumerate(steps_of(envs, predict, obs, explore, awake)):
            if lost.any():
                break
            if keep_actions:
                history.append(action)
            env_steps += int(awake.sum())
            if not ended.any():
                if show and t % SHOWN_EVERY == 0:
                    show(int(over.sum()), env_steps)
                continue
            episode = reported(info)
            if missing := [name for name in LAYOUT_STATS if name not in episode]:
                raise UserCodeError(f"the environment accepts layouts, so its info['episode'] must have {missing[0]!r}")
            turn = np.asarray(episode["turn"])
            # later turns repeat the layouts; counting them would favour short episodes
            taken = np.flatnonzero(ended & info["_episode"] & (turn < len(left)))
            played = left[turn[taken]]
            for name, values in episode.items():
                array = np.asarray(values)
                stats.setdefault(name, np.zeros(count, array.dtype))[played] = array[taken]
            for e, k in zip(taken, played, strict=True) if keep_actions else ():
                actions[k] = np.array([row[e] for row in history[since[e] : t + 1]])
            over[played] = True
            since[ended] = t + 2  # the next step only resets
            if begun >= len(left):
                awake &= ~ended
            begun += int(ended.sum())
            if show:
                show(int(over.sum()), env_steps)
            if over.all():
                break
    if "turn" in stats:
        stats["turn"] = np.arange(count)
    return Outcome(
        stats["length"].astype(np.int64),
        stats["score"].astype(np.float64),
        stats["missed"].astype(np.int64),
        stats["reached_end"].astype(np.bool_),
        stats,
        actions,
    )
