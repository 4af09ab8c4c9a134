"""The realm: the grid world "Back to the Realm" for gymnasium.

Importing this package registers `Realm-v0`; it imports gymnasium and nothing else, so it is light. See
`realm_env.py` for what the environments take and give, `physics.py` for the rules, `map.py` for maps,
`protocol.py` for the game's own objects.
"""

import gymnasium

gymnasium.register(
    id="Realm-v0",
    entry_point="realm.env.realm_env:RealmEnv",
    vector_entry_point="realm.env.realm_env:RealmVectorEnv",
)
