"""One token of a decoder behind a past: the library and the file of ptqc, ONNX Runtime's MatMulNBits, llama.cpp's Q4_K.

python benchmarks/decode.py [--size 100m] [--past 512] [--kv-cache float,int8] [--llama FOLDER] [--blocks 25]
                            [--work FOLDER] [--again] [--out FILE] [--record RUN]

The decoder is `models/random_llama.py --cache`. FOLDER is where `pip install --target FOLDER llama-cpp-python gguf` put
llama.cpp; without it, it is left out. Weights have 4 bits everywhere: in ptqc codes with a scale per output, and
activations in 8 bits; in MatMulNBits blocks of 32 or 128 inputs with activations in 8 bits (accuracy level 4); in
llama.cpp Q4_K for all matrices. Caches are float32 but in ptqc's libraries with packed ones, and in llama.cpp, where
they are float16. Each of ptqc and ONNX Runtime gets its caches as a run before gave them, and gives them one place
longer; llama.cpp keeps its own.

All are open in one process and take turns on one thread. What is told is processor time of that thread, which other
work on the machine lengthens less than it does time: medians over blocks, the shortest block, and medians of the ratios
within rounds. --again: time what an earlier call left in the folder. --record: put the rows into
figures/decode.json, as those of this run.
"""

import argparse
import functools
import json
import logging
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness
import latency
import llama_cpp_decoder
import onnx
from harness import RESULTS, ROOT, Column, in_child, number

from ptqc.options import CacheKind

sys.path.append(str(ROOT / "models"))

import random_llama

BITS, BLOCKS, ACCURACY = 4, (32, 128), 4
# Of random weights it does not matter to what they are rounded, so there is no time for more than the plainest way.
FORMATS, TIME_LIMIT = ("int",), 30.0
SAMPLES = 6
LIBRARY, FILE, NBITS, LLAMA, FLOAT = "ptqc library", "ptqc file", "MatMulNBits", "llama.cpp Q4_K", "float file"
# Bytes of one number of a cache, and its share of the scale of a row of 64, by form.
CACHE_BYTES = {"float": 4.0, "float16": 2.0, "int8": 1 + 2 / 64, "int4": 0.5 + 2 / 64}
SIZES = "sizes.json"
COLUMNS = (
    Column("what", "what"),
    Column("bits a weight", "bits", number(2)),
    Column("bytes a token", "bytes", number(0)),
    Column("ms a token", "milliseconds", number(2)),
    Column("least", "least", number(2)),
    Column("tokens a second", "tokens", number(1)),
    Column("library's tokens of it", "library_of", number(2)),
    Column("note", "note"),
)


def compiled(size: str, past: int, folder: str, cache: CacheKind) -> dict[str, float]:
    """Bytes of the matrices in the library and in the file. Runs in a child."""
    from ptqc.api import compile as compile_model

    shape, place = random_llama.SHAPES[size], Path(folder)
    artifact = compile_model(
        place / "float.onnx",
        calibration=[random_llama.step(shape, past, seed) for seed in range(SAMPLES)],
        output=place / cache,
        force=True,
        target="cpu",
        bits=(BITS,),
        formats=FORMATS,
        activations="integer",
        observer="minmax",
        samples=SAMPLES,
        time_limit=TIME_LIMIT,
        kv_cache=cache,
    )
    (library,) = artifact.manifest["targets"]["cpu"]["libraries"]
    # A token reads one row of the embedding, whose codes are a byte each, or which is float32.
    (form,) = (entry["format"] for entry in artifact.plan["weights"] if entry["weight"] == "embedding")
    embedding = shape.vocabulary * shape.width * (4 if form.startswith("float") else 1)
    sizes = {named(LIBRARY, cache): library["loaded_bytes"] - embedding}
    return sizes if cache != "float" else {**sizes, FILE: artifact.manifest["memory"]["weights_bytes"]}


def named(what: str, cache: str) -> str:
    """A library with caches of a form."""
    return what if cache == "float" else f"{what}, caches {cache}"


def in_blocks(folder: str, block: int) -> int:
    """ONNX Runtime's own file in blocks; bytes of its matrices. Runs in a child."""
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    logging.disable()
    quantizer = MatMulNBitsQuantizer(
        onnx.load(Path(folder) / "float.onnx"), block_size=block, is_symmetric=True, accuracy_level=ACCURACY
    )
    quantizer.process()
    path = Path(folder) / f"nbits{block}.onnx"
    quantizer.model.save_model_to_file(str(path), use_external_data_format=True)
    nodes = [node for node in quantizer.model.model.graph.node if node.op_type == "MatMulNBits"]
    taken = {name for node in nodes for name in node.input[1:]}
    return sum(len(x.raw_data) for x in onnx.load(path).graph.initializer if x.name in taken)


