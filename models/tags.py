"""Token sequences whose tags follow a rule that needs memory in both directions."""

import numpy as np

VOCABULARY = 256
TAGS = 8
LENGTH = 32

# The first 8 tokens set the mode, the next 8 announce the end of a clause; all others are words of a fixed class.
MODES = 8
ENDS = 8


def sequences(count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Tokens (count, 32) and their tags (count, 32), both int64.

    tag = (class of the word + last mode to the left + 4 * (the next end to the right is odd)) mod 8
    """
    kind = rng.random((count, LENGTH))
    tokens = rng.integers(MODES + ENDS, VOCABULARY, (count, LENGTH))
    tokens = np.where(kind < 0.12, rng.integers(0, MODES, tokens.shape), tokens)
    tokens = np.where(kind > 0.90, rng.integers(MODES, MODES + ENDS, tokens.shape), tokens)
    mode = _last_seen(np.where(tokens < MODES, tokens, -1))
    is_end = (tokens >= MODES) & (tokens < MODES + ENDS)
    odd = _last_seen(np.where(is_end, tokens % 2, -1)[:, ::-1])[:, ::-1]
    classes = np.random.default_rng(256).permutation(VOCABULARY) % TAGS
    return tokens, (classes[tokens] + mode + 4 * odd) % TAGS


def _last_seen(values: np.ndarray) -> np.ndarray:
    """At each position the last value to the left (itself included) that is not -1, or 0 where there is none."""
    position = np.maximum.accumulate(np.where(values >= 0, np.arange(values.shape[1]), -1), 1)
    found = np.take_along_axis(values, np.maximum(position, 0), 1)
    return np.where(position >= 0, found, 0)
