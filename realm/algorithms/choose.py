"""How an action is chosen from the policy's logits; called by `ppo.py: act`.

A kernel, since a forward of a few rows takes no longer than the twenty torch operations that this would be.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from realm.jit import jit


@jit
def choose(
    logits: NDArray[np.float32],
    legal: NDArray[np.bool_],
    explore: NDArray[np.float32],
    uniform: NDArray[np.float32],
    action: NDArray[np.int64],
    log_prob: NDArray[np.float32],
) -> None:
    """Draw a legal action of each row from the policy, softmax(logits), where explore is 1, or take the most likely one
    where it is 0; in between it is the temperature, softmax(logits / explore).

    logits: f32 [n, A]; legal: bool [n, A]; explore: f32 [n]; uniform: f32 [n], from [0, 1)
    Writes action, i64 [n], and log_prob, f32 [n]: of that action under softmax(logits), whatever explore is. A row
    without a legal action, such as of a final state, gets action 0 as one of A that are as likely.
    """
    actions = logits.shape[1]
    weight = np.empty(actions, np.float32)
    for i in range(len(logits)):
        best, top = 0, np.float32(-np.inf)
        for a in range(actions):
            if legal[i, a] and logits[i, a] > top:
                best, top = a, logits[i, a]
        if not legal[i].any():
            action[i], log_prob[i] = 0, -np.log(np.float32(actions))
            continue
        total = np.float32(0.0)
        for a in range(actions):
            weight[a] = np.exp(logits[i, a] - top) if legal[i, a] else np.float32(0.0)
            total += weight[a]
        action[i] = best
        if explore[i] > 0.0:
            left = np.float32(0.0)
            for a in range(actions):
                if explore[i] != 1.0:
                    weight[a] = weight[a] ** (np.float32(1.0) / explore[i])
                left += weight[a]
            left *= uniform[i]
            for a in range(actions):  # the action at which the sum of weights exceeds the drawn part of it
                left -= weight[a]
                if left < 0.0:
                    action[i] = a
                    break
        log_prob[i] = logits[i, action[i]] - top - np.log(total)