def raced(
    size: str, past: int, folder: str, caches: list[str], llama: str, blocks: int, seconds: float
) -> dict[str, list[float]]:
    """Milliseconds of the processor a token, a list over blocks. Runs in a child."""
    import onnxruntime as ort

    from ptqc.kv_cache.form import packed_feeds
    from ptqc.kv_cache.known import FIXED
    from ptqc.runtime.library import aligned

    shape, place = random_llama.SHAPES[size], Path(folder)
    feeds = {name: aligned(array) for name, array in random_llama.step(shape, past, SAMPLES).items()}
    runs: dict[str, Callable[[], Any]] = {}
    for cache in caches:
        forms = {name: FIXED[cache] for name in feeds if name.startswith("past") and cache in FIXED}
        packed = {name: aligned(array) for name, array in packed_feeds(feeds, forms).items()}
        run = latency.open_native(str(place / cache / "model.onnx"), 1)
        runs[named(LIBRARY, cache)] = functools.partial(run, packed)
    files = [(FILE, "float/model.onnx"), (FLOAT, "float.onnx")]
    for name, path in (*files, *((f"{NBITS} {block}", f"nbits{block}.onnx") for block in BLOCKS)):
        session = ort.InferenceSession(
            str(place / path), harness.session_options(1), providers=["CPUExecutionProvider"]
        )
        runs[name] = functools.partial(session.run, None, feeds)
    if llama:
        sys.path.append(llama)
        runs[LLAMA] = llama_cpp_decoder.opened(place / "q4_k.gguf", past, shape.vocabulary, 1)
    return latency.take_turns(
        {name: functools.partial(processor_time, run) for name, run in runs.items()}, blocks, seconds
    )


def processor_time(run: Callable[[], Any], repeats: int) -> float:
    """Seconds that this thread computes, per run."""
    started = time.thread_time()
    for _ in range(repeats):
        run()
    return (time.thread_time() - started) / repeats


def quantized(size: str, past: int, folder: str, llama: str) -> int:
    """llama.cpp's file; bytes of its matrices. Runs in a child."""
    sys.path.append(llama)
    shape, place = random_llama.SHAPES[size], Path(folder)
    path = llama_cpp_decoder.write(place / "float.onnx", shape, 2 * past, place / "q4_k.gguf")
    return int(path.stat().st_size * (1 - shape.vocabulary * shape.width / shape.parameters))


def write_files(options: argparse.Namespace) -> dict[str, float]:
    """Make all files; bytes of the matrices of each. Raises RuntimeError with what could not be made."""
    shape, folder, llama = random_llama.SHAPES[options.size], str(options.work), str(options.llama or "")
    options.work.mkdir(parents=True, exist_ok=True)
    random_llama.write(shape, options.work / "float.onnx", cache=True)
    sizes: dict[str, float] = {FLOAT: 4 * matrices(shape)}
    for cache in options.kv_cache:
        sizes |= finished(in_child(compiled, options.size, options.past, folder, cache))
    for block in BLOCKS:
        sizes[f"{NBITS} {block}"] = finished(in_child(in_blocks, folder, block))
    if llama:
        sizes[LLAMA] = finished(in_child(quantized, options.size, options.past, folder, llama))
    (options.work / SIZES).write_text(json.dumps(sizes))
    return sizes


def matrices(shape: random_llama.Shape) -> int:
    """Weights that a token reads."""
    return shape.parameters - shape.vocabulary * shape.width


def finished(done: Any) -> Any:
    """What a child gave. Raises RuntimeError with its error."""
    if done.error:
        raise RuntimeError(done.error)
    return done.value


def rows_of(options: argparse.Namespace) -> list[dict[str, Any]]:
    """One row for each, the libraries first."""
    shape, folder, llama = random_llama.SHAPES[options.size], str(options.work), str(options.llama or "")
    sizes = json.loads((options.work / SIZES).read_text()) if options.again else write_files(options)
    raced_of = (options.size, options.past, folder, options.kv_cache, llama, options.blocks, options.seconds)
    times = finished(in_child(raced, *raced_of))
    numbers = 2 * shape.layers * shape.shared * shape.head * options.past
    forms = {LLAMA: "float16", **{named(LIBRARY, cache): cache for cache in options.kv_cache}}
    caches = {name: numbers * CACHE_BYTES[forms.get(name, "float")] for name in times}
    return [_row(name, sizes[name], matrices(shape), caches[name], times) for name in times]


def _row(name: str, size: float, weights: int, cache: float, times: dict[str, list[float]]) -> dict[str, Any]:
    """size: bytes of matrices; cache: of caches."""
    milliseconds = statistics.median(times[name])
    return {
        "what": name,
        "bits": 8 * size / weights,
        "bytes": size + cache,
        "milliseconds": milliseconds,
        "least": min(times[name]),
        "tokens": 1000 / milliseconds,
        "library_of": latency.ratio(times[name], times[next(iter(times))]),
        "float16_of": latency.ratio(times[name], times.get(named(LIBRARY, "float16"))),
    }


def main() -> None:
    """Print the table."""
    parser = harness.command_line(__doc__)
    parser.add_argument("--size", choices=random_llama.SHAPES, default="100m")
    parser.add_argument("--past", type=int, default=512, help="tokens in the caches")
    parser.add_argument(
        "--kv-cache", type=lambda text: text.split(","), default=["float"], help="forms of the libraries' caches"
    )
    parser.add_argument("--llama", type=Path, help="where llama-cpp-python and gguf are installed")
    parser.add_argument("--blocks", type=int, default=25, help="rounds; each runs once in each")
    parser.add_argument("--seconds", type=float, default=0.2, help="seconds of a block")
    parser.add_argument("--work", type=Path, default=RESULTS / "decode", help="for models and artifacts")
    parser.add_argument("--again", action="store_true", help="time what an earlier call left in the folder")
    parser.add_argument("--record", type=int, metavar="RUN", help="put the rows into figures/decode.json")
    options = parser.parse_args()
    rows, facts = rows_of(options), harness.machine()
    harness.write_results(options.out, rows, facts)
    if options.record is not None:
        about = {"task": f"random_llama {options.size}", "budget": f"{BITS}bit", "run": options.record}
        harness.record(harness.FIGURES / "decode.json", [{**about, **row} for row in rows], facts, "run", "what")
    harness.print_results(rows, COLUMNS, facts)


if __name__ == "__main__":
    main()
