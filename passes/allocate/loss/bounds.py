"""How much a whole population loses at most, by some of its samples: one-sided bounds of CONFIDENCE."""

import math
from collections.abc import Sequence
from functools import cache

import numpy as np

CONFIDENCE = 0.9
HALVINGS = 60
STEPS = 4001  # of the integral over the density
TAIL = 1e3  # no quantile that is asked for lies further out


def most_of(hits: int, count: int, confidence: float = CONFIDENCE) -> float:
    """The largest share of which `count` independent draws still show at most `hits` with probability 1 − confidence.

    Clopper and Pearson, Biometrika 26 (1934): exact for whatever the share is.
    """
    if hits >= count:
        return 1.0
    low, high = hits / count, 1.0
    for _ in range(HALVINGS):
        share = (low + high) / 2
        low, high = (share, high) if at_most(hits, count, share) > 1 - confidence else (low, share)
    return high


def at_most(hits: int, count: int, share: float) -> float:
    """Probability that at most `hits` of `count` draws are of a kind that has this share of all."""
    if hits < 0 or share >= 1:
        return float(hits >= count)
    if share <= 0:
        return 1.0
    k = np.arange(min(hits, count) + 1)
    orders = np.concatenate([[0.0], np.cumsum(np.log((count - k[1:] + 1) / k[1:]))])  # log of (count over k)
    return float(min(1.0, np.exp(orders + k * math.log(share) + (count - k) * math.log1p(-share)).sum()))


def most_hits(count: int, share: float, confidence: float = CONFIDENCE) -> int:
    """The most hits among `count` draws whose bound `most_of` is still at most `share`; -1 where not even none will do.

    It is the last k with P(at most k | share) ≤ 1 − confidence.
    """
    hits = -1
    while hits < count and at_most(hits + 1, count, share) <= 1 - confidence:
        hits += 1
    return hits


def draws_needed(share: float, confidence: float = CONFIDENCE) -> int:
    """The fewest draws without a hit that show a share of at most `share`."""
    return math.ceil(math.log(1 - confidence) / math.log1p(-share))


def mean_at_most(values: Sequence[float] | np.ndarray, count: int = 0) -> float:
    """An upper bound on the mean of what `values` were drawn from.

    count: of samples, where so many others of this mean, spread and skewness are meant. Student's t, corrected for the
    skewness of the sample, as losses have a long tail on the right that few samples show too little of (Hall, Annals of
    Statistics 20 (1992), the monotone transformation of the statistic).
    """
    x, count = np.asarray(values, np.float64), count or len(values)
    if min(len(x), count) < 2:
        return math.inf
    mean, spread = float(x.mean()), float(x.std(ddof=1))
    if not spread > 0:
        return mean
    t, root = student(CONFIDENCE, count - 1), math.sqrt(count)
    centred = x - mean
    skewness = float((centred**3).mean() / (centred**2).mean() ** 1.5) / root
    if skewness <= 1e-6:  # a tail on the left makes no bound tighter
        return mean + t * spread / root
    return mean - 3 / skewness * (float(np.cbrt(1 - skewness * (t + skewness / 6))) - 1) * spread / root


@cache
def student(probability: float, freedom: int) -> float:
    """The quantile of Student's distribution above its median, to six digits."""
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(freedom * math.pi)
    low, high = 0.0, TAIL
    for _ in range(HALVINGS):
        t = (low + high) / 2
        # The substitution x = sqrt(freedom) tan(a) makes the density a power of cos(a).
        end = math.atan(t / math.sqrt(freedom))
        angles = np.linspace(0, end, STEPS)
        area = scale * math.sqrt(freedom) * _simpson(np.cos(angles) ** (freedom - 1), end)
        low, high = (t, high) if 0.5 + area < probability else (low, t)
    return high


def _simpson(heights: np.ndarray, width: float) -> float:
    inner = 4 * heights[1:-1:2].sum() + 2 * heights[2:-1:2].sum()
    return float((heights[0] + inner + heights[-1]) * width / (len(heights) - 1) / 3)
