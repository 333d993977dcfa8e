"""Build the CUDA libraries of compiled artifacts without a GPU, for all chips, and compare them in the emulator.

python benchmarks/cuda_verification.py [--artifacts FOLDER ...] [--cache FOLDER] [--built FOLDER] [--out results.json]
                                       [--record]

Each artifact is resolved from its own plan, with --target cuda. One that was resolved before into --built is only read.
--record puts the rows into figures/cuda_verification.json.
"""

import argparse
import json
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import harness
from harness import RESULTS, Column, in_child, number

COLUMNS = (
    Column("artifact", "artifact"),
    Column("kernels", "kernels", number(0)),
    Column("on tensor cores", "on_tensor_cores", number(0)),
    Column("`cuda.so` kB", "library_kb", number(0)),
    Column("`weights.bin` kB", "weights_kb", number(0)),
    Column("registers, at most", "registers"),
    Column("shared bytes, at most", "shared_bytes", number(0)),
    Column("bytes spilled", "spilled_bytes", number(0)),
    Column("instructions of tensor cores", "instructions"),
    Column("as in the PTX", "as_in_ptx"),
    Column("s", "seconds", number(0)),
    Column("of these assembling", "assembler_seconds", number(1)),
    Column("integers compared", "integers", number(0)),
    Column("floats compared", "reals", number(0)),
    Column("different", "different", number(0)),
    Column("end to end", "end_to_end", number(0)),
    Column("of roundings", "rounded", number(0)),
    Column("how", "how"),
    Column("note", "note"),
)
FIRST, LAST = "sm_80", "sm_90a"
# Families of kernels on tensor cores.
PRODUCTS = ("dense_mma", "sparse_mma", "float8_mma")


def build(folder: str, output: str, cache: str | None) -> None:
    """Resolve an artifact with its own plan, for the CUDA library; runs in a child."""
    from ptqc.api import resolve
    from ptqc.artifact.folder import load

    resolve(folder, output=output, plan=load(folder).plan, target="cuda", cache=cache, force=True)


def assembled(folder: str) -> float:
    """Seconds that the assembler takes again for all chips that there is machine code for; runs in a child."""
    from ptqc.artifact.folder import load
    from ptqc.codegen.cuda.emulator.opening import read_ptx
    from ptqc.codegen.cuda.emulator.ptx import modules
    from ptqc.codegen.cuda.toolkit import ASSEMBLED, Toolkit, architecture_for

    program, texts = Toolkit.require().folder / "ptxas", modules(read_ptx(Path(folder) / "cuda"))
    with tempfile.TemporaryDirectory() as room:
        for architecture, text in texts.items():
            Path(room, str(architecture)).write_text(text, encoding="utf-8")
        started = time.monotonic()
        for gpu in load(folder).manifest["targets"]["cuda"]["gpus"]:
            ptx = Path(room, str(architecture_for(gpu, texts)))
            command = [str(program), *ASSEMBLED, f"-arch={gpu}", str(ptx), "-o", f"{room}/code"]
            subprocess.run(command, check=True, capture_output=True)
        return time.monotonic() - started


def facts_of(folder: Path) -> dict[str, Any]:
    """What an artifact tells of its CUDA library."""
    report, kernels = harness.manifest(folder)["targets"]["cuda"], _read(folder / "cuda" / "kernels.json")
    gpus, steps = report["gpus"], report["steps"]
    return {
        "kernels": report["kernels"],
        "on_tensor_cores": sum(count for family, count in steps.items() if family.startswith(PRODUCTS)),
        "library_kb": report["bytes"] / 1000,
        "weights_kb": report["weights_bytes"] / 1000,
        "registers": _first_and_last(gpus, "registers"),
        "shared_bytes": _most_shared(kernels["machine_code"].values()),
        "spilled_bytes": sum(gpu["spilled_bytes"] for gpu in gpus.values()),
        "instructions": _first_and_last(gpus, "tensor_core_instructions"),
        "as_in_ptx": _as_in_ptx(folder / "cuda", kernels["machine_code"]),
        "seconds": _read(folder / "run.json")["seconds"],
        **_compared(report["verification"], sum(steps.values())),
    }


