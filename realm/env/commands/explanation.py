"""What a trained policy thinks of an observation: shown by `realm record --out episode.html`."""

from __future__ import annotations

from typing import NamedTuple

import torch

from realm.contract import Array, Arrays
from realm.learn.evaluation import Player


class Explanation(NamedTuple):
    """Of N observations; None where the agent cannot say."""

    probability: Array | None  # f32 [N, A], of each discrete action
    value: Array | None  # f32 [N], by the critic


@torch.inference_mode()
def explain(player: Player, obs: Arrays) -> Explanation:
    """Ask an agent with `greedy` (`contract.Agent`), and the critic of a network of PPO (`algorithms.ppo.Network`) if
    the checkpoint has its weights."""
    agent = player.agent
    if not hasattr(agent, "greedy"):
        return Explanation(None, None)
    seen = {name: torch.from_numpy(array) for name, array in obs.items()}
    logits = agent.greedy(seen).get("logits")
    critic = None if any(name.startswith("critic") for name in player.lacking) else getattr(agent.model, "critic", None)
    return Explanation(
        None if logits is None else logits.float().softmax(-1).numpy(),
        None if critic is None else critic(seen).float().numpy(),
    )
