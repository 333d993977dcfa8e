"""What artifacts tell of a program and of a library of it."""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from ptqc.codegen.kernels.process import JOB, VALUES
from ptqc.codegen.program import constants, memory, verify
from ptqc.codegen.program.constants import InOrder, Nibbles, Stored
from ptqc.codegen.program.program import Program, ProgramStep
from ptqc.ir.lowered import Lowered
from ptqc.runtime.lengths import written


def interface(program: Program) -> dict[str, Any]:
    """What goes in and out, and which lengths vary."""
    lengths = [asdict(length) for length in program.lengths]
    return {
        "inputs": [_value(program, name) for name in program.inputs],
        "outputs": [_value(program, name) for name in program.outputs],
    } | ({"lengths": lengths, "limits": [limit.to_json() for limit in program.limits]} if lengths else {})


def _value(program: Program, name: str) -> dict[str, Any]:
    sizes = program.sizes.get(name, (None, *program.layouts[name].shape))
    shape = [None if size is None else written(size) for size in sizes]
    entry = {"name": program.names.get(name, name), "dtype": program.layouts[name].dtype, "shape": shape}
    return entry | ({"value": program.fixed[name].tolist()} if name in program.fixed else {})


def figures(program: Program, lowered: Lowered) -> dict[str, Any]:
    """Kernels, steps by family, and bytes. lowered: what it was made of."""
    families = Counter(step.kernel.family for step in program.steps)
    stored = [constant for step in program.steps for constant in step.kernel.constants]
    return {
        "kernels": len({step.kernel.name for step in program.steps}),
        "steps": dict(sorted(families.items())),
        "constant_bytes": sum(constants.stored_bytes(constant) for constant in stored),
        "loaded_bytes": sum(constants.loaded_bytes(constant) for constant in stored),
        "workspace_bytes": memory.plan(program).at({length.name: length.seen for length in program.lengths}),
        "low_bit_weights": "unpacked when the library is loaded" + _exception(stored),
        "roundings_of_float_parts": [lowered.own_name(step.output) for step in program.steps if _rounds(step)],
    }


def _rounds(step: ProgramStep) -> bool:
    """Whether real numbers become codes, FP8 or bfloat16."""
    return step.kernel.family in ("quantize", "quantize_float8") or step.kernel.accuracy.to_bfloat16


def _exception(stored: Sequence[Stored]) -> str:
    packed = sum(constants.loaded_bytes(constant) for constant in stored if isinstance(constant, Nibbles | InOrder))
    return f", except for {packed:,} bytes that kernels read as they are" if packed else ""


def runs(folder: Path) -> dict[str, Path]:
    """What ONNX Runtime computed, a file for each run of a job, by what the run was given."""
    names = json.loads((folder / JOB).read_text())["runs"]
    return {name: folder / VALUES.format(index) for index, name in enumerate(names)}


def verification(
    loaded: verify.Loaded,
    folder: Path,
    prepare: Callable[[int], None] = lambda _run: None,
    record: Callable[[verify.Values, verify.Values], None] = lambda _values, _outputs: None,
) -> dict[str, Any]:
    """Compare a library with what ONNX Runtime computed. Raises VerificationError.

    folder: of the job. prepare: done before each run, given its number. record: done after each run, given ONNX
    Runtime's values and the library's outputs.
    """
    compared = verify.Compared()
    for number, path in enumerate(runs(folder).values()):
        with np.load(path) as stored:
            values = dict(stored)
        if loaded.listing.takes(values):
            prepare(number)
            record(values, verify.compare(loaded, values, compared))
    return {
        "kernels_compared": compared.kernels,
        "integers_compared": compared.integers,
        "reals_compared": compared.reals,
        "end_to_end_integers": compared.end_to_end,
        "end_to_end_different": compared.different,
        "end_to_end_rounded": compared.rounded,
    }
