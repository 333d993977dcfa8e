"""An order of the channels of attention keys in which block floating point loses less of them.

In block floating point B neighbouring channels of a key share one exponent e = ⌊log₂ max|k|⌋, and each has m bits:
codes from −(2^(m−1) − 1) to 2^(m−1) − 1 with the step 2^(e−(m−2)). One large channel takes the bits of all of its
block. Sorted by energy, large ones share their blocks (Trukhanov and Soloveychik 2024, arXiv 2403.20137). Scores do not
change where the rows of the key's and of the query's projection are sorted alike. Rotary positions turn pairs of
channels: pairs are sorted, by their energy together, and the tables of sines and cosines with them. An order for a head
is taken where attention diverges less for it on samples held back; else the head stays as it is.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

BITS, BLOCK = 4, 32


def block_rounded(keys: np.ndarray, bits: int = BITS, block: int = BLOCK) -> np.ndarray:
    """Keys (…, d) as block floating point stores them; d is a multiple of the block."""
    blocks = keys.astype(np.float64).reshape(*keys.shape[:-1], -1, block)
    most = np.abs(blocks).max(-1, keepdims=True)
    _, exponent = np.frexp(most)  # most = f · 2^exponent with f in [½, 1), so ⌊log₂ most⌋ is one less
    step = np.ldexp(1.0, exponent - 1 - (bits - 2))
    top = 2 ** (bits - 1) - 1
    rounded = np.where(most > 0, np.clip(np.rint(blocks / step), -top, top) * step, 0.0)
    return np.asarray(rounded.reshape(keys.shape))


@dataclass(frozen=True)
class Pairs:
    """Which channels rotary positions turn against each other.

    halves: (i, i + d/2), as in Llama; neighbours: (2i, 2i + 1); neither: none, each channel for itself.
    """

    halves: bool = False
    neighbours: bool = False

    def of(self, size: int) -> np.ndarray:
        """The channels that move together (sets, 1 or 2)."""
        channels = np.arange(size)
        if self.halves:
            return channels.reshape(2, -1).T
        return channels.reshape(-1, 2) if self.neighbours else channels[:, None]


def order_of(keys: np.ndarray, pairs: Pairs) -> np.ndarray:
    """Channels (d,) of one head by the energy of what moves together, largest first. keys: (…, d), behind rotation.

    With halves the sorted pairs are spread over both: their first channels, then their second ones.
    """
    sets = pairs.of(keys.shape[-1])
    energy = np.square(keys, dtype=np.float64).reshape(-1, keys.shape[-1]).mean(0)
    ranked = sets[np.argsort(-energy[sets].sum(1), kind="stable")]
    return (ranked.T if pairs.halves else ranked).ravel()


def order_of_all(caches: Sequence[np.ndarray]) -> np.ndarray:
    """Channels (heads · d) of all heads by their energy in these caches (texts, heads, places, d), largest first."""
    energy = sum(np.square(x, dtype=np.float64).sum((0, 2)) for x in caches)
    return np.argsort(-np.ravel(energy), kind="stable")


def divergence(queries: np.ndarray, keys: np.ndarray, other: np.ndarray) -> float:
    """Mean Kullback-Leibler divergence, in nats, of attention to other keys from that to keys.

    queries: (samples, t, d); keys, other: (samples, s, d).
    """
    scale = keys.shape[-1] ** -0.5
    true, cached = (_log_softmax(queries.astype(np.float64) @ x.swapaxes(-1, -2) * scale) for x in (keys, other))
    return float((np.exp(true) * (true - cached)).sum(-1).mean())


def _log_softmax(scores: np.ndarray) -> np.ndarray:
    scores = scores - scores.max(-1, keepdims=True)
    return np.asarray(scores - np.log(np.exp(scores).sum(-1, keepdims=True)))


@dataclass(frozen=True, eq=False)
class SortedHead:
    """order: (d,) of the channels of one key head. losses: divergence on held-back samples, unsorted and sorted."""

    order: np.ndarray
    losses: tuple[float, float]

    @property
    def is_sorted(self) -> bool:
        """Whether the order differs from the one that there was."""
        return bool((self.order != np.arange(len(self.order))).any())


def sort_head(
    keys: np.ndarray,
    held_queries: np.ndarray,
    held_keys: np.ndarray,
    pairs: Pairs,
    bits: int = BITS,
    block: int = BLOCK,
) -> SortedHead:
    """The order of a head's channels in which held-back attention diverges least: sorted, or as it is.

    keys: (samples, s, d) that energies are taken of. held_queries: (samples, t, d) of all queries that share the head,
    with their heads joined along t; held_keys: (samples, s, d).
    """
    order, same = order_of(keys, pairs), np.arange(keys.shape[-1])
    plain, sorted_ = (_loss(held_queries, held_keys, x, bits, block) for x in (same, order))
    return SortedHead(order, (plain, sorted_)) if sorted_ < plain else SortedHead(same, (plain, plain))


def _loss(queries: np.ndarray, keys: np.ndarray, order: np.ndarray, bits: int, block: int) -> float:
    rounded = block_rounded(keys[..., order], bits, block)
    return divergence(queries[..., order], keys[..., order], rounded)
