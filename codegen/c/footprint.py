"""What a network takes of a microcontroller's flash and memory: measured on its compiled C and on its planned arena."""

import shutil
import subprocess
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path

import numpy as np

from ptqc.codegen.c import packing, verify
from ptqc.codegen.c.arena import Arena
from ptqc.codegen.c.emulation import COMPILER, CORTEX_M4
from ptqc.codegen.c.network import NetworkCalls
from ptqc.codegen.c.source import CSource
from ptqc.codegen.onnxruntime.constants import Bias
from ptqc.codegen.targets import Footprint
from ptqc.errors import TargetError
from ptqc.formats.scales import roots
from ptqc.ir.integer_arithmetic import recovered_bias
from ptqc.ir.quantized_weight import QuantizedWeight
from ptqc.utils.scratch import scratch

# Functions apart, so that those that nothing calls are left out as in a firmware.
FLAGS = ("-std=c99", "-O2", "-ffunction-sections", "-fdata-sections", "-w")
# Structures of pointers are constants only where the code is not moved when it is loaded.
HOST_FLAGS = ("-fno-pic", "-fno-pie", "-fno-asynchronous-unwind-tables")
IN_FLASH = (".text", ".rodata", ".data")
REAL = 4  # bytes of a float


def footprint(source: CSource, names: Mapping[str, str]) -> Footprint:
    """Bytes of a network. names: of tensors of the model, by what the lowered graph calls their codes.

    Raises TargetError where no compiler is here, or it fails.
    """
    sizes, compiler = _sections(source)
    constants = source.network.constants.bytes
    code = sum(size for name, size in sizes.items() if name.startswith(".text"))
    network, arena = source.network, source.arena
    layer, alive = _peak(network, arena)
    return Footprint(
        constant_bytes=constants,
        code_bytes=code,
        structure_bytes=sum(sizes.values()) - code - constants,
        arena_bytes=max(arena.bytes, 8) + network.state_bytes,
        input_and_output_bytes=sum(each.tensor.buffer.bytes for each in (*network.inputs, *network.outputs)),
        compiler=compiler,
        peak=names.get(layer, layer),
        alive=tuple((names.get(name, name), size) for name, size in alive),
    )


def unpacking_bytes(source: CSource, kinds: Collection[str]) -> dict[str, int]:
    """How much code goes where a kind of packing is not used, of a network that uses all of these."""

    def code(used: Collection[str]) -> int:
        steps = [replace(step, kinds=sorted(used) if step.kinds else ()) for step in source.network.steps]
        sizes, _ = _sections(replace(source, network=replace(source.network, steps=steps)))
        return sum(size for name, size in sizes.items() if name.startswith(".text"))

    packed = {kind for kind in kinds if kind != packing.PackedWeights.RAW}
    every = code(packed)
    return {kind: max(0, every - code(packed - {kind})) for kind in sorted(packed)}


def stored(weight: QuantizedWeight, biases: Sequence[Bias | None], *, is_depthwise: bool) -> tuple[int, str]:
    """Bytes of a weight, its scales and the biases beside it in flash, and the kind of its packing."""
    codes = weight.codes
    if not weight.form.has_codes or codes.dtype != np.int8 or codes.ndim < 2:
        return REAL * codes.size, packing.PackedWeights.RAW
    channels = np.moveaxis(codes, weight.axis, 0)
    rows = packing.of_layer(channels)
    taps = 1 if is_depthwise else prod(codes.shape[2:])
    packed = packing.packed(rows, weight.form, taps, is_matrix=codes.ndim == 2)
    scale = weight.scale.reshape(-1).astype(np.float32)
    squares = roots(scale)
    beside = sum(_bias_bytes(bias) for bias in biases if bias is not None)
    if (sums := packing.row_sums(channels, packed)) is not None:
        beside += sums.nbytes
    return packed.bytes + (scale.nbytes if squares is None else squares[0].nbytes) + beside, packed.kind


def _bias_bytes(bias: Bias) -> int:
    result = recovered_bias(bias.codes, np.broadcast_to(bias.step, bias.codes.shape))
    return int(bias.codes.astype(np.int32).nbytes if result is None else result[0].nbytes)


def _sections(source: CSource) -> tuple[dict[str, int], str]:
    """Bytes of all that goes into flash by section, and what compiled it."""
    program, sizes, flags, said = (
        COMPILER,
        "arm-none-eabi-size",
        CORTEX_M4.flags,
        f"{COMPILER} -O2 {' '.join(CORTEX_M4.flags)}, that is with a floating-point unit",
    )
    if shutil.which(program) is None or shutil.which(sizes) is None:
        program, sizes, flags = verify.compiler(), "size", HOST_FLAGS
        said = f"{Path(program).name} -O2 for this machine, as {COMPILER} is not installed"
    with scratch() as temporary:
        folder = Path(temporary)
        for name, text in source.files().items():
            (folder / name).write_text(text, encoding="utf-8")
        target = folder / "network.o"
        _run([program, *flags, *FLAGS, "-c", str(folder / f"{source.name}.c"), "-o", str(target)])
        listed = [line.split() for line in _run([sizes, "-A", str(target)]).splitlines()]
    return {words[0]: int(words[1]) for words in listed if len(words) == 3 and words[0].startswith(IN_FLASH)}, said


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=verify.TIME_LIMIT)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise TargetError(f"the size of a network in C cannot be measured: {error}") from error
    if done.returncode:
        raise TargetError(f"{command[0]} failed on the C of a network: {done.stderr[:2000]}")
    return done.stdout


def _peak(network: NetworkCalls, arena: Arena) -> tuple[str, list[tuple[str, int]]]:
    """The step during which most memory is needed, and what it is needed for, the largest first."""
    best: tuple[int, str, list[tuple[str, int]]] = (0, "", [])
    states = [(buffer.name, buffer.bytes) for buffer in network.states]
    for number, step in enumerate(network.steps):
        alive = [*states, *((buffer.name, buffer.bytes) for buffer, _ in arena.taken(number))]
        if meanwhile := step.scratch(step.panels[0]):
            alive.append((f"unpacked rows and sums of {step.function}" if step.kinds else step.function, meanwhile))
        total = sum(size for _, size in alive)
        if total > best[0]:
            best = total, step.value or step.function, sorted(alive, key=lambda each: -each[1])
    return best[1], best[2]
