"""One token of a decoder behind a past: the library and the file of ptqc, ONNX Runtime's MatMulNBits, llama.cpp's Q4_K.

python benchmarks/decode.py [--size 100m] [--past 512] [--llama FOLDER] [--blocks 9] [--work FOLDER] [--out FILE]

The decoder is `models/random_llama.py --cache`. FOLDER is where `pip install --target FOLDER llama-cpp-python gguf` put
llama.cpp; without it, it is left out. Weights have 4 bits everywhere: in ptqc codes with a scale per output, and
activations in 8 bits; in MatMulNBits blocks of 32 inputs with activations in 8 bits (accuracy level 4); in llama.cpp
Q4_K for all matrices. Caches are float32, in llama.cpp float16. All are open in one process and take turns.
"""

import argparse
import functools
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness
import latency
import llama_cpp_decoder
import numpy as np
import onnx
from harness import RESULTS, ROOT, Column, in_child, number

sys.path.append(str(ROOT / "models"))

import random_llama

BITS, BLOCK, ACCURACY = 4, 32, 4
SAMPLES = 6
LIBRARY, FILE, NBITS, LLAMA, FLOAT = "ptqc library", "ptqc file", "MatMulNBits", "llama.cpp Q4_K", "float file"
COLUMNS = (
    Column("what", "what"),
    Column("bits a weight", "bits", number(2)),
    Column("bytes a token", "bytes", number(0)),
    Column("ms a token", "milliseconds", number(2)),
    Column("tokens a second", "tokens", number(1)),
    Column("library's tokens of it", "library_of", number(2)),
    Column("note", "note"),
)


def compiled(size: str, past: int, folder: str) -> dict[str, int]:
    """Bytes of the matrices in the library and in the file. Runs in a child."""
    from ptqc.api import compile as compile_model

    shape, place = random_llama.SHAPES[size], Path(folder)
    artifact = compile_model(
        place / "float.onnx",
        calibration=[random_llama.step(shape, past, seed) for seed in range(SAMPLES)],
        output=place / "out",
        force=True,
        target="cpu",
        bits=(BITS,),
        activations="integer",
        observer="minmax",
        samples=SAMPLES,
    )
    (library,) = artifact.manifest["targets"]["cpu"]["libraries"]
    embedding = shape.vocabulary * shape.width  # codes of a byte, of which a token reads one row
    return {LIBRARY: library["loaded_bytes"] - embedding, FILE: artifact.manifest["memory"]["weights_bytes"]}


def in_blocks(folder: str) -> int:
    """ONNX Runtime's own file in blocks; bytes of its matrices. Runs in a child."""
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    quantizer = MatMulNBitsQuantizer(
        onnx.load(Path(folder) / "float.onnx"), block_size=BLOCK, is_symmetric=True, accuracy_level=ACCURACY
    )
    quantizer.process()
    quantizer.model.save_model_to_file(str(Path(folder) / "nbits.onnx"), use_external_data_format=True)
    nodes = [node for node in quantizer.model.model.graph.node if node.op_type == "MatMulNBits"]
    taken = {name for node in nodes for name in node.input[1:]}
    graph = onnx.load(Path(folder) / "nbits.onnx").graph
    return sum(len(x.raw_data) for x in graph.initializer if x.name in taken)


def raced(size: str, past: int, folder: str, llama: str, blocks: int, seconds: float) -> dict[str, list[float]]:
    """Milliseconds a token, a list over blocks. Runs in a child."""
    import onnxruntime as ort

    shape, place = random_llama.SHAPES[size], Path(folder)
    feeds = random_llama.step(shape, past, SAMPLES)
    runs: dict[str, Callable[[], Any]] = {
        LIBRARY: functools.partial(latency.open_native(str(place / "out" / "model.onnx"), 1), feeds)
    }
    for name, path in ((FILE, "out/model.onnx"), (NBITS, "nbits.onnx"), (FLOAT, "float.onnx")):
        session = ort.InferenceSession(
            str(place / path), harness.session_options(1), providers=["CPUExecutionProvider"]
        )
        runs[name] = functools.partial(session.run, None, feeds)
    if llama:
        sys.path.append(llama)
        runs[LLAMA] = llama_cpp_decoder.opened(place / "q4_k.gguf", past, shape.vocabulary, 1)
    return latency.take_turns(
        {name: functools.partial(latency.timed, run) for name, run in runs.items()}, blocks, seconds
    )


def quantized(size: str, past: int, folder: str, llama: str) -> int:
    """llama.cpp's file; bytes of its matrices. Runs in a child."""
    sys.path.append(llama)
    shape, place = random_llama.SHAPES[size], Path(folder)
    path = llama_cpp_decoder.write(place / "float.onnx", shape, 2 * past, place / "q4_k.gguf")
    return int(path.stat().st_size * (1 - shape.vocabulary * shape.width / shape.parameters))


def rows_of(options: argparse.Namespace) -> list[dict[str, Any]]:
    """One row for each, the library first."""
    shape, folder, llama = random_llama.SHAPES[options.size], str(options.work), str(options.llama or "")
    options.work.mkdir(parents=True, exist_ok=True)
    random_llama.write(shape, options.work / "float.onnx", cache=True)
    weights = shape.parameters - shape.vocabulary * shape.width
    made = in_child(compiled, options.size, options.past, folder)
    if made.error:
        return [{"what": LIBRARY, "note": made.error}]
    sizes: dict[str, int] = {**made.value, FLOAT: 4 * weights}
    for name, function, arguments in (
        (NBITS, in_blocks, (folder,)),
        (LLAMA, quantized, (options.size, options.past, folder, llama)),
    ):
        if name == LLAMA and not llama:
            continue
        found = in_child(function, *arguments)
        if found.error:
            return [{"what": name, "note": found.error}]
        sizes[name] = found.value
    times = in_child(raced, options.size, options.past, folder, llama, options.blocks, options.seconds)
    if times.error:
        return [{"what": "all", "note": times.error}]
    cache = 2 * shape.layers * shape.shared * shape.head * options.past
    return [_row(name, sizes[name], weights, cache, times.value) for name in times.value]


def _row(name: str, size: int, weights: int, cache: int, times: dict[str, list[float]]) -> dict[str, Any]:
    """size: bytes of matrices; cache: its numbers."""
    milliseconds = statistics.median(times[name])
    return {
        "what": name,
        "bits": 8 * size / weights,
        "bytes": size + cache * np.dtype("float16" if name == LLAMA else "float32").itemsize,
        "milliseconds": milliseconds,
        "tokens": 1000 / milliseconds,
        "library_of": latency.ratio(times[name], times[LIBRARY]),
    }


def main() -> None:
    """Print the table."""
    parser = harness.command_line(__doc__)
    parser.add_argument("--size", choices=random_llama.SHAPES, default="100m")
    parser.add_argument("--past", type=int, default=512, help="tokens in the caches")
    parser.add_argument("--llama", type=Path, help="where llama-cpp-python and gguf are installed")
    parser.add_argument("--blocks", type=int, default=9, help="rounds; each runs once in each")
    parser.add_argument("--seconds", type=float, default=0.5, help="seconds of a block")
    parser.add_argument("--work", type=Path, default=RESULTS / "decode", help="for models and artifacts")
    options = parser.parse_args()
    rows, facts = rows_of(options), harness.machine()
    harness.write_results(options.out, rows, facts)
    harness.print_results(rows, COLUMNS, facts)


if __name__ == "__main__":
    main()
