"""Runs the C of a network on this machine, and compares every value with what ONNX Runtime computes."""

import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ptqc.codegen.c.network import Buffer, CTensor, Terminal
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


def run(program: Path, source: CSource, samples: Sequence[Feeds]) -> Iterator[dict[int, np.ndarray]]:
    """Bytes of all values by the number of their step, and of outputs by -1, -2, … for each sample.

    samples: inputs by name, as the model has them. Raises VerificationError where the program fails.
    """
    data = b"".join(_encoded(each.terminal, feeds) for feeds in samples for each in source.inputs)
    try:
        done = subprocess.run([str(program)], input=data, capture_output=True, check=False, timeout=TIME_LIMIT)
    except subprocess.TimeoutExpired as error:
        raise VerificationError(f"the C of the network ran for more than {TIME_LIMIT:.0f} s") from error
    if done.returncode:
        message = done.stderr.decode(errors="replace")[:2000]
        raise VerificationError(f"the C of the network failed with status {done.returncode}: {message}")
    sizes = _sizes(source)
    place = 0
    for _ in samples:
        values = {}
        for number, size in sizes.items():
            values[number] = np.frombuffer(done.stdout, np.uint8, size, place)
            place += size
        yield values
    if place != len(done.stdout):
        raise VerificationError(f"the C of the network wrote {len(done.stdout)} bytes in place of {place}")


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
    source: CSource, values: Mapping[int, np.ndarray], wanted: Mapping[str, np.ndarray], comparison: CComparison
) -> None:
    """Compare all values of a run, then its outputs. wanted: of ONNX Runtime, by name in the lowered graph.

    Raises VerificationError.
    """
    comparison.samples += 1
    unsure: set[Buffer] = set()  # values that real ones before them may have changed
    for number, step in enumerate(source.network.steps):
        is_moved = not unsure.isdisjoint(step.reads)
        is_real = step.function in RECURRENT if step.tensor is None else step.tensor.dtype == "float32"
        if is_moved or is_real:
            unsure.update(step.writes)
        if step.tensor is not None and number in values and step.value in wanted:
            result = _value(step.tensor, values[number])
            _judge(f"{step.value} ({step.function})", result, wanted[step.value], is_moved, comparison)
    for at, each in enumerate(source.outputs):
        terminal = each.terminal
        result = _value(terminal.tensor, values[-1 - at])
        is_moved = terminal.tensor.buffer in unsure
        _judge(f"the output {terminal.name}", result, wanted[terminal.value], is_moved, comparison)


def _value(tensor: CTensor, memory: np.ndarray) -> np.ndarray:
    return tensor.in_model(memory.view(tensor.dtype))


def _judge(where: str, result: np.ndarray, expected: np.ndarray, is_moved: bool, comparison: CComparison) -> None:
    expected = expected.reshape(result.shape)
    if result.dtype.kind == "f":
        comparison.reals += result.size
        largest = float(np.abs(expected[np.isfinite(expected)]).max(initial=0.0))
        same = (result == expected) | (np.isnan(result) & np.isnan(expected))
        with np.errstate(invalid="ignore"):
            distance = np.where(same, 0.0, np.abs(result - expected))
        limit = REAL_TOLERANCE * largest * (100 if is_moved else 1)
        if not (distance <= limit).all():
            raise VerificationError(
                f"the C of the network differs from the ONNX file at {where}: by {float(distance.max()):.1e} where "
                f"{limit:.1e} is allowed"
            )
        return
    comparison.integers += result.size
    apart = np.abs(result.astype(np.int64) - expected)
    count = int(np.count_nonzero(apart))
    if not count:
        return
    if not is_moved:
        comparison.different[where] = comparison.different.get(where, 0) + count
        raise VerificationError(
            f"the C of the network differs from the ONNX file at {where}: {count} of {result.size} integers, by up to "
            f"{int(apart.max())}"
        )
    comparison.rounded[where] = comparison.rounded.get(where, 0) + count


def harness(source: CSource) -> str:
    """A program that reads samples, and writes what every step and every output is."""
    reads = " || ".join(
        f"fread({each.name}, sizeof {each.name}, 1, stdin) != 1" for each in source.inputs
    ) or "ran++"  # fmt: skip
    declared = "\n".join(
        f"static {each.type} {each.name}[{each.terminal.tensor.size}];" for each in (*source.inputs, *source.outputs)
    )
    writes = "\n".join(f"    put({each.name}, sizeof {each.name});" for each in source.outputs)
    arguments = ", ".join(each.name for each in (*source.inputs, *source.outputs))
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
  int ran = 0;
  (void)ran;
  while (!({reads})) {{
    if (ptqc_{source.name}_run({arguments})) return 2;
{writes}
  }}
  return 0;
}}
"""


def compare_samples(
    source: CSource,
    program: Path,
    samples: Sequence[Feeds],
    wanted: Iterable[Mapping[str, np.ndarray]],
    comparison: CComparison,
    stage: Stage = SILENT_STAGE,
) -> list[dict[str, np.ndarray]]:
    """Run and compare sample by sample, so that memory is bounded; outputs by their names in C.

    wanted: what ONNX Runtime computes.
    """
    outputs = []
    for number, (sample, expected) in enumerate(zip(samples, wanted, strict=True), 1):
        stage.advance(f"the C of sample {number} of {len(samples)}")
        (values,) = run(program, source, [sample])
        compare(source, values, expected, comparison)
        outputs.append(
            {each.name: values[-1 - at].view(each.terminal.tensor.dtype) for at, each in enumerate(source.outputs)}
        )
    return outputs


def built_and_compared(
    source: CSource,
    samples: Sequence[Feeds],
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
        outputs = compare_samples(source, built, samples, wanted, comparison, stage)
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
