"""Runs projects written for KaiwuDRL as they are: such a project as a package of Realm's own shape.

`project.py` turns the project's configuration into Realm's, with `algo = "realm.kaiwu"`, and checks its code in a
process of its own (`check.py`). From there on this folder is a user's package like any other: `config.py`,
`feature/definition.py`, `algorithm/agent.py`, `train_workflow.py`. The framework calls these four, and they call the
project's code (`code.py`), which finds the modules that it imports in `surface.py`. docs/from-kaiwu.md is the page for
users.
"""
