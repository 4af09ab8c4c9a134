"""Packages like `diy/` for other games, to copy from: a run names one with `algo`. Nothing else here imports them."""