def _first_and_last(gpus: Mapping[str, Mapping[str, int]], what: str) -> str:
    return f"{gpus[FIRST][what]:,}; {gpus[LAST][what]:,}"


def _most_shared(codes: Iterable[Mapping[str, Mapping[str, int]]]) -> int:
    return max((code["shared_bytes"] for of_kernel in codes for code in of_kernel.values()), default=0)


def _as_in_ptx(folder: Path, codes: Mapping[str, Mapping[str, Mapping[str, int]]]) -> str:
    """How many kernels have as many products as their PTX on every chip, or where a loop was unrolled a multiple."""
    from ptqc.codegen.cuda.emulator.opening import read_ptx
    from ptqc.codegen.cuda.emulator.ptx import modules
    from ptqc.codegen.cuda.toolkit import architecture_for

    products = {architecture: _products(text) for architecture, text in modules(read_ptx(folder)).items()}
    right, all_of = 0, 0
    for name, of_chips in codes.items():
        expected = [products[architecture_for(gpu, products)][name] for gpu in of_chips]
        counts = [code["tensor_core_instructions"] for code in of_chips.values()]
        all_of += any((*expected, *counts))
        right += all(
            wanted and counted and counted % wanted == 0 for wanted, counted in zip(expected, counts, strict=True)
        )
    return f"{right} of {all_of} kernels"


def _products(ptx: str) -> dict[str, int]:
    """Of matrices, by kernel of a module."""
    from ptqc.codegen.cuda.emulator.ptx import Instruction, kernels

    def count(statements: Iterable[Any]) -> int:
        return sum(isinstance(each, Instruction) and each.opcode.startswith("mma.") for each in statements)

    return {kernel.name: count(kernel.statements) for kernel in kernels(ptx)}


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _compared(verification: Mapping[str, Any], calls: int) -> dict[str, Any]:
    """What the emulator said. A kernel that differs would have ended the compile; end to end, what lies behind float
    parts that are rounded may differ."""
    if "missing" in verification:
        return {"note": f"not verified: {verification['missing']}"}
    compared = {"integers": verification["integers_compared"], "reals": verification["reals_compared"], "different": 0}
    if "cropped" not in verification:
        return {
            **compared,
            "end_to_end": sum(verification["end_to_end_different"].values()),
            "rounded": sum(verification["end_to_end_rounded"].values()),
            "how": "whole",
        }
    shares = verification["cropped"].values()
    cropped = f", {len(shares)} of {calls} calls cropped, to {min(shares):.0%} at least" if shares else ""
    return {**compared, "how": f"kernel by kernel{cropped}"}


def measure(artifact: Path, built: Path, cache: str | None) -> dict[str, Any]:
    """The row of an artifact."""
    folder, manifest = built / artifact.name, harness.manifest(artifact)
    about = {"task": Path(manifest["source"]["name"]).stem, "budget": manifest["budget"], "artifact": artifact.name}
    outcome = None if (folder / "cuda").is_dir() else in_child(build, str(artifact), str(folder), cache)
    if outcome is not None and outcome.error:
        return {**about, "note": outcome.error}
    seconds = in_child(assembled, str(folder)).value
    return {**about, "assembler_seconds": seconds, **facts_of(folder)}


def parse() -> argparse.Namespace:
    parser = harness.command_line(__doc__)
    parser.add_argument("--artifacts", nargs="+", default=[RESULTS], help="artifacts, or folders of them")
    parser.add_argument("--built", type=Path, default=RESULTS / "cuda", help="where artifacts with libraries are put")
    parser.add_argument("--cache", help="the store that the artifacts' measurements are in")
    parser.add_argument("--record", action="store_true", help="put the rows into figures/cuda_verification.json")
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    facts, rows = harness.machine(), list[dict[str, Any]]()
    for artifact in harness.artifacts_below(arguments.artifacts):
        harness.say(artifact.name)
        rows.append(measure(artifact, arguments.built, arguments.cache))
        harness.write_results(arguments.out, rows, facts)
    if arguments.record:
        harness.record(harness.FIGURES / "cuda_verification.json", rows, facts)
    harness.print_results(rows, COLUMNS, facts)


if __name__ == "__main__":
    main()
