"""An observer: the range of three standard deviations around the mean, where values reach that far."""

import numpy as np

from ptqc.calibration.ranges import RangeObserver


def three_sigma(observed: RangeObserver, bits: int) -> tuple[float, float]:  # noqa: ARG001
    """Least and largest value of the range, from the histogram that calibration keeps."""
    counts, edges = observed.histogram()
    middles = (edges[:-1] + edges[1:]) / 2
    mean = float(np.average(middles, weights=counts))
    reach = 3 * float(np.sqrt(np.average((middles - mean) ** 2, weights=counts)))
    return max(observed.low, mean - reach), min(observed.high, mean + reach)
