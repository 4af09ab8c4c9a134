"""Brings what is at the top of a checkout, `diy/` and `conf/`, into the installed package as `realm/builtin/`.

Everything else about the distribution is in pyproject.toml. `realm/user.py: BUILT_IN` is where it is looked for.
"""

from setuptools import find_packages, setup

built_in = [*find_packages(include=["diy", "diy.*"]), "conf"]
setup(
    packages=[*find_packages(include=["realm", "realm.*"]), *(f"realm.builtin.{name}" for name in built_in)],
    package_dir={"realm.builtin.diy": "diy", "realm.builtin.conf": "conf"},
)
