"""Networks as C source: bytes, instructions on emulated boards, and integers compared on all calibration samples.

python benchmarks/c_networks.py [--tasks a,b] [--budgets 25%,8bit] [--samples 128] [--out results.json] [--record]

Each network is compiled with --target c; its C is then built by gcc and clang, at -O0 and -O3, with the address and
undefined-behaviour sanitizers, and its outputs for all samples are compared with those of model.onnx in ONNX Runtime:
outputs in codes have to be equal, real ones within 1e-5 of the largest. On the boards it runs with random inputs.
8bit: weights of 8 bits everywhere; 8bit-plain: the same, none of them packed, as kernels are that have nothing else.
"""

import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from harness import FIGURES, Column, Feeds, command_line, machine, number, print_results, record, write_results
from tasks import Task, chosen

import ptqc
from ptqc.codegen.c import packing
from ptqc.codegen.c.emulation import BOARDS, BuildOptions, CNetwork, run_on_board, versions

TASKS = (
    "mlperftiny_kws_dscnn,mlperftiny_vww_mbv1_025_96,mlperftiny_ad_autoencoder,mlperftiny_ic_resnet8,digits_resnet_dw"
)
BUILDS = [(name, level) for name in ("gcc", "clang") for level in ("-O0", "-O3")]
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
TOLERANCE = 1e-5
# What packing has to save.
THRESHOLDS = ("SAVED", "SAVED_OF_MATRIX")
NAME = "network"
COLUMNS = (
    Column("task", "task"),
    Column("budget", "budget"),
    Column("board", "board"),
    Column("constants, bytes", "constant_bytes", number(0)),
    Column("code, bytes", "code_bytes", number(0)),
    Column("arena, bytes", "arena_bytes", number(0)),
    Column("stack, bytes", "stack_bytes", number(0)),
    Column("instructions", "instructions", number(0)),
    Column("samples", "samples", number(0)),
    Column("different", "different", number(0)),
)


class Header:
    """What a header says of the inputs and outputs of a network."""

    def __init__(self, path: Path) -> None:
        self.text = path.read_text(encoding="utf-8")
        declaration = re.search(r"int ptqc_\w+_run\((.*?)\);", self.text, re.DOTALL)
        assert declaration is not None
        parameters = [re.sub(r"\s+", " ", each).strip() for each in declaration[1].split(",")]
        self.inputs = [_named(each) for each in parameters if each.startswith("const ")]
        self.outputs = [_named(each) for each in parameters if not each.startswith("const ")]
        self.titles = re.findall(r"/\* (.+?): .*, (?:codes of 8 bits|float32) \*/", self.text)
        self.last = re.findall(r"/\* .+?: .*?(, channels last)?, (?:codes of 8 bits|float32) \*/", self.text)

    def constant(self, name: str, what: str) -> float | None:
        """Of an input or output: ELEMENTS, SCALE or ZERO_POINT."""
        match = re.search(rf"#define \w+_{name.upper()}_{what} ([-+.\de]+)", self.text)
        return float(match[1]) if match else None

    def sizes(self, terminals: Sequence[tuple[str, str]]) -> tuple[int, ...]:
        """Of each."""
        return tuple(int(self.constant(name, "ELEMENTS") or 0) * np.dtype(kind).itemsize for kind, name in terminals)

    def encoded(self, feeds: Feeds) -> list[bytes]:
        """Inputs as C takes them."""
        result = []
        for place, (kind, name) in enumerate(self.inputs):
            array = feeds[self.titles[place]]
            if self.last[place]:
                array = np.moveaxis(array, 1, -1)
            scale, zero = self.constant(name, "SCALE"), self.constant(name, "ZERO_POINT")
            if scale is not None and zero is not None:
                array = np.clip(np.rint(array / np.float32(scale)) + zero, 0, 255)
            result.append(np.ascontiguousarray(array, kind).tobytes())
        return result

    def different(self, data: bytes, wanted: Mapping[str, np.ndarray]) -> int:
        """How many outputs are others than these."""
        count = start = 0
        for place, (kind, name) in enumerate(self.outputs):
            expected = wanted[self.titles[len(self.inputs) + place]]
            if self.last[len(self.inputs) + place]:
                expected = np.moveaxis(expected, 1, -1)
            result = np.frombuffer(data, kind, expected.size, start)
            start += result.nbytes
            limit = TOLERANCE * float(np.abs(expected).max(initial=0.0))
            scale, zero = self.constant(name, "SCALE"), self.constant(name, "ZERO_POINT")
            if scale is not None and zero is not None:
                result, limit = (result.astype(np.int32) - int(zero)).astype(np.float32) * np.float32(scale), 0.0
            count += int(np.count_nonzero(~(np.abs(result - expected.reshape(-1)) <= limit)))
        return count


def _named(parameter: str) -> tuple[str, str]:
    kind, name = parameter.removeprefix("const ").split(" *")
    return {"uint8_t": "uint8", "float": "float32"}[kind], name


