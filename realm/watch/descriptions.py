"""What a curve shows, in a sentence, and which curves TensorBoard shows first. Used by `tensorboard.py`."""

from __future__ import annotations

FIRST = {
    "How well it plays": {
        "Score or return of an episode": r"^(episode|evaluation)/(score|return)$",
        "Length of an episode": r"^(episode|evaluation)/length$",
        "Env steps per second": r"^system/env_steps_per_s$",
    },
    "How it learns": {
        "KL of an update": r"^learner/approx_kl$",
        "Entropy of the policy": r"^learner/entropy$",
        "Explained variance of the critic": r"^learner/explained_variance$",
        "Losses": r"^learner/(.+_)?loss$",
    },
}
"""Category -> title of a chart -> tags, for TensorBoard's custom scalars."""

_EPISODE = {
    "return": "sum of the rewards of an episode",
    "score": "the environment's own score of an episode",
    "length": "env steps of an episode",
    "best": "mean of the best model so far",
}
_SPREAD = {
    "_median": "median", "_deviation": "standard deviation", "_least": "least", "_greatest": "greatest",
    "_sampled": "with sampled actions",
}  # fmt: skip
_LEARNER = {
    "policy_lag_updates": "how many updates older than the learner's the weights were that acted; mean of a batch",
    "policy_lag_updates_max": "the same, the most of a batch",
    "policy_lag_s": "seconds since the weights that acted went out",
    "lr": "learning rate",
    "entropy_coef": "weight of the entropy bonus",
    "gamma": "discount of a step",
    "skipped": "gradient steps left out, since they were not finite",
    "loss": "what is minimised: the sum of all losses, each times its weight",
    "policy_loss": "PPO's clipped loss of the policy",
    "value_loss": "loss of the critic",
    "grad_norm": "length of the gradient before it is scaled down",
    "entropy": "entropy of the policy: near 0 it always does the same",
    "approx_kl": "KL from the policy that acted to the new one; above 0.05 an update is a large one",
    "clip_fraction": "share of rows that PPO's clip has cut off",
    "ess": "effective sample size: 1 where the policy that acted is the one that learns",
    "explained_variance": "how much of the returns the critic explains: 1 is all, 0 nothing",
    "value_mean": "mean of what the critic estimates",
    "reward_mean": "mean reward of a step, as the learner gets it",
    "rows": "rows of a batch that count",
    "sample_reuse": "how often a sample is used",
    "versions_in_batch": "how many versions of the weights have played a batch",
    "update_s": "seconds of an update",
    "temperature": "SAC's weight of the entropy",
}
_ENDINGS = {
    "_per_s": "per second, all processes of the role together",
    "_share": "share of a core, all processes of the role together",
    "_median_ms": "median, in milliseconds",
    "_p99_ms": "99 of 100 take less, in milliseconds",
    "_ms": "in milliseconds",
    "_mb": "in MiB",
}


def description(tag: str) -> str:
    """What the curve of this tag shows."""
    group, _, name = tag.partition("/")
    if group in ("episode", "evaluation"):
        of = "of training" if group == "episode" else "of the evaluations"
        marks = [word for end, word in _SPREAD.items() if end in name] or ["mean"]
        for end in _SPREAD:
            name = name.replace(end, "")
        return ", ".join([f"{_EPISODE.get(name, f'{name!r} of an episode')} {of}", *marks])
    if group == "learner":
        return _LEARNER.get(name, f"{name!r}, as the agent reports it; mean since the last point")
    if tag == "system/env_steps_per_s":
        return "env steps of all workers per second"
    ending = next((words for end, words in _ENDINGS.items() if name.endswith(end)), "its newest value")
    if group == "system":
        return f"{name}: {ending}"
    return f"{name!r}, as the workflow reports it; mean since the last point"
