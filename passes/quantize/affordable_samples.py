"""Fewer calibration samples where a time limit does not leave time for all."""

import dataclasses

from ptqc.execution.onnxruntime import Runner
from ptqc.notes import out_of_time, unfit
from ptqc.passes.quantize.prepare import Prepared
from ptqc.utils.deadline import Deadline
from ptqc.utils.stopwatch import seconds_of

# How often a sample is run in all, from calibration to the comparison with float.
RUNS = 20
# Share of the time that is left that these runs may take.
SHARE = 0.5
FEWEST = 8
# With fewer, ranges and losses are guesses, of which a quarter is held back.
ENOUGH = 16


def affordable(prepared: Prepared, deadline: Deadline) -> Prepared:
    """As many samples as there is time for: all, or an evenly spread half, a quarter, and so on.

    Halves, so that a second compile with the same limit finds what the first one stored.
    """
    samples = prepared.samples
    if not deadline.is_limited or len(samples) <= FEWEST:
        return prepared
    runner, feeds = Runner(prepared.model), samples.largest[0]
    runner.run(feeds)
    each, count = seconds_of(lambda: runner.run(feeds)), len(samples)
    most = deadline.share(SHARE).affords(RUNS * each, len(samples), FEWEST)
    while count > most:
        count = max(FEWEST, count // 2)
    if count == len(samples):
        return prepared
    kept = samples.select([i * len(samples) // count for i in range(count)])
    notes = [out_of_time(f"{count} of {len(samples)} calibration samples")]
    if count < ENOUGH:
        notes.append(unfit(f"there was time for {count} of {len(samples)} calibration samples"))
    return dataclasses.replace(prepared, samples=kept, notes=(*prepared.notes, *notes))
