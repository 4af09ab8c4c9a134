"""Super Mario Bros. for any package of the zoo: `[env] id = "realm.zoo.mario:Mario-v0"` is one of gymnasium.

The class is in `game.py`, a level in `level.py`, emulators in `emulators.py`, rewards in `rewards.py`, and presses of
buttons in `presses.py`.
"""

import gymnasium

gymnasium.register("Mario-v0", entry_point="realm.zoo.mario.game:Mario")
