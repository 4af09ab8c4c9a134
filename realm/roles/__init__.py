"""The roles: five that train, and the evaluator. Each module has one `run(job)` with one loop and imports no other.

They wait for each other in eight places, and `WAITS` lists them all. A role's log says the same words when a wait has
lasted a minute (`wire/control.py: Link.waits`). Behind each of them stands the same question, which stays open at
whoever is waited for: it is sent again over every new connection, and each 30 s, so a restart at either end costs time
and nothing else. Who waits calls `Link.tick` in every turn, so it reports, and stops when the run does.
"""

from __future__ import annotations

from typing import NamedTuple


class Wait(NamedTuple):
    """who waits for `what`, what ends it (`until`), and what it lasts at most (`bound`)."""

    who: str
    what: str
    until: str
    bound: str

    def __str__(self) -> str:
        return f"{self.who} waits for {self.what}, until {self.until}"


WAITS = {
    "question": Wait(
        "a worker's question, the first of a round,",
        "an answer by weights that its credits pay for",
        "the learner has made the next update, or a refund or a refill of the credits lowers what it asks for",
        "an update: credits pay for all rounds that it needs (`policy/gate.py`)",
    ),
    "add": Wait(
        "a worker with a finished round",
        "the answer to the one before it",
        "the buffer has taken or refused one",
        "as long as a held round",
    ),
    "held": Wait(
        "a round in the buffer",
        "room, or the first question of the learner whose weights played it",
        "the learner has drawn a batch, or there is memory again",
        "an update; without memory no longer than the supervisor says so, each time for 5 s",
    ),
    "batch": Wait(
        "the learner",
        "a batch",
        "workers have added what it and the warm-up lack",
        "a round of every worker, or a warm-up: `config/flow.py` refuses what could not come",
    ),
    "parked": Wait(
        "a question at the actor",
        "weights that are new enough",
        "the pool has sent them, or its worker asks for less",
        "as long as the worker's question, and the way from the learner by the pool",
    ),
    "latest": Wait(
        "a question at the pool",
        "a model that its asker does not have",
        "the learner has published one",
        "nothing: an actor or a worker goes on with its own model meanwhile",
    ),
    "evaluator": Wait(
        "the evaluator",
        "a model that it has not judged",
        "the pool has a newer one",
        "`publish_every` updates; only a run at its limit waits for it, and not for longer than it is silent",
    ),
    "bound": Wait(
        "a role that has its address",
        "the addresses of all others",
        "the last server has told its own",
        "`start_timeout_s`, after which the run ends",
    ),
}
