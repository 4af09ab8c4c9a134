"""Shortest ways on a lattice: Dijkstra from several nodes, with and without flashes.

Used by `legs.py` (ways between contacts) and `fields.py` (what is left to walk). Kernels over `Lattice`; they write
costs, which are lattice lengths, into arrays of the caller.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from realm.env.oracle.lattice import DIAGONAL, FAR, NODES, OPEN, SQUARES, STEP, STRAIGHT, Lattice
from realm.jit import jit

SEED = 8  # instead of a direction: reached over no edge
EVERYWHERE = np.empty(0, dtype=np.int32)  # as `targets` of `spread`: all nodes


class Queues(NamedTuple):
    """Room for `spread`, made once by `make_queues` for a lattice of N x N nodes."""

    seed: NDArray[np.int64]  # [N * N] cost << 32 | node
    entry: NDArray[np.int32]  # [4, 4 * N * N] node << 4 | direction of the edge to it
    done: NDArray[np.uint8]  # [N * N] bit d: left in direction d
    near: NDArray[np.int32]  # [N * N] room for `_flash`
    landed: NDArray[np.int32]  # the same


def make_queues(nodes: int = NODES) -> Queues:
    """For a lattice of `nodes` x `nodes`."""
    room = nodes * nodes
    i32 = np.empty((2, room), np.int32)
    return Queues(np.empty(room, np.int64), np.empty((4, 4 * room), np.int32), np.empty(room, np.uint8), i32[0], i32[1])


@jit
def spread(
    edges: NDArray[np.uint16],
    nodes: int,
    straight: int,
    cost: NDArray[np.int32],
    q: Queues,
    seeds: int,
    targets: NDArray[np.int32],
) -> None:
    """Dijkstra from several nodes of a lattice of `nodes` x `nodes`, whose axis-aligned edges are `straight` long.
    q.seed holds `seeds` nodes with rising costs, already in `cost` (i32 [nodes * nodes], FAR elsewhere), which is
    lowered to the distances: of all nodes if there are no `targets` (i32 [n], nodes), else of those that are not
    farther than any of these. What is beyond keeps too high a cost.

    The nodes between n and n + 1 times `straight` away wait in one of four queues and are taken in any order: edges are
    no shorter than that, so none of them leads to another. (They lead at most two queues ahead.) And of all shortest
    ways only the one that turns from diagonals to the axes as early as it can is followed: a node amid four free
    squares is left straight on, or by 45 degrees from a diagonal to an axis, since for any other turn there is a way
    past the node that is shorter, or has its diagonal earlier.
    """
    offset = np.array([1, nodes + 1, nodes, nodes - 1, -1, -nodes - 1, -nodes, -nodes + 1], dtype=np.int32)
    natural = np.empty(9, dtype=np.int32)
    for d in range(8):
        natural[d] = 1 << d | ((1 << (d - 1) | 1 << ((d + 1) & 7)) if d & 1 else 0)
    natural[SEED] = 255
    lowest = np.zeros(256, dtype=np.int32)  # bit that is set
    for several in range(1, 256):
        for d in range(7, -1, -1):
            if several >> d & 1:
                lowest[several] = d
    diagonal = straight * DIAGONAL // STRAIGHT
    done = q.done
    done[:] = 0
    size = np.zeros(4, dtype=np.int64)
    at = 0  # seeds taken
    now = 0
    reached = 0  # targets
    while True:
        if size[0] + size[1] + size[2] + size[3] == 0:
            if at == seeds:
                return
            now = int(q.seed[at] >> 32) // straight
        while reached < len(targets) and cost[targets[reached]] < now * straight:
            reached += 1
        if 0 < len(targets) == reached:
            return
        entry, count = q.entry[now & 3], size[now & 3]
        while at < seeds and (q.seed[at] >> 32) // straight == now:
            entry[count] = (q.seed[at] & 0xFFFFFFFF) << 4 | SEED
            count += 1
            at += 1
        second = (now + 2) * straight
        first_entry, second_entry = q.entry[(now + 1) & 3], q.entry[(now + 2) & 3]
        first_size, second_size = size[(now + 1) & 3], size[(now + 2) & 3]
        for n in range(count):
            node = entry[n] >> 4
            bits = np.int32(edges[node])
            ways = (natural[entry[n] & 15] if bits & OPEN else bits & 255) & ~np.int32(done[node])
            if ways == 0:
                continue
            done[node] |= ways
            base = cost[node]
            while ways:
                d = lowest[ways]
                ways &= ways - 1
                to = node + offset[d]
                through = base + (diagonal if d & 1 else straight)
                if through <= cost[to]:
                    if through < cost[to]:
                        cost[to] = through
                        done[to] = 0
                    if through < second:
                        first_entry[first_size] = to << 4 | d
                        first_size += 1
                    else:
                        second_entry[second_size] = to << 4 | d
                        second_size += 1
        size[now & 3], size[(now + 1) & 3], size[(now + 2) & 3] = 0, first_size, second_size
        now += 1


@jit
def put(q: Queues, n: int, node: int, cost: int) -> None:
    """Write seed number n for `spread`."""
    q.seed[n] = np.int64(cost) << 32 | np.int64(node)


@jit
def _flash(
    lattice: Lattice, before: NDArray[np.int32], after: NDArray[np.int32], landed: NDArray[np.int32], q: Queues
) -> None:
    """Flash once: lower `after` (i32 [N * N]) where that takes less than `after` says, coming from `before` (the same),
    and `landed` (i32 [17]: to each disc).

    A flash along an axis goes from node to node. A diagonal one does not: from anywhere in a square, which costs as
    much as the nearest of its corners, it may land anywhere in those squares which it can reach.
    """
    side, stand, near, there = lattice.side, lattice.stand, q.near, q.landed
    nodes = side + 1
    for r in range(len(lattice.rows)):
        first, length = lattice.rows[r]
        node = first // side * nodes + first % side
        low, high = before[node : node + length + 1], before[node + nodes : node + nodes + length + 1]
        out = near[first : first + length]
        for x in range(length):
            least = min(min(low[x], low[x + 1]), min(high[x], high[x + 1]))
            out[x] = least + STEP if stand[first + x] == 1 else FAR
    for r in range(len(lattice.rows)):
        first, length = lattice.rows[r]
        out = there[first : first + length]
        out[:] = FAR
        z, x = first // side, first % side
        for d in range(1, 8, 2):
            for dz in range(lattice.reach[d, 1], lattice.reach[d, 3] + 1):
                for dx in range(lattice.reach[d, 0], lattice.reach[d, 2] + 1):
                    skip, stop = max(0, dx - x), min(length, side + dx - x)
                    if 0 <= z - dz < side and skip < stop:
                        begin = (z - dz) * side + x - dx
                        _least(out[skip:stop], near[begin + skip : begin + stop], 0)
    for h in range(len(lattice.hits)):
        square, i = lattice.hits[h]
        least, z, x = there[square], square // side, square % side
        for d in range(0, 8, 2):
            fz, fx = z - lattice.reach[d, 1], x - lattice.reach[d, 0]
            if 0 <= fx < side and 0 <= fz < side:
                least = min(least, near[fz * side + fx])
        landed[i] = min(landed[i], least)
    for r in range(len(lattice.jumps)):
        first, length, d = lattice.jumps[r]
        to = first + lattice.reach[d, 1] * nodes + lattice.reach[d, 0]
        _least(after[to : to + length], before[first : first + length], STEP)
    for r in range(len(lattice.rows)):
        first, length = lattice.rows[r]
        node = first // side * nodes + first % side
        for x in range(length):
            least = there[first + x]
            if stand[first + x] == 1:
                after[node + x] = min(after[node + x], least)
                after[node + x + 1] = min(after[node + x + 1], least)
                after[node + nodes + x] = min(after[node + nodes + x], least)
                after[node + nodes + x + 1] = min(after[node + nodes + x + 1], least)


@jit
def _least(out: NDArray[np.int32], values: NDArray[np.int32], more: int) -> None:
    """out = min(out, values + more)"""
    for i in range(len(out)):
        out[i] = min(out[i], np.int32(values[i] + np.int32(more)))


@jit
def _seeds(
    lattice: Lattice, straight: int, cost: NDArray[np.int32], before: NDArray[np.int32], slack: int, q: Queues
) -> int:
    """Write seeds for `spread`: the nodes where `cost` is less than `before` + slack, but not those to which a
    neighbour leads as fast. Returns their number."""
    nodes = lattice.side + 1
    offset = np.array([1, nodes + 1, nodes, nodes - 1, -1, -nodes - 1, -nodes, -nodes + 1])
    diagonal = straight * DIAGONAL // STRAIGHT
    seeds = 0
    for node in range(len(cost)):
        if cost[node] < min(FAR, before[node] + slack):
            bits = lattice.edges[node]
            for d in range(8):
                if bits >> d & 1 and cost[node + offset[d]] + (diagonal if d & 1 else straight) <= cost[node]:
                    break
            else:
                put(q, seeds, node, cost[node])
                seeds += 1
    q.seed[:seeds].sort()
    return seeds


@jit
def walks_from(
    lattice: Lattice, q: Queues, nodes: NDArray[np.int32], targets: NDArray[np.int32], cost: NDArray[np.int32]
) -> None:
    """Distances from any of `nodes` (i32 [n]) without a flash; cost: i32 [N * N], overwritten. `targets`: see
    `spread`."""
    cost[:] = FAR
    for n in range(len(nodes)):
        cost[nodes[n]] = 0
        put(q, n, nodes[n], 0)
    spread(lattice.edges, lattice.side + 1, STRAIGHT * SQUARES // lattice.side, cost, q, len(nodes), targets)


@jit
def distances_from(
    lattice: Lattice,
    q: Queues,
    nodes: NDArray[np.int32],
    walk: bool,
    slack: int,
    targets: NDArray[np.int32],
    cost: NDArray[np.int32],
    landed: NDArray[np.int32],
) -> None:
    """Distances with 0, up to 1, .. K - 1 flashes on the way, a flash counting as long as a step.

    From any of `nodes` (i32 [n]); without `walk`, they can only be left by flash, and cost[1:] is of ways that do.
    cost: i32 [K, N * N]. landed: i32 [K, 17], the same to the disc of each point (16: the end), if the last thing
    before was the flash. Both are overwritten. In cost[1:], ways without a flash are taken to be longer by `slack`
    (less than a step): if a finer lattice knows them better, they shall not hide ways with a flash that are almost as
    short. With `targets` (see `spread`) the distances to these are right, but `landed` is not.
    """
    q.near[:] = FAR
    landed[:] = FAR
    if walk:
        walks_from(lattice, q, nodes, targets, cost[0])
    else:
        cost[0] = FAR
        cost[0, nodes] = 0
    straight = STRAIGHT * SQUARES // lattice.side
    for k in range(1, len(cost)):
        more = 0 if k > 1 else slack if walk else FAR
        for node in range(len(cost[k])):
            cost[k, node] = min(FAR, cost[k - 1, node] + more)
        _flash(lattice, cost[k - 1], cost[k], landed[k], q)
        # only what a flash makes better has to be spread
        seeds = _seeds(lattice, straight, cost[k], cost[k - 1], more, q)
        spread(lattice.edges, lattice.side + 1, straight, cost[k], q, seeds, targets)
