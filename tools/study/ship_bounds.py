"""Computes the oracle's bounds that come with Realm, so that `realm eval` answers at once on the default map.

    python tools/study/ship_bounds.py

Takes about two minutes. To be called after a change of the default map, of the game's rules or of the oracle's bound; a
slow test compares the file with what the oracle computes. The file is `realm/env/maps/default/bounds-<hash>.npz`; the
hash is of the map and of the question, so that a changed map never gets the bounds of the old one.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from realm.env import map as maps
from realm.env import options, oracle, report
from realm.watch.progress import measuring


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    start, end, max_step = (int(options.DEFAULTS[name]) for name in ("start", "end", "max_step"))
    ids = [point for point in options.IDS if point not in (start, end)]
    with measuring("the oracle's bounds of the default map") as show:
        steps = oracle.make_oracle(maps.default(), start, end, ids, max_step, report=show).steps
    file = report.shipped_bounds(maps.default(), start, end, ids, max_step)
    for old in file.parent.glob("bounds-*.npz"):
        old.unlink()
    np.savez_compressed(file, steps=steps)
    print(f"{file} ({file.stat().st_size / 1e3:.0f} kB)")


if __name__ == "__main__":
    main()
