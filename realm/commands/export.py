"""The command `realm export`: writes a trained model's greedy policy as an ONNX file, and compares the two."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np

from realm.commands.files import check_file, writing
from realm.config.load import EVAL_SEED, RunConfig
from realm.contract import Array, PredictContext
from realm.errors import RunError
from realm.learn.evaluate import Player, load_player
from realm.learn.policy import own_actions
from realm.watch.progress import busy
from realm.watch.status import say

NUM_ENVS = 100
ROWS = 10_000  # observations to compare the file and the model on; a multiple of NUM_ENVS
LEAST_EQUAL = 0.99  # hidden layers in bfloat16 round: the two may differ where two actions are as good as each other
TOLERANCE = 1e-4  # of continuous actions, as a part of their range


def export(config: RunConfig, folder: Path, model: int | Literal["latest"], out: Path) -> None:
    """Write the checkpoint's policy to `out` and say on how many observations it acts as the model does.

    Raises UserError if this agent or machine cannot, RunError if file and model differ.
    """
    check_file("--onnx", out, (".onnx",))
    from realm.learn.checkpoint import find  # late: torch
    from realm.learn.export import OnnxPolicy, check_packages, write_onnx

    check_packages()
    checkpoint = find(folder, model)
    player = load_player(config, checkpoint, config.env, NUM_ENVS, EVAL_SEED)
    try:
        with busy("exporting"), writing(out):
            names, outputs = write_onnx(player.agent, player.spec, player.envs, out)
        fields = zip(names, player.spec.obs.values(), strict=True)
        inputs = ", ".join(f"{name} {field.dtype}{['N', *field.shape]}" for name, field in fields)
        say(f"{checkpoint.path} is written to {out} ({out.stat().st_size / 1e6:.1f} MB)")
        say(f"inputs: {inputs}".replace("'", ""))
        say(f"outputs: {', '.join(outputs)}")
        with busy("comparing"):
            equal = compare(player, OnnxPolicy(out))
    finally:
        player.envs.close()
    say(f"the same greedy actions as the model's on {equal.sum():,} of {len(equal):,} observations")
    if equal.mean() < LEAST_EQUAL:
        raise RunError(f"{out}: acts otherwise than the model, so do not use it; Agent.greedy must do as predict does")


def compare(player: Player, exported: Any) -> Array:
    """Whether the exported policy acts as the model does, on observations of sampled play; bool [ROWS]."""
    action_spec, equal = player.spec.action, list[Array]()
    within: Any = 0.0
    if action_spec.low:
        low, high = (
            own_actions(player.envs, np.array([bound], np.float32)) for bound in (action_spec.low, action_spec.high)
        )
        within = TOLERANCE * (high - low)
    slot, first, ended = np.arange(NUM_ENVS), np.ones(NUM_ENVS, np.bool_), np.zeros(NUM_ENVS, np.bool_)
    obs, _ = player.envs.reset(seed=EVAL_SEED)
    for _ in range(ROWS // NUM_ENVS):
        greedy, played = (
            player.predict(obs, PredictContext(slot, first, np.full(NUM_ENVS, explore, np.float32)))[0]
            for explore in (0.0, 1.0)
        )
        differs = np.abs(np.subtract(exported.act(obs), own_actions(player.envs, greedy), dtype=np.float64)) > within
        equal.append(~differs.reshape(NUM_ENVS, -1).any(-1))
        obs, _, terminated, truncated, _ = player.envs.step(played)
        first, ended = ended, terminated | truncated  # the step after an end is the reset
    return np.concatenate(equal)
