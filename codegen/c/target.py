"""Building the target c: source that a C99 compiler takes, compared with the packed file on this machine."""

import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from ptqc.codegen.c import boards, emulation, footprint, verify
from ptqc.codegen.c.arena import Arena, plan
from ptqc.codegen.c.lowering import (
    BETWEEN_CODES,
    NAME,
    ON_CODES,
    OPERATORS,
    network_of,
    not_known,
    shapes_and_constants,
)
from ptqc.codegen.c.network import NetworkCalls, Stream
from ptqc.codegen.c.options import COptions
from ptqc.codegen.c.session import CallSession
from ptqc.codegen.c.source import CSource
from ptqc.codegen.c.timeline import timeline
from ptqc.codegen.foreign.comparison import ForeignTarget
from ptqc.codegen.kernels.checks import computing
from ptqc.codegen.kernels.jobs import compared_values
from ptqc.codegen.onnxruntime.constants import Bias
from ptqc.codegen.program.batching import Batching, Seen, run_by_run
from ptqc.codegen.program.inputs import fixed_inputs
from ptqc.codegen.program.specializing import specialized
from ptqc.codegen.targets import Footprint, Target, TargetInput, TargetOutput, Tool
from ptqc.errors import NoKernel, TargetError
from ptqc.execution.onnxruntime import Feeds, Runner
from ptqc.ir.lowered import Lowered
from ptqc.ir.nodes import output_name
from ptqc.ir.quantized_weight import QuantizedWeight
from ptqc.losses.recognition import states_of
from ptqc.utils.progress import SILENT_STAGE, Stage


class CTarget(ForeignTarget):
    """The target as a compile knows it; see `ptqc.codegen.targets.Target`."""

    name: ClassVar[str] = NAME

    def check_options(self, options: COptions) -> None:
        """The name was checked when it was given."""

    def check_present(self) -> None:
        """Raises TargetError without a C compiler, which verifies what is built."""
        verify.compiler()

    def tools(self) -> Iterator[Tool]:
        """What verifies the source, counts its flash and runs it on emulated cores."""
        with suppress(TargetError):  # which is told of the target itself
            program = verify.compiler()
            yield Tool(Path(program).name, program, "compiles and verifies the source on this machine", "")
        flags, host = " ".join(emulation.CORTEX_M4.flags), "the compiler of this machine, whose code has other sizes"
        uses = {
            emulation.COMPILER: (f"counts flash, with {flags}", f"flash is counted with {host}"),
            emulation.EMULATOR: (
                "runs the source on an emulated Cortex-M4 and Cortex-M55",
                "the source is compared on this machine alone, and instructions and stack are not counted",
            ),
        }
        for name, (use, without) in uses.items():
            yield Tool(name, shutil.which(name) or "", use, f"{without}: {emulation.INSTALL}")

    def check_sizes(self, row_shapes: Collection[tuple[tuple[int, ...], ...]], model: ir.Model) -> None:
        """Raises TargetError for samples of several sizes: memory is planned for one."""
        del model
        if len(row_shapes) > 1:
            raise TargetError(
                f"the {NAME} target plans its memory for one size of samples, and these have {len(row_shapes)}; give "
                "samples of one size (images with --resize and --crop, texts with --padding and --length)"
            )

    def check_kernels(self, model: ir.Model) -> None:
        """Raises TargetError for an operator without a kernel, and for outputs that are no tensors."""
        super().check_kernels(model)
        known = {*ON_CODES, *BETWEEN_CODES, *OPERATORS}
        for node in computing(model):
            if node.domain or node.op_type not in known:
                reason = not_known(node.op_type)
                raise NoKernel(f"the {NAME} target has no kernel for {node.op_type} {output_name(node)}: {reason}")

    def check_frames(self, model: ir.Model, feeds: Feeds, options: COptions) -> None:
        """Raises TargetError where time is padded behind windows, and whatever else cannot be computed by frames."""
        if options.c_stream is not None:
            sample = {name: array[:1] for name, array in feeds.items()}
            seen = Seen.of(model, sample, fixed_inputs(model, [sample]))
            plain = Lowered(model, {}, {}, {}, {})
            timeline(plain, *shapes_and_constants(model, seen), options.c_stream, options.c_frames)

    def build(
        self,
        source: TargetInput,
        options: COptions,
        store: Path,
        folder: Path,
        stage: Stage = SILENT_STAGE,
    ) -> TargetOutput:
        """The source, run on this machine with all samples. Raises NoKernel, and VerificationError where it differs."""
        del store
        text, samples = source_of(source, options)
        session = CallSession.of(text.network.stream, samples)
        windows = list(session.windows.values())
        verification, outputs = verify.built_and_compared(text, session, wanted(source, windows), stage)
        files = {}
        for name, content in text.files().items():
            files[name] = folder / name
            files[name].write_text(content, encoding="utf-8")
        emulated = boards.emulate(text, session.calls, outputs, folder, stage)
        document = {**figures(text.network, text.arena), "verification": verification, "boards": emulated}
        return TargetOutput(files, document)

    def footprint(self, source: TargetInput, options: COptions) -> Footprint:
        """Flash and memory of what is built. Raises NoKernel, and TargetError where it cannot be compiled."""
        names = {codes: tensor for tensor, codes in source.lowered.codes.items()}
        return footprint.footprint(source_of(source, options)[0], names)

    def stored(self, weight: QuantizedWeight, biases: Sequence[Bias | None], *, is_depthwise: bool) -> tuple[int, str]:
        """Bytes of a weight with scales and biases, and the kind of its packing."""
        return footprint.stored(weight, biases, is_depthwise=is_depthwise)

    def unpacking_bytes(self, source: TargetInput, options: COptions, functions: Collection[str]) -> Mapping[str, int]:
        """Bytes of the functions that unpack these kinds. Raises NoKernel, TargetError."""
        return footprint.unpacking_bytes(source_of(source, options)[0], functions)


