"""Whether the model runs on samples, of whatever size they are, and what helps where it does not."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import onnx_ir as ir

from ptqc.calibration.inputs import InputSpec, input_specs
from ptqc.calibration.samples import Samples
from ptqc.calibration.synthetic import FREE_SIDE, OTHER_SIDES, SHORT, Sizes, draw, short_sizes, spatial_axes
from ptqc.errors import CalibrationError, ModelError, PtqcError
from ptqc.execution.onnxruntime import Feeds, Runner, reason_of
from ptqc.utils.memory import lacks_memory

# Sizes that are tried before anything is measured, the smallest and the largest among them.
TRIED_SIZES = 16
IMAGE_ADVICE = (
    "bring all images to one size that it takes, for example with --resize 320 --crop 320, or with --resize 320 "
    "--fit letterbox, which shows the whole image"
)
ADVICE = "give samples of sizes and with values that it takes, or leave this one out"
ONE_SIZE = "of {tried} sizes that were tried it runs on {taken}: pad, cut or resize the samples to that"
NO_SIZE = "of {tried} sizes that were tried it runs on none: give samples of a size that it was exported for"


def check_runs(model: ir.Model, samples: Samples) -> None:
    """Where inputs take any size, run one sample of each size, at most TRIED_SIZES.

    Raises CalibrationError where ONNX Runtime refuses one.
    """
    inputs = input_specs(model)
    if not any(isinstance(dim, str | None) for spec in inputs for dim in spec.shape[1:]):
        return
    try:
        runner = Runner(model)
    except ModelError:
        return  # some models load only after they are rewritten
    chosen = samples.of_each_shape(TRIED_SIZES)
    with suppress(MemoryError):  # is met and told again
        _check_sizes(runner, chosen, inputs)


def _check_sizes(runner: Runner, chosen: Samples, inputs: Sequence[InputSpec]) -> None:
    """Raises CalibrationError for the first that the model refuses, with the size that it takes where that is one."""
    refused, taken = list[tuple[str, Feeds, Exception]](), list[Feeds]()
    for name, feeds in zip(chosen.names, chosen, strict=True):
        try:
            runner.run(feeds)
            taken.append(feeds)
        except Exception as error:  # ONNX Runtime raises a dozen types of its own
            if lacks_memory(error):
                raise MemoryError from error
            refused.append((name, feeds, error))
    if not refused:
        return
    advice = ""
    if len(refused) > 1 and len(taken) <= 1:
        text = "; ".join(f"{name!r} of shape {array.shape}" for feeds in taken for name, array in feeds.items())
        advice = (ONE_SIZE if taken else NO_SIZE).format(tried=len(chosen), taken=text)
    raise _refused(*refused[0][:2], inputs, refused[0][2], advice) from refused[0][2]


def runnable_side(model: ir.Model, seed: int) -> int:
    """Of the sides of drawn images the first on which the model runs; FREE_SIDE where there is none, or none is open.

    A vision transformer with a table of positions runs on one only, although exporters leave height and width open.
    """
    if not any(map(_is_image_of_any_size, input_specs(model))):
        return FREE_SIDE
    with suppress(ModelError):  # as above
        runner = Runner(model)
        for side in (FREE_SIDE, *OTHER_SIDES):
            with suppress(Exception):  # ONNX Runtime raises a dozen types of its own
                runner.run(next(draw(model, 1, seed, {}, side)))
                return side
    return FREE_SIDE


def runnable_short_sizes(model: ir.Model, seed: int, side: int) -> list[Sizes]:
    """What short drawn samples are like, of all that there may be those on which the model runs.

    Tracers may fix a length that the declaration leaves open.
    """
    result: list[Sizes] = []
    with suppress(ModelError):  # as above
        runner = Runner(model)
        for sizes in short_sizes(model):
            with suppress(Exception):  # as above
                *_, feeds = draw(model, SHORT // 2 + 1, seed, {}, side, [sizes])
                runner.run(feeds)
                result.append(sizes)
    return result


@contextmanager
def explaining(runner: Runner, samples: Samples, inputs: Sequence[InputSpec]) -> Iterator[None]:
    """Tells a failure to run on the samples, alone or joined, by the first one that the model refuses.

    Raises CalibrationError, or MemoryError where that is what is missing.
    """
    try:
        yield
    except PtqcError:
        raise
    except Exception as error:  # ONNX Runtime raises a dozen types of its own
        if lacks_memory(error):
            raise MemoryError from error
        raise _first_refused(runner, samples, inputs, error) from error


def _first_refused(runner: Runner, samples: Samples, inputs: Sequence[InputSpec], error: Exception) -> CalibrationError:
    for name, feeds in zip(samples.names, samples, strict=True):
        try:
            runner.run(feeds)
        except Exception as reason:  # as above
            return _refused(name, feeds, inputs, reason)
    return CalibrationError(f"the model does not run on some of the calibration samples: {reason_of(error)}")


def _refused(
    name: str, feeds: Feeds, inputs: Sequence[InputSpec], error: Exception, advice: str = ""
) -> CalibrationError:
    shapes = ", ".join(f"{fed!r} of shape {array.shape}" for fed, array in feeds.items())
    advice = IMAGE_ADVICE if any(map(_is_image_of_any_size, inputs)) else advice or ADVICE
    return CalibrationError(f"{name}: the model does not run on {shapes}: {reason_of(error)}: {advice}")


def _is_image_of_any_size(spec: InputSpec) -> bool:
    return any(not isinstance(spec.shape[axis], int) for axis in spatial_axes(spec))
