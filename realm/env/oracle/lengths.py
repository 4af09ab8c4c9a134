"""The table of lengths: from every contact over every set of treasures to the end, by dynamic programming.

`fill` and `fill_all` are called by `bounding.make_oracle` and write `Oracle.fast` and `Oracle.value`. Sets of treasures
are numbers, smaller sets first, so each set only looks at sets that are done.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from realm.env.oracle.lattice import BOOST_STEPS, FAR, STEP, boost
from realm.env.oracle.legs import lower
from realm.jit import jit

# Length of a way from where the buff's disc is entered to where the buff is over at the latest: what it makes of its
# steps, one step until it counts, and a few in which one can walk along the rim of the disc before being inside.
HASTE = (BOOST_STEPS + 4) * STEP


@jit
def _needed(rest: NDArray[np.int32], way: NDArray[np.int32], needed: NDArray[np.int64]) -> int:
    """Write those contacts of a disc to `needed` which are not on ways that go on over another contact of it, and
    return their number. rest: i32 [N] from them to the end; way: i32 [N, N] from [., a] to [c, .]."""
    n = 0
    for c in np.argsort(rest):
        if rest[c] >= FAR:
            break
        for m in range(n):
            if rest[needed[m]] + way[needed[m], c] <= rest[c]:
                break
        else:
            needed[n] = c
            n += 1
    return n


@jit
def fill_all(
    leg: NDArray[np.int32], last: NDArray[np.int32], block: NDArray[np.int32], value: NDArray[np.int32]
) -> None:
    """Oracle.value, FAR so far."""
    layers, buffs, sets, count = value.shape
    n = len(block) - 3
    with_buff = np.full((layers, block[n + 1] - block[n], sets), FAR, dtype=np.int32)  # what `_with_buff` gives
    for b in range(buffs):
        if b == 0:
            value[:, 0, 0] = last[0]
        else:
            # as with one buff less to come, but the way to the next contact is one with the buff
            onward = np.full((layers, sets, count), FAR, dtype=np.int32)
            if b == 1:
                onward[:, 0] = last[1]
            fill(leg[1], block, value[:, b - 1], with_buff, onward)
            with_buff = _with_buff(leg, block, onward)
        fill(leg[0], block, value[:, b], with_buff, value[:, b])


@jit
def fill(
    leg: NDArray[np.int32],
    block: NDArray[np.int32],
    value: NDArray[np.int32],
    with_buff: NDArray[np.int32],
    out: NDArray[np.int32],
) -> None:
    """Lower lengths over all of a set to the end, `out` (i32 [K, 2**n, A]), where one of its treasures comes next, from
    where it is as `value` says (the same, perhaps `out` itself: sets only ever look at smaller ones), or the buff, from
    where it is as `with_buff` says (i32 [K, D, 2**n]). leg: i32 [K, C, A]."""
    n = len(block) - 3
    for left in range(out.shape[1]):
        for j in range(n):
            if left >> j & 1:
                rest = value[:, left ^ (1 << j), block[j] : block[j + 1]].copy()
                _lower_all(leg, block, rest, left, j, out)
        _lower_all(leg, block, with_buff[:, :, left].copy(), left, n, out)


@jit
def _lower_all(
    leg: NDArray[np.int32],
    block: NDArray[np.int32],
    rest: NDArray[np.int32],
    left: int,
    j: int,
    out: NDArray[np.int32],
) -> None:
    """Lower `out` of the set `left` (as in `fill`) by ways that go to the disc of block j first; rest: i32 [K, N],
    what is left from its contacts."""
    layers, begin, end = len(rest), block[j], block[j + 1]
    n = len(block) - 3
    needed = np.empty(end - begin, dtype=np.int64)
    for f in range(layers):
        for m in range(_needed(rest[f], leg[0, begin:end, begin:end], needed)):
            c = needed[m]
            for k in range(layers - f):
                # contacts of the set itself are never asked for
                for i in range(n + 2):
                    if i >= n or not left >> i & 1:
                        lower(
                            out[f + k, left, block[i] : block[i + 1]],
                            leg[k, begin + c, block[i] : block[i + 1]],
                            rest[f, c],
                        )


@jit
def _with_buff(leg: NDArray[np.int32], block: NDArray[np.int32], onward: NDArray[np.int32]) -> NDArray[np.int32]:
    """Length from each of the D contacts of the buff, just taken, over all of a set to the end; i32 [K, D, 2**n].
    onward: i32 [K, 2**n, A], the same from all contacts if the way to the next one is the last with the buff.

    Ways between contacts that begin within HASTE of the buff are those of a hero who has it, and the others are not.
    So this goes forward, over the sets that can be taken in that time: of two ways to the same contact over the same
    set the longer one is never better, as what follows it can only be slower.
    """
    layers, sets, count = onward.shape
    n = len(block) - 3
    first, discs = block[n], block[n + 1] - block[n]
    ways = leg[1].transpose((0, 2, 1)).copy()  # [K, A, C], from, to
    and_on = onward.transpose((0, 2, 1)).copy()  # [K, A, 2**n]
    rest = np.full((layers, discs, sets), FAR, dtype=np.int32)
    length = np.full((sets, layers, count), FAR, dtype=np.int32)  # to a contact of one of the set, from the buff
    reached = np.zeros(sets, dtype=np.bool_)
    needed = np.empty(count, dtype=np.int64)
    for s in range(discs):
        length[0, 0, first + s] = 0
        reached[0] = True
        for taken in range(sets):
            if not reached[taken]:
                continue
            others = sets - 1 - taken
            for j in range(n + 1):
                if (j == n) != (taken == 0) or (j < n and not taken >> j & 1):
                    continue
                begin, end = block[j], block[j + 1]
                for k in range(layers):
                    so_far = length[taken, k, begin:end].copy()
                    for m in range(_needed(so_far, leg[0, 0, begin:end, begin:end], needed)):
                        a, way = begin + needed[m], so_far[needed[m]]
                        if way >= HASTE:
                            break  # the contacts come by rising length
                        for f in range(layers - k):
                            for i in range(n):
                                if others >> i & 1:
                                    reached[taken | 1 << i] = True
                                    lower(
                                        length[taken | 1 << i, k + f, block[i] : block[i + 1]],
                                        ways[f, a, block[i] : block[i + 1]],
                                        way,
                                    )
                            # this way is the last one with the buff, or rather: not longer than if it were
                            out, then, left = rest[k + f, s], and_on[f, a], others
                            while True:  # over all parts of `others`
                                out[taken | left] = min(out[taken | left], np.int32(way + then[left]))
                                if left == 0:
                                    break
                                left = (left - 1) & others
            length[taken] = FAR
            reached[taken] = False
    for k in range(layers):
        for s in range(discs):
            for part in range(sets):
                rest[k, s, part] = boost(int(rest[k, s, part])) if rest[k, s, part] < FAR else FAR
    return rest
