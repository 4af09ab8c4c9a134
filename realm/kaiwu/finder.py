"""Finds the modules of a project by path, and the modules of KaiwuDRL that its code imports.

A project's packages often have no `__init__.py`, and such a package loses against any other of that name on the import
path. So one finder stands before all others. It takes top-level names that are in the project's folder, and names of
KaiwuDRL's packages (`surface.py`).
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

from realm.errors import UserCodeError
from realm.kaiwu import surface

_SERVER = ("kaiwudrl.server.", "kaiwudrl.common.utils.")
"""Only a project's train_test.py imports these."""


def install(root: Path, package: str) -> None:
    """Put the finder in front. Raises UserCodeError if another package of that name would win all the same."""
    loaded = sys.modules.get(package)
    if package in sys.stdlib_module_names or (loaded is not None and not _lies_in(loaded, root)):
        where = getattr(loaded, "__file__", None) or "Python itself"
        raise UserCodeError(
            f"{root / package}: the name {package!r} belongs to {where} in this process, so this folder cannot be "
            "imported; rename the folder, and algo with it"
        )
    sys.path[:] = [str(root), *(place for place in sys.path if place not in ("", str(root)))]
    sys.meta_path.insert(0, _Finder(root))
    importlib.invalidate_caches()


def _lies_in(module: ModuleType, root: Path) -> bool:
    return any(root in (Path(place), *Path(place).parents) for place in getattr(module, "__path__", []))


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, root: Path) -> None:
        self._root = root

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        top = fullname.partition(".")[0]
        if top in surface.PACKAGES:
            if f"{fullname}.".startswith(_SERVER):
                raise UserCodeError(
                    f"{fullname} belongs to the server of KaiwuDRL, which only its own train_test.py uses; run "
                    f"`python train_test.py --config {self._root}/conf/configure_app.toml` of Realm instead"
                )
            if surface.contents(fullname) is None:
                return None
            spec = ModuleSpec(fullname, self, is_package=True)
            spec.submodule_search_locations = []
            return spec
        if path is not None or top in sys.stdlib_module_names or top == "realm":
            return None
        folder = self._root / top
        if folder.is_dir() and not (folder / "__init__.py").is_file():
            if not any(folder.glob("*.py")) and not any(folder.glob("*/*.py")):
                return None  # like log/, or the folder that wandb makes
            spec = ModuleSpec(fullname, None, is_package=True)
            spec.submodule_search_locations = [str(folder)]
            return spec
        return PathFinder.find_spec(fullname, [str(self._root)])

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__.update(surface.contents(module.__name__) or {})
