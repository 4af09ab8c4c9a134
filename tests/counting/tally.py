"""Names of chunks, in files that every process of a run appends to: so what was lost is counted, not estimated."""

from collections import Counter
from pathlib import Path

import numpy as np


def note(folder, what, chunks):
    """Write down chunks, if there is a folder for it."""
    if folder:
        names = np.stack([chunks.worker, chunks.incarnation, chunks.env, chunks.seq], 1).astype(np.int64)
        with open(Path(folder, what), "ab") as file:
            file.write(names.tobytes())  # one write, which other processes do not cut


def compare(folder):
    """(worker, incarnation) -> chunks that were played, those of them that were not trained on, and of these the ones
    that a later one was; and how many were trained on twice."""
    played, trained = ([tuple(row) for row in _read(folder, what)] for what in ("played", "trained"))
    last, once = {}, Counter(trained)
    for worker, incarnation, env, seq in trained:
        last[worker, incarnation, env] = max(seq, last.get((worker, incarnation, env), -1))
    rows = {}
    for name in played:
        row = rows.setdefault(name[:2], [0, 0, 0])
        row[0] += 1
        row[1] += name not in once
        row[2] += name not in once and name[3] < last.get(name[:3], -1)
    return rows, sum(once.values()) - len(once)


def _read(folder, what):
    return np.fromfile(Path(folder, what), np.int64).reshape(-1, 4).tolist()
