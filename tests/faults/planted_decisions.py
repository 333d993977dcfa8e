"""Faults of decisions and documents: numbers, plan and manifest are not those of one file."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
from planting import ASKED, TUNED, Changed, Fault, given

from ptqc.artifact import documents
from ptqc.formats import coded
from ptqc.ir.plan import Plan
from ptqc.ir.quantized_weight import QuantizedParameters, QuantizedWeight
from ptqc.passes.allocate import fit, meet_budgets
from ptqc.passes.allocate.state import QuantizedModel
from ptqc.passes.quantize import measurements
from ptqc.passes.quantize.phases import Analysis, AnalysisInput


def ranges_swapped(right: Any) -> Any:
    """The narrowest range and the widest exchanged, behind the measurements that chose them."""

    def unpack(setting: AnalysisInput, document: Any, candidates: Any) -> Analysis:
        analysis: Analysis = right(setting, document, candidates)
        scales = {name: params.scale for name, params in coded(analysis.activations).items()}
        narrow, *_, wide = sorted(scales, key=scales.__getitem__)
        exchanged = {narrow: analysis.ranges[wide], wide: analysis.ranges[narrow]}
        return dataclasses.replace(
            analysis, ranges={**analysis.ranges, **exchanged}, activations={**analysis.activations, **exchanged}
        )

    return unpack


def solutions_swapped(right: Any) -> Any:
    """Numbers of one width under the name of another."""

    def unpack(setting: AnalysisInput, document: Any, candidates: Any) -> Analysis:
        analysis: Analysis = right(setting, document, candidates)
        solutions = dict(analysis.solutions)
        for weight, form in analysis.solutions:
            wide = solutions[weight, max(f for w, f in solutions if w == weight and f.has_codes)]
            if form.has_codes:
                solutions[weight, form] = dataclasses.replace(wide, form=form)
        return dataclasses.replace(analysis, solutions=solutions)

    return unpack


def ten_times_the_limit(right: Any) -> Any:
    return lambda problem, limit: right(problem, 10 * limit)


def without_limit(right: Any) -> Any:
    return lambda analysis, options, _limit, *more: right(analysis, options, None, *more)


def formats_swapped(fitted: QuantizedModel) -> QuantizedModel:
    formats = dict(fitted.plan.formats)
    first, *_, second = sorted(formats, key=lambda name: str(formats[name]))
    formats[first], formats[second] = formats[second], formats[first]
    swapped = dataclasses.replace(fitted.allocated, plan=fitted.plan.with_formats(formats))
    return dataclasses.replace(fitted, allocated=swapped)


def told_another_format(document: dict[str, Any]) -> dict[str, Any]:
    return {**document, "weights": [{**entry, "format": "int8"} for entry in document["weights"]]}


def told_other_weights(document: dict[str, Any]) -> dict[str, Any]:
    return {**document, "weights_by_format": {"int8": sum(document["weights_by_format"].values())}}


def with_numbers(change: Callable[[QuantizedParameters], QuantizedParameters]) -> Changed:
    """Other numbers are lowered and packed than the compile goes on with."""
    return lambda right: lambda analysis, plan, tuned: right(analysis, plan, change(tuned))


def weights_exchanged(tuned: QuantizedParameters) -> QuantizedParameters:
    """Two weights of one shape."""
    first, second = next(
        (a, b) for a in tuned.weights for b in tuned.weights if a < b and _alike(tuned.weights[a], tuned.weights[b])
    )
    changed = {first: tuned.weights[second], second: tuned.weights[first]}
    return QuantizedParameters({**tuned.weights, **changed}, tuned.biases)


def _alike(a: QuantizedWeight, b: QuantizedWeight) -> bool:
    return a.form == b.form and a.codes.shape == b.codes.shape


def biases_dropped(tuned: QuantizedParameters) -> QuantizedParameters:
    return QuantizedParameters(
        tuned.weights, {n: None if b is None else np.zeros_like(b) for n, b in tuned.biases.items()}
    )


def rotated_palette(tuned: QuantizedParameters) -> QuantizedParameters:
    turned = {
        n: dataclasses.replace(s, scale=s.scale[::-1]) for n, s in tuned.weights.items() if s.form.family == "palette"
    }
    return QuantizedParameters({**tuned.weights, **turned}, tuned.biases)


def other_axis(tuned: QuantizedParameters) -> QuantizedParameters:
    """The scales of square weights along the other axis."""
    turned = {
        n: dataclasses.replace(s, axis=1 - s.axis)
        for n, s in tuned.weights.items()
        if s.form.has_codes and len(set(s.codes.shape)) == 1
    }
    return QuantizedParameters({**tuned.weights, **turned}, tuned.biases)


DECISIONS: dict[str, Fault] = {
    "ranges of two tensors swapped": Fault(measurements, "unpack", ranges_swapped, "image", "activations"),
    "numbers of another width": Fault(measurements, "unpack", solutions_swapped, "pairs", "levels do not fit"),
    "limit of the solver ignored": Fault(fit, "allocate", ten_times_the_limit, "codebook", "no plan was found"),
    "limit of the file ignored": Fault(meet_budgets, "fit", without_limit, "words", "over the budget"),
    "formats of two weights swapped": Fault(meet_budgets, "fit", given(formats_swapped), "words", "stored as"),
    "plan written with other formats": Fault(Plan, "to_json", given(told_another_format), "image", "plan"),
    "manifest naming another format": Fault(documents, "manifest", given(told_other_weights), "image", "manifest"),
    "weights of two layers exchanged": Fault(fit, "lower", with_numbers(weights_exchanged), "image", TUNED),
    "weights of two float layers exchanged": Fault(fit, "lower", with_numbers(weights_exchanged), "words", TUNED),
    "biases dropped": Fault(fit, "lower", with_numbers(biases_dropped), "image", ASKED),
    "bias of a float layer dropped": Fault(fit, "lower", with_numbers(biases_dropped), "words", ASKED),
    "values of a palette reversed": Fault(fit, "lower", with_numbers(rotated_palette), "words", TUNED),
    "scales along the wrong axis": Fault(fit, "lower", with_numbers(other_axis), "words", TUNED),
}
