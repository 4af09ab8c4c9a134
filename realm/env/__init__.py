"""The realm: the grid world "Back to the Realm" for gymnasium, as `Realm-v0`.

See `realm_env.py` for what the environments take and give, `physics.py` for the rules, `map.py` for maps, `protocol.py`
for the game's own objects.
"""
