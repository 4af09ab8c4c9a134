"""Realm: an open, fast and readable distributed PPO training framework. See docs/architecture.md."""

__version__ = "0.1.0"
