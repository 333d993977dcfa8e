"""Whether calibration data look as they should: mistakes that raise no error.

The commonest is preprocessing that differs from that of training; another one is a single sample that is far larger
than all others.
"""

from collections.abc import Sequence

import numpy as np

from ptqc.calibration.ranges import RangeObserver

# Codes of 8 bits over a range that one sample sets this many times wider do not tell the other samples from zero.
FAR_LARGER = 256.0
MOST_NAMED = 3
FACTOR = 8.0  # real data stay well within it; a forgotten division by 255 lies far beyond


def outlier_warning(largest: Sequence[float], names: Sequence[str]) -> str | None:
    """What to tell the user where few samples of an input are far larger than most, or None.

    largest: the largest magnitude in each sample. names: of the samples, in the same order.
    """
    usual = float(np.median(largest))
    far = [place for place, value in enumerate(largest) if value > FAR_LARGER * usual > 0]
    if not far:
        return None
    named = ", ".join(names[place] for place in far[:MOST_NAMED])
    more = f" and {len(far) - MOST_NAMED} more" if len(far) > MOST_NAMED else ""
    return (
        f"{named}{more} of {len(largest)} samples reach {max(largest):.3g}, where most stay below {usual:.3g}: 8 bits "
        "cannot hold both, so that layers may stay in float, and losses speak of these samples above all; leave them "
        "out if they are mistakes"
    )


def preprocessing_warning(
    observed: RangeObserver,
    expected_mean: np.ndarray | None = None,
    expected_std: np.ndarray | None = None,
    observed_mean: np.ndarray | None = None,
    observed_std: np.ndarray | None = None,
) -> str | None:
    """What to tell the user about a float image input, or None when nothing is clearly off.

    observed: of the model's input. expected_*: per channel, what the first batch normalization recorded in training;
    observed_*: the same of its input now, the first convolution's output. Where one of the four is missing, only
    values that look like raw bytes are remarked on.
    """
    if expected_mean is None or expected_std is None or observed_mean is None or observed_std is None:
        return _byte_hint(observed)
    spread = np.median(expected_std)
    # The distance from the trained mean counts as well: values that are all far off need not vary.
    distance = np.median(np.hypot(observed_std, observed_mean - expected_mean))
    variation = np.median(observed_std)
    if spread <= 0 or (distance <= FACTOR * spread and variation >= spread / FACTOR):
        return None
    size, now = ("larger", distance) if distance > FACTOR * spread else ("smaller", variation)
    return (
        f"calibration inputs (from {observed.low:.4g} to {observed.high:.4g}) look wrongly preprocessed: the first "
        f"convolution's outputs spread {now:.3g} on the median channel, {size} than the {spread:.3g} seen in training: "
        f"{_remedy(observed, size)}"
    )


def _byte_hint(observed: RangeObserver) -> str | None:
    if not _looks_like_bytes(observed):
        return None
    return (
        f"calibration inputs are whole numbers from {observed.low:.0f} to {observed.high:.0f}, like raw pixels: "
        "if the model was trained on normalized images, give --scale 255 and its --mean and --std"
    )


def _looks_like_bytes(observed: RangeObserver) -> bool:
    return bool(observed.count) and observed.low >= 0 and observed.high > 200 and observed.integral


def _remedy(observed: RangeObserver, size: str) -> str:
    if size == "larger" and observed.high > 200:
        return "values reach 0..255; give --scale 255 and the --mean and --std of training"
    if size == "smaller" and max(abs(observed.low), abs(observed.high)) <= 2:
        return "the model may take pixels of 0..255; give --scale 1, or undo a division done twice"
    return "compare --scale, --mean, --std and --channel-order with training"
