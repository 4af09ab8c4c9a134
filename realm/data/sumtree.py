"""A sum tree: draws leaves in proportion to their weights, and changes a weight, in O(log n).

Schaul et al. 2015, Prioritized Experience Replay, appendix B.2.1.
"""

from __future__ import annotations

import numpy as np

from realm.contract import Array
from realm.jit import jit


class SumTree:
    """Leaves 0 to n - 1 with weights, 0 at first."""

    def __init__(self, leaves: int, nodes: Array | None = None) -> None:
        """nodes: f64 [`size_of(leaves)`], of zeros or of an earlier tree; by default new zeros."""
        # node 1 is the root, node k has the children 2k and 2k + 1; the leaves are the upper half of the array
        self._nodes = np.zeros(self.size_of(leaves)) if nodes is None else nodes

    @staticmethod
    def size_of(leaves: int) -> int:
        return 2 << max(0, leaves - 1).bit_length()

    @property
    def total(self) -> float:
        return float(self._nodes[1])

    def set(self, leaf: Array, weight: Array) -> None:
        """Give each leaf i64 [B] its weight f64 [B], not below 0; of doubled leaves the last one holds."""
        _set(self._nodes, leaf, weight)

    def weight(self, leaf: Array) -> Array:
        """The weights f64 [B] of leaves i64 [B]."""
        weights: Array = self._nodes[len(self._nodes) // 2 + leaf]
        return weights

    def draw(self, u: Array) -> Array:
        """For each u f64 [B] in [0, 1) a leaf i64 [B]; over all u, leaf i has the share weight(i) / total.

        The total must be above 0; then a leaf of weight 0 is never drawn.
        """
        return _find(self._nodes, u * self._nodes[1])

    def clear(self) -> None:
        self._nodes[:] = 0


@jit
def _set(nodes: Array, leaf: Array, weight: Array) -> None:
    half = len(nodes) // 2
    for b in range(len(leaf)):
        node = half + leaf[b]
        nodes[node] = weight[b]
        node //= 2
        while node > 0:
            nodes[node] = nodes[2 * node] + nodes[2 * node + 1]  # added up again, so that no rounding adds up
            node //= 2


@jit
def _find(nodes: Array, mass: Array) -> Array:
    half = len(nodes) // 2
    leaf = np.empty(len(mass), np.int64)
    for b in range(len(mass)):
        left, node = mass[b], 1
        while node < half:
            node *= 2
            if left >= nodes[node] and nodes[node + 1] > 0:  # the second: rounding may push a mass over the end
                left -= nodes[node]
                node += 1
        leaf[b] = node - half
    return leaf
