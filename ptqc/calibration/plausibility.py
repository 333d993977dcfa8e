"""Whether calibration data look preprocessed as in training: the commonest mistake that raises no error."""

import numpy as np

from ptqc.calibration.observers import RangeObserver

FACTOR = 8.0  # real data stay well within it; a forgotten division by 255 lies far beyond


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
