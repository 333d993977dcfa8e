"""The metric that a user names: one of ptqc's own, or a function or metric of the user's own module."""

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from ptqc.errors import CalibrationError, PtqcError, UsageError
from ptqc.tools.evaluating.metric import Case, Metric
from ptqc.tools.evaluating.metrics import METRICS
from ptqc.utils.arguments import meant, shown
from ptqc.utils.imports import imported, is_named

Function = Callable[[Any, Any], float]
ADVICE = "give a function of outputs (arrays by name) and label that returns a number, or a Metric"


class OwnMetric(Metric):
    """The mean of what a function makes of each sample's outputs and label, which is None where there are no labels."""

    name: ClassVar[str] = "own"
    needs_labels: ClassVar[bool] = False

    def __init__(self, function: Function) -> None:
        self.function = function
        self.title = f"mean of {getattr(function, '__name__', 'the metric')}"

    @classmethod
    def of(cls, parameter: str) -> "Metric | None":
        """There is none without a function."""
        del parameter
        return None

    def measure(self, case: Case) -> tuple[float, ...]:
        """What the function returns."""
        try:
            return (float(self.function(case.outputs[0], case.label)),)
        except PtqcError:
            raise
        except Exception as error:  # the user's function may raise anything
            raise CalibrationError(f"{case.name}: the metric raised {type(error).__name__}: {error}") from error

    def score(self, measured: np.ndarray) -> float:
        """See `Metric`."""
        return float(measured.mean())


def metric_of(value: object) -> Metric:
    """The metric of a name, of `module:name`, or of an object. Raises UsageError that lists those that there are."""
    if isinstance(value, Metric):
        return value
    if isinstance(value, type) and issubclass(value, Metric):
        return _instance(value)
    if callable(value):
        return OwnMetric(value)
    if not isinstance(value, str):
        raise UsageError(f"metric is {shown(value)}; {ADVICE}")
    if is_named(value):
        return _imported(value)
    for kind in METRICS:
        suffix = value.removeprefix(kind.name)
        if suffix != value and suffix[:1] in ("", "-") and (metric := kind.of(suffix[1:])) is not None:
            return metric
    likely = meant([value.lower()], known_metrics())
    raise UsageError(f"metric is {value!r}{likely}; known: {', '.join(known_metrics())}, and module:function")


def known_metrics() -> list[str]:
    """Names of all metrics of ptqc's own; those with a number take others, too."""
    return [name for kind in METRICS for name in (kind.shown or kind.name).split(", ")]


def _instance(kind: type[Metric]) -> Metric:
    """A metric of a class that was given for it."""
    try:
        return kind()
    except Exception as error:  # the user's class may raise anything, and want arguments
        raise UsageError(
            f"metric {kind.__name__} is a class that cannot be made without arguments ({type(error).__name__}: "
            f"{error}); give an object of it"
        ) from error


def _imported(text: str) -> Metric:
    try:
        result = imported(text)
    except Exception as error:  # the user's module may raise anything
        raise UsageError(f"metric {text!r}: {type(error).__name__}: {error}") from error
    if not isinstance(result, Metric) and not callable(result):
        raise UsageError(f"metric {text!r} is {shown(result)}; {ADVICE}")
    return metric_of(result)