def source_of(source: TargetInput, options: COptions) -> tuple[CSource, list[Feeds]]:
    """The C of a graph, with the samples as it takes them."""
    _, samples = run_by_run(source.lowered.model, source.exported, source.samples)
    network = network_for(source, samples, options)
    return CSource(options.c_name, network, plan(network.steps), states_of(source.model)), samples


def network_for(source: TargetInput, samples: list[Feeds], options: COptions | None = None) -> NetworkCalls:
    """The calls for samples of this size."""
    options = options or COptions()
    model = specialized(source.lowered.model, samples, Batching(None, is_any=False))
    seen = Seen.of(model, samples[0], fixed_inputs(model, samples))
    return network_of(replace(source.lowered, model=model), seen, options.c_stream, options.c_frames)


def wanted(source: TargetInput, samples: list[Feeds]) -> Iterator[Mapping[str, np.ndarray]]:
    """Values of the ONNX file for each sample, by name in the lowered graph."""
    names = compared_values(source.lowered, source.exported)
    runner = Runner(source.exported.proto, list(dict.fromkeys(names.values())))
    for feeds in samples:
        values = runner.run(feeds)
        yield {name: values[inner] for name, inner in names.items() if inner in values}


def figures(network: NetworkCalls, arena: Arena) -> dict[str, object]:
    """Bytes of flash and of memory."""
    ends = [each.tensor.buffer.bytes for each in (*network.inputs, *network.outputs)]
    return {
        "constant_bytes": network.constants.bytes,
        "arena_bytes": arena.bytes,
        "input_and_output_bytes": sum(ends),
        "multiplications": network.products,
        "steps": len(network.steps),
        **({} if network.stream is None else _stream(network, network.stream)),
        "arena": [list(each) for each in _stays(network, arena)],
    }


def _stream(network: NetworkCalls, stream: Stream) -> dict[str, object]:
    """How a network takes frames, and bytes that a call leaves to the next."""
    return {
        "state_bytes": network.state_bytes,
        "time_axis": stream.axis,
        "frames_per_call": stream.frames,
        "frames_per_window": stream.window,
        "first_call_with_outputs": stream.first,
        "sees_all_frames": stream.is_padded,
    }


def _stays(network: NetworkCalls, arena: Arena) -> Iterator[tuple[str, int, int, int, int]]:
    """What lies in the arena: its name, place and bytes, and the first and last step that need it."""
    for buffer, life in arena.lives.items():
        yield buffer.name, arena.places[buffer], buffer.bytes, life.start, life.stop - 1
    for number, step in enumerate(network.steps):
        if size := step.scratch(arena.panels[number]):
            yield f"unpacked by {step.operator}", arena.scratch[number], size, number, number


TARGET: Target[COptions] = CTarget()
