"""The oracle: the highest score that an episode allows, and a play that comes close.

For `realm oracle`, `realm eval` and everybody who measures agents: `make_oracle`
prepares a map, a start and an end; `bound` gives the score that no policy can beat with a set of treasures, `plans` the
best orders to take them in, `solve` both and the best plan played by the rules, `play_sets` that for many sets.

From the ground up: lattice -> distances -> legs -> lengths -> bounding (the bound) -> orders (plans) -> fields -> beam
(the search) -> solving (the play).
"""

from realm.env.oracle.bounding import Bound, Oracle, bound, bounds, make_oracle, scores, set_ids, set_index
from realm.env.oracle.cache import CACHE
from realm.env.oracle.orders import Plan, plans
from realm.env.oracle.solving import Played, Run, Solution, make_player, play_sets, replay, solve

__all__ = [
    "CACHE",
    "Bound",
    "Oracle",
    "Plan",
    "Played",
    "Run",
    "Solution",
    "bound",
    "bounds",
    "make_oracle",
    "make_player",
    "plans",
    "play_sets",
    "replay",
    "scores",
    "set_ids",
    "set_index",
    "solve",
]
