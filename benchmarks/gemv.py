"""Products of one row with a large matrix in 4 bits: the native library, ONNX Runtime's MatMulNBits, and the memory.

python benchmarks/gemv.py [--shapes 4096x4096,11008x4096] [--threads 1,2] [--artifacts FOLDER] [--out results.json]
                          [--record]

Shapes are outputs × inputs. MatMulNBits has a scale per block of 32 or 128 inputs and takes activations in 8 bits
(accuracy level 4); ptqc has one of 16 listed values per weight and a scale per output. All matrices are random.
--record puts the rows into figures/gemv.json.
"""

import argparse
import functools
import statistics
from pathlib import Path
from typing import Any

import harness
import latency
import numpy as np
import onnx
from harness import RESULTS, Column, in_child, number
from onnx import TensorProto, helper

BLOCKS = (32, 128)
BITS, ACCURACY = 4, 4
MEMORY_FLOATS = 2**26
SAMPLES = 32
NATIVE, MEMORY = "ptqc native", "reading memory"
COLUMNS = (
    Column("outputs × inputs", "task"),
    Column("threads", "threads"),
    Column("what", "what"),
    Column("bytes of weights", "bytes", number(0)),
    Column("µs", "microseconds", number(1)),
    Column("GB/s", "gigabytes", number(1)),
    Column("of memory", "of_memory", number(2)),
    Column("native of it", "native_of", number(2)),
    Column("note", "note"),
)


def product(
    node: onnx.NodeProto, outputs: int, inputs: int, constants: dict[str, np.ndarray], opsets: dict[str, int]
) -> bytes:
    """A model whose only node makes y of x and constants. opsets: version by domain."""
    sizes = {"x": inputs, "y": outputs}
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", size]) for name, size in sizes.items())
    tensors = [onnx.numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph([node], "gemv", [x], [y], tensors)
    imports = [helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    return bytes(helper.make_model(graph, opset_imports=imports, ir_version=10).SerializeToString())


def matmul_nbits(outputs: int, inputs: int, block: int) -> tuple[bytes, int]:
    """A model with one MatMulNBits, and the bytes of its weights."""
    random, blocks = np.random.default_rng(0), -(-inputs // block)
    packed = random.integers(0, 256, (outputs, blocks, block * BITS // 8), np.uint8)
    scales = random.uniform(0.01, 0.02, outputs * blocks).astype(np.float32)
    node = helper.make_node(
        "MatMulNBits", ["x", "w", "s"], ["y"], domain="com.microsoft",
        K=inputs, N=outputs, bits=BITS, block_size=block, accuracy_level=ACCURACY,
    )  # fmt: skip
    opsets = {"": 21, "com.microsoft": 1}
    return product(node, outputs, inputs, {"w": packed, "s": scales}, opsets), packed.nbytes + scales.nbytes


def compiled(outputs: int, inputs: int, folder: str) -> int:
    """Compile the product with a float matrix to an artifact; the bytes of its weights. Runs in a child."""
    from ptqc.api import compile as compile_model

    random = np.random.default_rng(0)
    weights = random.standard_normal((inputs, outputs), np.float32)
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    path = Path(folder).with_suffix(".onnx")
    path.write_bytes(product(node, outputs, inputs, {"w": weights}, {"": 17}))
    samples = random.standard_normal((SAMPLES, inputs), np.float32)
    artifact = compile_model(
        path, calibration=samples, output=folder, force=True, target="cpu", bits=(BITS,), activations="integer"
    )
    return int(artifact.manifest["targets"]["cpu"]["libraries"][0]["constant_bytes"])


def race(outputs: int, inputs: int, folder: str, threads: int, blocks: int, seconds: float) -> dict[str, Any]:
    """Milliseconds per run, a list over blocks, of everything; bytes that each has to read. Runs in a child."""
    import onnxruntime as ort

    feeds = {"x": np.random.default_rng(1).standard_normal((1, inputs), np.float32)}
    native = latency.open_native(f"{folder}/model.onnx", threads)
    runs: dict[str, Any] = {NATIVE: functools.partial(native, feeds)}
    sizes = {MEMORY: 4 * MEMORY_FLOATS}
    for block in BLOCKS:
        data, sizes[f"MatMulNBits {block}"] = matmul_nbits(outputs, inputs, block)
        session = ort.InferenceSession(data, harness.session_options(threads), providers=["CPUExecutionProvider"])
        runs[f"MatMulNBits {block}"] = functools.partial(session.run, None, feeds)
    if threads == 1:
        much = np.ones(MEMORY_FLOATS, np.float32)
        runs[MEMORY] = functools.partial(np.dot, much, much)
    timers = {name: functools.partial(latency.timed, run) for name, run in runs.items()}
    return {"blocks": latency.take_turns(timers, blocks, seconds), "sizes": sizes}


def rows_of(shape: str, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """What each takes for a shape, for every number of threads."""
    outputs, inputs = map(int, shape.split("x"))
    folder = str(arguments.artifacts / f"gemv-{shape}")
    outcome = in_child(compiled, outputs, inputs, folder)
    if outcome.error:
        return [{"task": shape, "note": outcome.error}]
    rows = []
    for threads in arguments.threads:
        raced = in_child(race, outputs, inputs, folder, threads, arguments.blocks, arguments.seconds)
        results = [{"note": raced.error}] if raced.error else compared(**raced.value, native_bytes=outcome.value)
        rows += [{"task": shape, "budget": f"{BITS}bit", "threads": threads, **row} for row in results]
    return rows


def compared(blocks: dict[str, list[float]], sizes: dict[str, int], native_bytes: int) -> list[dict[str, Any]]:
    """A row for each that was timed."""
    rows = []
    for name, times in blocks.items():
        size, microseconds = sizes.get(name, native_bytes), 1000 * statistics.median(times)
        row: dict[str, Any] = {
            "what": name,
            "bytes": size,
            "microseconds": microseconds,
            "gigabytes": size / microseconds / 1000,
        }
        rows.append(row | {"native_of": latency.ratio(blocks[NATIVE], times)})
    speed = {row["what"]: row["gigabytes"] for row in rows}
    return [row | {"of_memory": row["gigabytes"] / speed[MEMORY]} if MEMORY in speed else row for row in rows]


def parse() -> argparse.Namespace:
    parser = harness.command_line(__doc__)
    parser.add_argument("--shapes", default="4096x4096,11008x4096")
    parser.add_argument("--threads", type=lambda text: [int(part) for part in text.split(",")], default=[1, 2])
    parser.add_argument("--artifacts", type=Path, default=RESULTS, help="where the artifacts are put")
    parser.add_argument("--blocks", type=int, default=9, help="rounds; each runs once in each")
    parser.add_argument("--seconds", type=float, default=0.2, help="seconds of a block")
    parser.add_argument("--record", action="store_true", help="put the rows into figures/gemv.json")
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    arguments.artifacts.mkdir(parents=True, exist_ok=True)
    facts, rows = harness.machine(), []
    for shape in arguments.shapes.split(","):
        harness.say(shape)
        rows += rows_of(shape, arguments)
        harness.write_results(arguments.out, rows, facts)
    if arguments.record:
        measured = [{**row, "kernels": latency.instructions(facts)} for row in rows if "what" in row]
        harness.record(harness.FIGURES / "gemv.json", measured, facts, "threads", "what", "kernels")
    harness.print_results(rows, COLUMNS, facts)


if __name__ == "__main__":
    main()