def harness(header: Header) -> str:
    """A program that reads inputs and writes outputs, sample by sample."""
    terminals = [*header.inputs, *header.outputs]
    kinds = {"uint8": "uint8_t", "float32": "float"}
    arrays = [
        f"static {kinds[kind]} {name}[{int(header.constant(name, 'ELEMENTS') or 0)}];" for kind, name in terminals
    ]
    reads = " && ".join(f"fread({name}, sizeof {name}, 1, stdin) == 1" for _, name in header.inputs)
    writes = " ".join(f"fwrite({name}, sizeof {name}, 1, stdout);" for _, name in header.outputs)
    call = f"ptqc_{NAME}_run({', '.join(name for _, name in terminals)})"
    body = f"while ({reads}) {{ if ({call}) return 1; {writes} }} return 0;"
    return "\n".join(["#include <stdio.h>", f'#include "{NAME}.c"', *arrays, f"int main(void) {{ {body} }}", ""])


def compared(folder: Path, header: Header, samples: Sequence[Feeds], wanted: Sequence[Feeds]) -> dict[str, Any]:
    """Outputs of all builds for all samples."""
    different, builds = 0, []
    data = b"".join(b"".join(header.encoded(feeds)) for feeds in samples)
    size = sum(header.sizes(header.outputs))
    with tempfile.TemporaryDirectory() as temporary:
        source, program = Path(temporary) / "harness.c", Path(temporary) / "harness"
        source.write_text(harness(header), encoding="utf-8")
        for name, level in BUILDS:
            if (compiler := shutil.which(name)) is None:
                continue
            subprocess.run([compiler, "-std=c99", level, *SANITIZERS, f"-I{folder}", "-o", program, source], check=True)
            output = subprocess.run([program], input=data, capture_output=True, check=True).stdout
            builds.append(f"{name} {level}")
            parts = (output[place * size : (place + 1) * size] for place in range(len(samples)))
            different += sum(header.different(part, each) for part, each in zip(parts, wanted, strict=True))
    return {"samples": len(samples), "builds": builds, "different": different}


def rows_of(task: Task, budget: str, count: int, folder: Path) -> Iterator[dict[str, Any]]:
    """A row for each board."""
    samples = task.calibration(count)
    eight = budget.startswith("8bit")
    limits: dict[str, Any] = {"bits": (8,), "formats": ("int",)} if eight else {"budget": budget}
    limits |= {"samples": len(samples), "force": True, "target": "c", "c_name": NAME}
    never: dict[str, Any] = dict.fromkeys(THRESHOLDS, 1.0)
    with mock.patch.multiple(packing, **never) if budget == "8bit-plain" else nullcontext():
        artifact = ptqc.compile(task.path, calibration=samples, output=folder, **limits)
    document = artifact.manifest["targets"]["c"]
    header, session = Header(folder / "c" / f"{NAME}.h"), artifact.session()
    names = [value.name for value in session.get_outputs()]
    wanted = [dict(zip(names, session.run(None, feeds), strict=True)) for feeds in samples]
    same = {"task": task.name, "budget": budget, "file_bytes": (folder / "model.onnx").stat().st_size}
    same |= compared(folder / "c", header, samples, wanted) | {"versions": versions(), "optimization": "-O2"}
    same |= {name: document[name] for name in ("arena_bytes", "input_and_output_bytes", "multiplications")}
    network = CNetwork(folder / "c", NAME, header.sizes(header.inputs), header.sizes(header.outputs))
    for name, board in BOARDS.items():
        run = run_on_board(board, network, [header.encoded(feeds) for feeds in samples[:10]], BuildOptions("-O2"))
        outputs = (b"".join(result) for result in run.outputs)
        yield same | {
            "board": name,
            "board_samples": len(run.outputs),
            "board_different": sum(map(header.different, outputs, wanted)),
            "instructions": max(run.instructions),
            "stack_bytes": run.stack_bytes,
            "code_bytes": run.network.text + run.libraries.text,
            "constant_bytes": run.network.rodata + run.network.data,
        }


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--tasks", default=TASKS)
    parser.add_argument("--budgets", default="25%,13%,10%,8bit,8bit-plain")
    parser.add_argument("--samples", type=int, default=128)
    parser.add_argument("--record", action="store_true")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as temporary:
        for task in chosen(options.tasks):
            for budget in options.budgets.split(","):
                try:
                    rows += rows_of(task, budget, options.samples, Path(temporary) / "out")
                except ptqc.errors.Infeasible as error:
                    print(f"{task.name} {budget}: {error}", flush=True)
                    continue
                print(json.dumps(rows[-1]), flush=True)
    print_results(rows, COLUMNS, machine())
    if options.out:
        write_results(options.out, rows, machine())
    if options.record:
        record(FIGURES / "c_networks.json", rows, machine(), "board")


if __name__ == "__main__":
    main()
