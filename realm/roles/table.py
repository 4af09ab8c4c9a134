"""The table of roles: one row each. All properties that depend on a role's name are here.

Read by the supervisor (which roles to start, to wait for, to stop first), by the environment of a process (threads,
devices) and by the command line (names). The module with the role's name holds its code.
"""

from __future__ import annotations

from dataclasses import dataclass

from realm.config.plan import Plan


@dataclass(frozen=True)
class Row:
    """One role.

    answers    binds an address that other roles ask; it stops after the roles that ask
    weights    holds a model, so its process needs torch
    device     its model is on the plan's device; all other roles use the CPU
    optional   training goes on without it: no role waits for it, and it has a low priority
    spare      what it loses when it is killed is little: so it is the first that the system ends when memory is gone
    trains     makes the updates: each start of it is an epoch, and it ends with a last checkpoint
    plays      runs the user's workflow, which may end by itself
    stores     holds the samples; who plays must know when they are lost
    """

    answers: bool = False
    weights: bool = False
    device: bool = False
    optional: bool = False
    spare: bool = False
    trains: bool = False
    plays: bool = False
    stores: bool = False


ROLES = {
    "buffer": Row(answers=True, stores=True),
    "model_pool": Row(answers=True),
    "learner": Row(weights=True, device=True, trains=True),
    "actor": Row(answers=True, weights=True, device=True),
    "aisrv": Row(spare=True, plays=True),
    "evaluator": Row(weights=True, optional=True, spare=True),
}
"""In the order of their start."""


def processes(role: str, plan: Plan) -> int:
    """The number of processes of a role."""
    counts = {"aisrv": plan.workers, "actor": int(not plan.predict_local), "evaluator": int(plan.evaluator)}
    return counts.get(role, 1)


def holds_weights(role: str, plan: Plan) -> bool:
    """Whether a role's process needs torch; workers do if they predict locally."""
    return ROLES[role].weights or (ROLES[role].plays and plan.predict_local)
