"""CUDA libraries on a GPU: compared with ONNX Runtime's values, and timed against torch and cuBLASLt.

python benchmarks/gpu.py network resnet50.onnx
python benchmarks/gpu.py prepare FOLDER [ARTIFACT …] [--sides 1024,4096] [--tiles 4]
python FOLDER/gpu.py run FOLDER [--out results.json] [--minutes 9] [--dry-run]

`network` writes ResNet-50 with drawn weights, for `ptqc compile --activations integer --target cuda`. `prepare` needs
no GPU. `run` needs a GPU with PyTorch, this version of Python, and nothing but the folder; with --dry-run it needs a
C++ compiler instead, runs in the emulator, and times nothing. After --minutes it begins no further part and ends with
exit code 75; the same command then goes on with the parts that --out does not have.

Products are dense ones, ones of which two of each four weights are zero, and ones of FP8; artifacts of `ptqc compile`
with --sparsity 2:4 or --activations float8 compare what the latter two compute. Dense products are timed in several
tiles, each as a share of the time of the predicted ones: what is below 1 is what tuning on such a GPU gains.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# sysexits.h calls it a temporary failure.
LEFT = 75
SHARES = ("of_cublaslt", "of_the_predicted_tiles")


def main(arguments: Sequence[str]) -> int:
    options = _parser().parse_args(arguments)
    if options.command == "network":
        import gpu_network

        options.file.write_bytes(gpu_network.onnx_model().SerializeToString())
    elif options.command == "prepare":
        import gpu_folder

        size = gpu_folder.prepare(options.folder, options.artifacts, options.sides, options.tiles)
        print(f"{options.folder}: {size:,} bytes")
    else:
        return _run(options)
    return 0


def _run(options: argparse.Namespace) -> int:
    import gpu_runs

    folder, until = options.folder.resolve(), time.monotonic() + 60 * options.minutes
    gpu_runs.use_libraries_of(folder)
    with tempfile.TemporaryDirectory() as room:
        machine = gpu_runs.Emulator(Path(room)) if options.dry_run else gpu_runs.Gpu(folder / "lib")
        results = _results(options.out, machine.name)
        print(f"on {machine.name}\n")
        for name, part in gpu_runs.parts(folder, machine).items():
            if name in results["parts"]:
                continue
            if time.monotonic() > until:
                print(f"\nleft, from {name} on: run the same command again")
                return LEFT
            results["parts"][name] = []
            for row in part():
                results["parts"][name].append(row)
                print(_line(row), flush=True)
            if options.out:
                options.out.write_text(json.dumps(results, indent=1))
    rows = [row for part in results["parts"].values() for row in part]
    return 0 if all(row.get("is_right", True) for row in rows) else 1


def _results(path: Path | None, device: str) -> dict[str, Any]:
    """What an earlier run wrote, which has to be of the same device."""
    if path is None or not path.exists():
        return {"device": device, "parts": {}}
    results: dict[str, Any] = json.loads(path.read_text())
    if results["device"] != device:
        raise SystemExit(f"{path} has results of {results['device']}, and this is {device}: give another --out")
    return results


def _line(row: dict[str, Any]) -> str:
    """A row of a Markdown table."""
    took = row.get("microseconds")
    outcome = row.get("found") or ("not timed" if took is None else f"{took:,.1f} µs")
    shares = [f"{row[key]:.2f} {key.replace('_', ' ')}" for key in SHARES if row.get(key)]
    return f"| {row['what']} | {'; '.join([outcome, *shares])} |"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    network = commands.add_parser("network")
    network.add_argument("file", type=Path)
    prepare = commands.add_parser("prepare")
    prepare.add_argument("folder", type=Path)
    prepare.add_argument("artifacts", type=Path, nargs="*")
    prepare.add_argument("--sides", type=_sides, default="1024,2048,4096,8192")
    prepare.add_argument("--tiles", type=int, default=4)
    run = commands.add_parser("run")
    run.add_argument("folder", type=Path)
    run.add_argument("--dry-run", action="store_true")
    run.add_argument("--out", type=Path)
    run.add_argument("--minutes", type=float, default=9, help="after which no further part begins")
    return parser


def _sides(text: str) -> list[int]:
    return [int(side) for side in text.split(",") if side]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
