"""Super Mario Bros. for any package of the zoo: `[env] id = "realm.zoo.mario:Mario-v0"` is one of gymnasium.

The class is in `game.py`, the emulator in `nes.py`, rewards in `rewards.py`, presses of buttons in `presses.py`.
"""

import gymnasium

gymnasium.register("Mario-v0", entry_point="realm.zoo.mario.game:Mario")
