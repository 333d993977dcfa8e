"""Which variant of each layer on tensor cores is taken, by a table of measured times; which are worth measuring.

Variants are those of `variants.py`. Of each distinct kernel a few are tried: the one that is predicted to be fastest,
and others that are predicted to be fast on this chip, of different sizes and of every family.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import log

from ptqc.codegen.cuda.costs import SAMPLES
from ptqc.codegen.cuda.gpu_specs import CHIPS
from ptqc.codegen.cuda.times_table import GpuTimes
from ptqc.codegen.cuda.variants import Variant
from ptqc.codegen.program.program import Program, ProgramStep
from ptqc.errors import UsageError

# Variants of a kernel that are tried; of them, of the same size.
TRIED, OF_A_SIZE = 8, 2


def kernel_key(step: ProgramStep) -> str:
    """What a table calls a layer's kernel: the name of its first variant, and the families of the others.

    The name is of the whole text: shape, bits, what follows the product, tiles. Weights with zeros may be taken by
    sparse kernels too, others of the same shape not.
    """
    operands = sorted({variant.family for variant in _variants(step)} - {step.kernel.family})
    return " or ".join([step.kernel.name, *operands])


def _variants(step: ProgramStep) -> Sequence[Variant]:
    """Of a layer on tensor cores; what the shared families could do otherwise counts on processors only."""
    cuts = () if step.kernel.alternatives is None else step.kernel.alternatives.cuts
    return [cut for cut in cuts if isinstance(cut, Variant)]


def tunable(program: Program) -> dict[str, ProgramStep]:
    """Steps whose kernels have variants, one of each kernel, by its key."""
    results: dict[str, ProgramStep] = {}
    for step in program.steps:
        if len(_variants(step)) > 1:
            results.setdefault(kernel_key(step), step)
    return results


def tried(step: ProgramStep, gpu: str) -> list[Variant]:
    """Variants of a step that are worth a trial on a chip, the first one first, then the best of each other family."""
    first, *operands = (variant for variant in _variants(step) if variant.gpu in ("", gpu))
    sizes: dict[tuple[str, int, int], int] = {_size(first): 1}
    results = [first]
    for variant in sorted(operands, key=lambda each: _logarithm(each, gpu)):
        sizes[_size(variant)] = sizes.get(_size(variant), 0) + 1
        if sizes[_size(variant)] <= OF_A_SIZE:
            results.append(variant)
    families = dict.fromkeys(variant.family for variant in results)
    leaders = [next(variant for variant in results if variant.family == family) for family in families]
    operands = [variant for variant in results if all(variant is not leader for leader in leaders)]
    return [*leaders, *operands][:TRIED]


def _size(variant: Variant) -> tuple[str, int, int]:
    return variant.family, variant.tiles.cut.rows, variant.tiles.cut.columns


def _logarithm(variant: Variant, gpu: str) -> float:
    """Of the predicted time on a chip, or over all chips where that one is not known."""
    if gpu not in CHIPS:
        return log(variant.typical)
    return sum(log(variant.predicted(samples)[gpu]) for samples in SAMPLES)


def tuned(program: Program, times: GpuTimes) -> Program:
    """The program with the variants that are the fastest; what the table does not have stays as predicted.

    Raises UsageError where a layer has no such variant.
    """
    return replace(program, steps=tuple(_chosen(step, times) for step in program.steps))


def _chosen(step: ProgramStep, times: GpuTimes) -> ProgramStep:
    result = times.kernels.get(kernel_key(step)) if _variants(step) else None
    if result is None or result.chosen == result.first:
        return step
    known = {variant.label: variant for variant in _variants(step)}
    if result.chosen not in known:
        raise UsageError(f"the times of {step.kernel.name} choose {result.chosen!r}; known: {', '.join(known)}")
    return replace(step, kernel=step.kernel.cut(known[result.chosen]))


def selected(program: Program, times: GpuTimes) -> GpuTimes:
    """What a table has of the kernels of a program. Raises UsageError where that is nothing."""
    kernels = tunable(program)
    results = {key: one for key, one in times.kernels.items() if key in kernels}
    if kernels and not results:
        raise UsageError(
            f"the times that are given are of none of this network's {len(kernels)} kernels with variants: they are of "
            "another network, or of another version; compile with --tune quick where the GPU is"
        )
    left = len(kernels) - len(results)
    message = times.missing or f"the table has no times of {left:,} kernels"
    return replace(times, kernels=results, missing=message if left else "")
