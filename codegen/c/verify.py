"""Runs the C of a network on this machine, and compares every value with what ONNX Runtime computes."""

import os
import shutil
import subprocess
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ptqc.codegen.c.network import Buffer, CTensor, Stream, Terminal
from ptqc.codegen.c.session import CallSession, Trace, value_in_window
from ptqc.codegen.c.source import CSource
from ptqc.errors import TargetError, VerificationError
from ptqc.execution.onnxruntime import Feeds
from ptqc.utils.progress import SILENT_STAGE, Stage
from ptqc.utils.scratch import scratch

COMPILERS = ("cc", "gcc", "clang")
WARNINGS = ("-std=c99", "-Wall", "-Wextra", "-Wconversion", "-pedantic")
SANITIZERS = ("-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
OPTIMIZED = ("-O1",)
TIME_LIMIT = 600.0
# Functions that give several real values.
RECURRENT = ("lstm", "gru")
# How far real values may be from ONNX Runtime's, as a share of the largest of their tensor.
REAL_TOLERANCE = 1e-4


def compiler() -> str:
    """The C compiler of this machine: CC, or the first that there is. Raises TargetError without one."""
    named = os.environ.get("CC", "")
    candidates = [named] if named else COMPILERS
    path = next(filter(None, map(shutil.which, candidates)), None)
    if path is None:
        what = f"CC is {named!r}, which is not a program" if named else "none of cc, gcc and clang is installed"
        raise TargetError(
            f"the c target compiles and runs its C on this machine to verify it, and {what}: install a C compiler "
            "(Debian: apt install gcc), or name one with CC"
        )
    return path


@dataclass
class CComparison:
    """What was compared. different: integers that differ, by tensor. rounded: those that only real values before them
    make round otherwise.
    """

    samples: int = 0
    integers: int = 0
    reals: int = 0
    different: dict[str, int] = field(default_factory=dict)
    rounded: dict[str, int] = field(default_factory=dict)

    def document(self) -> dict[str, object]:
        """For the manifest."""
        return {
            "samples": self.samples,
            "integers_compared": self.integers,
            "integers_different": sum(self.different.values()),
            "integers_rounded": sum(self.rounded.values()),
            "reals_compared": self.reals,
        }


def compiled(source: CSource, folder: Path, flags: Sequence[str], program: str = "") -> Path:
    """A program that runs samples from its input and writes all values to its output. Raises TargetError.

    folder: gets the files. program: the compiler; that of this machine.
    """
    for name, text in source.files().items():
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "harness.c").write_text(harness(source), encoding="utf-8")
    path = folder / "harness"
    command = [program or compiler(), *WARNINGS, *flags, "-o", str(path), str(folder / "harness.c")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise TargetError(f"{command[0]} does not compile the C of the network: {done.stderr[:2000]}")
    return path


def run(program: Path, source: CSource, calls: Sequence[Feeds], starts: Collection[int] = ()) -> Iterator[Trace]:
    """Bytes of all values by the number of their step, and of outputs by -1, -2, … for each call.

    calls: inputs by name, as the model has them. starts: those that begin a recording. Raises VerificationError where
    the program fails.
    """
    stream = source.network.stream
    data = b"".join(
        (b"" if stream is None else bytes([number in starts]))
        + b"".join(_encoded(each.terminal, feeds) for each in source.inputs)
        for number, feeds in enumerate(calls)
    )
    try:
        done = subprocess.run([str(program)], input=data, capture_output=True, check=False, timeout=TIME_LIMIT)
    except subprocess.TimeoutExpired as error:
        raise VerificationError(f"the C of the network ran for more than {TIME_LIMIT:.0f} s") from error
    if done.returncode:
        message = done.stderr.decode(errors="replace")[:2000]
        raise VerificationError(f"the C of the network failed with status {done.returncode}: {message}")
    sizes = _sizes(source)
    place = since = 0
    for number in range(len(calls)):
        values = {}
        for step, size in sizes.items():
            values[step] = np.frombuffer(done.stdout, np.uint8, size, place)
            place += size
        if stream is not None:
            since = 0 if number in starts else since + 1
            _check_status(int(done.stdout[place]), since + 1, stream)
            place += 1
        yield values
    if place != len(done.stdout):
        raise VerificationError(f"the C of the network wrote {len(done.stdout)} bytes in place of {place}")


def _check_status(status: int, call: int, stream: Stream) -> None:
    if (status == 0) != (call >= stream.first):
        raise VerificationError(
            f"call {call} of the C of the network gives {status}, and outputs are due from call {stream.first} on"
        )


def _sizes(source: CSource) -> dict[int, int]:
    sizes = {
        number: step.tensor.buffer.bytes
        for number, step in enumerate(source.network.steps)
        if step.tensor is not None and step.value
    }
    return sizes | {-1 - at: each.terminal.tensor.buffer.bytes for at, each in enumerate(source.outputs)}


def _encoded(terminal: Terminal, feeds: Feeds) -> bytes:
    """An input as C takes it."""
    return encoded(terminal, feeds[terminal.name]).tobytes()


def encoded(terminal: Terminal, array: np.ndarray) -> np.ndarray:
    """A value of the model as it is in the memory of C: codes where C has these."""
    if terminal.codes is not None:
        scale, zero = terminal.codes
        steps = np.rint(array.astype(np.float32) / np.float32(scale)) + np.float32(zero)
        array = np.clip(np.nan_to_num(steps, nan=0.0), 0, 255).astype(np.uint8)
    return terminal.tensor.to_memory(np.asarray(array, terminal.tensor.dtype))


def compare(
    source: CSource, traces: Sequence[Trace], wanted: Mapping[str, np.ndarray], comparison: CComparison
) -> None:
    """Compare all values of a window, then its outputs. traces: of calls, the last of which completes the window.

    wanted: of ONNX Runtime, by name in the lowered graph. Raises VerificationError.
    """
    comparison.samples += 1
    unsure: set[Buffer] = set()  # values that real ones before them may have changed
    stream = source.network.stream
    rows = {} if stream is None else stream.rows

    def judge(where: str, tensor: CTensor, value: str, number: int, is_moved: bool) -> None:
        computed = value_in_window(tensor, rows.get(value), stream, traces, number, wanted[value])
        if computed is not None:
            _judge(where, computed.array, computed.of_model(wanted[value]), is_moved, comparison)

    for number, step in enumerate(source.network.steps):
        is_moved = not unsure.isdisjoint(step.reads)
        is_real = step.function in RECURRENT if step.tensor is None else step.tensor.dtype == "float32"
        if is_moved or is_real:
            unsure.update(step.writes)
        if step.tensor is not None and number in traces[-1] and step.value in wanted:
            judge(f"{step.value} ({step.function})", step.tensor, step.value, number, is_moved)
    for at, each in enumerate(source.outputs):
        terminal = each.terminal
        is_moved = terminal.tensor.buffer in unsure
        judge(f"the output {terminal.name}", terminal.tensor, terminal.value, -1 - at, is_moved)


def _judge(where: str, computed: np.ndarray, expected: np.ndarray, is_moved: bool, comparison: CComparison) -> None:
    if computed.dtype.kind == "f":
        comparison.reals += computed.size
        largest = float(np.abs(expected[np.isfinite(expected)]).max(initial=0.0))
        same = (computed == expected) | (np.isnan(computed) & np.isnan(expected))
        with np.errstate(invalid="ignore"):
            distance = np.where(same, 0.0, np.abs(computed - expected))
        limit = REAL_TOLERANCE * largest * (100 if is_moved else 1)
        if not (distance <= limit).all():
            raise VerificationError(
                f"the C of the network differs from the ONNX file at {where}: by {float(distance.max()):.1e} where "
                f"{limit:.1e} is allowed"
            )
        return
    comparison.integers += computed.size
    apart = np.abs(computed.astype(np.int64) - expected)
    count = int(np.count_nonzero(apart))
    if not count:
        return
    if not is_moved:
        comparison.different[where] = comparison.different.get(where, 0) + count
        raise VerificationError(
            f"the C of the network differs from the ONNX file at {where}: {count} of {computed.size} integers, by up "
            f"to {int(apart.max())}"
        )
    comparison.rounded[where] = comparison.rounded.get(where, 0) + count


def harness(source: CSource) -> str:
    """A program that reads inputs, and writes what every step and every output is."""
    reads = " || ".join(
        f"fread({each.name}, sizeof {each.name}, 1, stdin) != 1" for each in source.inputs
    ) or "ran++"  # fmt: skip
    declared = "\n".join(
        f"static {each.type} {each.name}[{each.terminal.tensor.size}];" for each in (*source.inputs, *source.outputs)
    )
    writes = "\n".join(f"    put({each.name}, sizeof {each.name});" for each in source.outputs)
    call = f"ptqc_{source.name}_{source.verb}({', '.join(each.name for each in (*source.inputs, *source.outputs))})"
    loop = (
        f"""\
  int ran = 0;
  (void)ran;
  while (!({reads})) {{
    if ({call}) return 2;
{writes}
  }}"""
        if source.network.stream is None
        else f"""\
  for (int first = getchar(); first != EOF; first = getchar()) {{
    if (first) ptqc_{source.name}_reset();
    if ({reads}) return 2;
    const unsigned char status = (unsigned char){call};
{writes}
    put(&status, 1);
  }}"""
    )
    return f"""\
#include <stdio.h>
#include <stdlib.h>

static void put(const void *data, unsigned long bytes) {{
  if (bytes && fwrite(data, bytes, 1, stdout) != 1) exit(3);
}}
#define PTQC_TRACE(step, data, bytes) put(data, bytes)
#include "{source.name}.c"

{declared}

int main(void) {{
{loop}
  return 0;
}}
"""


def compare_session(
    source: CSource,
    program: Path,
    session: CallSession,
    wanted: Iterable[Mapping[str, np.ndarray]],
    comparison: CComparison,
    stage: Stage = SILENT_STAGE,
) -> list[dict[str, np.ndarray]]:
    """Run and compare window by window; outputs of all calls, by their names in C.

    wanted: what ONNX Runtime computes for each window.
    """
    is_stream = source.network.stream is not None
    traces = list(run(program, source, session.calls, session.starts)) if is_stream else []
    outputs = [_outputs(source, trace) for trace in traces]
    for number, (call, expected) in enumerate(zip(session.windows, wanted, strict=True), 1):
        stage.advance(f"the C of sample {number} of {len(session.windows)}")
        # One by one, as a trace of a whole window may be large.
        ending = traces[: call + 1] if is_stream else list(run(program, source, [session.calls[call]]))
        compare(source, ending, expected, comparison)
        outputs += [] if is_stream else [_outputs(source, ending[0])]
    return outputs


def _outputs(source: CSource, trace: Trace) -> dict[str, np.ndarray]:
    return {each.name: trace[-1 - at].view(each.terminal.tensor.dtype) for at, each in enumerate(source.outputs)}


def built_and_compared(
    source: CSource,
    session: CallSession,
    wanted: Iterable[Mapping[str, np.ndarray]],
    stage: Stage = SILENT_STAGE,
) -> tuple[dict[str, object], list[dict[str, np.ndarray]]]:
    """Compile the network for this machine, with sanitizers where it has them, and compare it; also its outputs.

    Raises TargetError where it does not compile, VerificationError where it differs.
    """
    comparison, program = CComparison(), compiler()
    is_sanitized = has_sanitizers(program)
    with scratch() as temporary:
        folder = Path(temporary)
        built = compiled(source, folder, (*OPTIMIZED, *(SANITIZERS if is_sanitized else ())), program)
        outputs = compare_session(source, built, session, wanted, comparison, stage)
    document = {**comparison.document(), "compiler": Path(program).name, "sanitized": is_sanitized}
    return document, outputs


def has_sanitizers(program: str) -> bool:
    """Whether what a compiler makes with sanitizers runs on this machine."""
    with scratch() as temporary:
        source, built = (Path(temporary) / name for name in ("probe.c", "probe"))
        source.write_text("int main(void) { return 0; }\n", encoding="utf-8")
        command = [program, *SANITIZERS, "-o", str(built), str(source)]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            return False
        return subprocess.run([str(built)], capture_output=True, check=False).returncode == 0
