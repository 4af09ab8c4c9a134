"""The roles: five that train, and the evaluator. Each module has one `run(job)` with one loop and imports no other.

They wait for each other in seven places, and `WAITS` lists them all. A role's log says the same words when a wait has
lasted a minute (`wire/control.py: Link.waits`). Behind each of them stands the same question, which stays open at
whoever is waited for: it is sent again over every new connection, and each 30 s, so a restart at either end costs time
and nothing else. Who waits calls `Link.tick` in every turn, so it reports, and stops when the run does.
"""

from __future__ import annotations

WAITS = {
    # an update: credits pay for all rounds that it needs (`policy/gate.py`)
    "question": "a worker's question, the first of a round, waits for an answer by weights that its credits pay for, "
    "until the learner has made the next update, or a refund or a refill of the credits lowers what it asks for",
    # as long as a held round
    "add": "a worker with a finished round waits for the answer to the one before it, until the buffer has taken or "
    "refused one",
    # an update; without memory no longer than the supervisor says so, each time for 5 s
    "held": "a round in the buffer waits for room, or the first question of the learner whose weights played it, "
    "until the learner has drawn a batch, or there is memory again",
    # a round of every worker, or a warm-up: `config/flow.py` refuses what could not come
    "batch": "the learner waits for a batch, until workers have added what it and the warm-up lack",
    # as long as the worker's question, and the way from the learner by the pool
    "parked": "a question at the actor waits for weights that are new enough, until the pool has sent them, or its "
    "worker asks for less",
    # `publish_every` updates; only a run at its limit waits for it, and not for longer than it is silent
    "evaluator": "the evaluator waits for a model that it has not judged, until the pool has a newer one",
    # `start_timeout_s`, after which the run ends
    "bound": "a role that has its address waits for the addresses of all others, until the last server has told its "
    "own",
}
"""The sentence of each wait, and above it what it lasts at most. (Nobody stands still for a question at the pool, which
waits for a model that its asker does not have: an actor or a worker goes on with its own.)"""
