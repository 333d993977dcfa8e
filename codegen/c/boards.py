"""Runs the C of a network on emulated Cortex-M boards within a compile: the same outputs, and what a run takes."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ptqc.codegen.c import emulation
from ptqc.codegen.c.source import CSource
from ptqc.codegen.c.verify import encoded
from ptqc.errors import TargetError, VerificationError
from ptqc.execution.onnxruntime import Feeds
from ptqc.utils.progress import Stage

EMULATED = ("cortex-m4", "cortex-m55")
SAMPLES = 2
# Of a run: more would take minutes.
MOST_PRODUCTS = 10**8
# How far real outputs may be from those of this machine, as a share of the largest.
REAL_TOLERANCE = 1e-5


def emulate(
    source: CSource, calls: Sequence[Feeds], outputs: Sequence[Mapping[str, np.ndarray]], folder: Path, stage: Stage
) -> dict[str, Any]:
    """What a run takes on each board. folder: of the files. outputs: of this machine, by name in C, call by call.

    Raises VerificationError where they differ.
    """
    if reason := emulation.missing():
        return {"missing": reason}
    if source.network.products > MOST_PRODUCTS:
        return {"missing": f"a run of {source.network.products:,} multiplications takes too long under emulation"}
    sizes = (tuple(each.terminal.tensor.buffer.bytes for each in ends) for ends in (source.inputs, source.outputs))
    inputs, results = sizes
    network = emulation.CNetwork(folder, source.name, inputs=inputs, outputs=results, verb=source.verb)
    stream = source.network.stream
    count = SAMPLES if stream is None else stream.calls * (1 if stream.is_padded else SAMPLES)
    count = min(count, max(SAMPLES, MOST_PRODUCTS // max(source.network.products, 1)))
    data = [
        [encoded(each.terminal, feeds[each.terminal.name]).tobytes() for each in source.inputs]
        for feeds in calls[:count]
    ]
    result = {}
    for name in EMULATED:
        stage.advance(f"emulated {name}")
        result[name] = _on(emulation.BOARDS[name], source, network, data, outputs)
    return result


def _on(
    board: emulation.Board,
    source: CSource,
    network: emulation.CNetwork,
    data: Sequence[Sequence[bytes]],
    outputs: Sequence[Mapping[str, np.ndarray]],
) -> dict[str, Any]:
    try:
        run = emulation.run_on_board(board, network, data, emulation.BuildOptions("-O2"))
    except TargetError as error:  # such as a network that is too large for the board
        return {"missing": str(error)}
    for result, wanted in zip(run.outputs, outputs, strict=False):
        for each, memory in zip(source.outputs, result, strict=True):
            _check(board.name, each.name, np.frombuffer(memory, each.terminal.tensor.dtype), wanted[each.name])
    return {
        "samples": len(data),
        "instructions": max(run.instructions),
        "stack_bytes": run.stack_bytes,
        "code_bytes": run.network.text,
        "constant_bytes": run.network.rodata + run.network.data,
        "library_bytes": run.libraries.flash,
    }


def _check(board: str, name: str, result: np.ndarray, wanted: np.ndarray) -> None:
    limit = REAL_TOLERANCE * float(np.abs(wanted).max(initial=0.0)) if wanted.dtype.kind == "f" else 0.0
    different = ~(np.abs(result.astype(np.float64) - wanted) <= limit) & ~(np.isnan(result) & np.isnan(wanted))
    if different.any():
        raise VerificationError(
            f"on an emulated {board}, {int(np.count_nonzero(different))} of {result.size} values of {name} differ from "
            "those of this machine"
        )
