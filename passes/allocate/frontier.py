"""The least predicted loss at many sizes: vertices of the lower convex hull of all plans, by Lagrange multipliers.

min Σ_w min_f (ΔL_{w,f} + λ bytes_{w,f}) + λ Σ_u once_u: no plan of the size of its answer or less loses less, whatever
the price λ ≥ 0 of a byte (Everett 1963; Shoham and Gersho 1988, for the allocation of bits). Each price is the slope
between two known plans, so the answer is a vertex between them or shows that there is none. Parts that candidates share
are given up one by one while that pays; where several pay only together, a plan can be a little worse than the best.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from ptqc.passes.allocate.allocation import MEMORY, Candidate, Problem, best_choice, smallest_choice


class _Point(NamedTuple):
    bytes: int
    loss: float
    memory: int


def frontier(problem: Problem, largest: int, most: int) -> list[tuple[int, float]]:
    """(bytes, predicted loss) of up to `most` plans of at most `largest` bytes, by size; the first is the smallest.

    Plans beyond a limit on memory are left out. Raises NoSelection where no plan keeps it.
    """
    lagrangian = _Lagrangian.of(problem)
    smallest, best = (_point(problem.chosen(choice(problem)), problem) for choice in (smallest_choice, best_choice))
    found, edges = [smallest, best] if best.loss < smallest.loss else [smallest], set[tuple[_Point, _Point]]()
    while sum(point.bytes <= largest for point in found) < most:
        open_ = [pair for pair in pairwise(found) if pair not in edges and pair[0].bytes < largest]
        if not open_:
            break
        low, high = max(open_, key=lambda pair: min(pair[1].bytes, largest) - pair[0].bytes)
        price = (low.loss - high.loss) / (high.bytes - low.bytes)
        point = _point(lagrangian.least(price), problem)
        is_between = low.bytes < point.bytes < high.bytes and high.loss < point.loss < low.loss
        if is_between and point.loss + price * point.bytes < low.loss + price * low.bytes:
            found = sorted([*found, point])
        else:
            edges.add((low, high))
    memory = problem.limits.get(MEMORY, np.inf)
    return [(point.bytes, point.loss) for point in found if point.bytes <= largest and point.memory <= memory]


def _point(chosen: list[Candidate], problem: Problem) -> _Point:
    size = problem.size({c.weight: c.form for c in chosen})
    return _Point(size, sum(c.loss for c in chosen), sum(c.memory for c in chosen))


@dataclass(frozen=True)
class _Lagrangian:
    """The candidates of a problem by weight. first: where those of each weight begin. needs: (candidates, parts)."""

    candidates: list[Candidate]
    first: np.ndarray
    losses: np.ndarray
    bytes: np.ndarray
    needs: np.ndarray
    once: np.ndarray

    @classmethod
    def of(cls, problem: Problem) -> "_Lagrangian":
        groups, parts = problem.by_weight().values(), sorted(problem.once)
        candidates = [c for group in groups for c in group]
        first = np.cumsum([0, *map(len, groups)])[:-1]
        losses, size = np.array([c.loss for c in candidates]), np.array([c.bytes for c in candidates])
        needs = np.array([[part in c.needs for part in parts] for c in candidates], bool)
        return cls(candidates, first, losses, size, needs, np.array([problem.once[part] for part in parts]))

    def least(self, price: float) -> list[Candidate]:
        """The plan of least loss and price of its bytes."""
        costs, once = self.losses + price * self.bytes, price * self.once
        total, kept = self._sums(costs) + once.sum(), np.arange(len(once))
        while len(kept):
            # Row i: without the part kept[i].
            without = np.where(self.needs[:, kept].T, np.inf, costs)
            totals = self._sums(without) + once[kept].sum() - once[kept]
            given_up = int(totals.argmin())
            if totals[given_up] > total:
                break
            total, costs, kept = totals[given_up], without[given_up], np.delete(kept, given_up)
        ends = [*self.first[1:], len(costs)]
        return [self.candidates[a + int(costs[a:b].argmin())] for a, b in zip(self.first, ends, strict=True)]

    def _sums(self, costs: np.ndarray) -> Any:
        """Of the least cost of each weight; the candidates lie along the last axis."""
        return np.minimum.reduceat(costs, self.first, axis=-1).sum(-1)
