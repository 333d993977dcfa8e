"""Memory and time of a decoder by its operators: weights unpacked, in MatMulNBits, and behind DequantizeLinear.

python benchmarks/packed_matmuls.py [--size 20m] [--bits 4,8] [--rounds 5] [--work FOLDER] [--out FILE] [--record]

The decoder is `models/random_llama.py`, whose weights are random: memory and time do not depend on them. Each file is
opened on one thread of ONNX Runtime in a process of its own, in turns, and the medians over the rounds are told: by how
much resident memory grows until the file is loaded and memory that is free is given back, by how much at most, and
processor time of one token and of 64 together. --record puts the rows into figures/packed_matmuls.json.
"""

import statistics
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args

import harness
from harness import FIGURES, RESULTS, ROOT, Column, in_child, number

from ptqc.execution.loading import CLEAR, CLEAR_PEAK, resident
from ptqc.options import Operators
from ptqc.utils.memory import give_back

sys.path.append(str(ROOT / "models"))

import random_llama

# Of random weights it does not matter to what they are rounded, so there is no time for more than the plainest way.
OPTIONS: dict[str, Any] = {"formats": ("int",), "activations": "float", "sensitivity": "curvature", "samples": 4}
ROOM = 0.25  # for scales and what is no matrix
TOKENS, REPEATS = (1, 64), {1: 30, 64: 5}
COLUMNS = (
    Column("weights", "budget"),
    Column("operators", "operators"),
    Column("file MB", "bytes", lambda size: f"{size / 1e6:.1f}"),
    Column("loaded MB", "loaded_mb", number(0)),
    Column("while loading MB", "peak_mb", number(0)),
    Column("ms for 1 token", "ms_1", number(1)),
    Column("ms for 64", "ms_64", number(0)),
    Column("code", "commit"),
)


def compiled(size: str, bits: int, operators: Operators, folder: str) -> int:
    """Compile the decoder; bytes of the file. Runs in a child."""
    from ptqc.api import compile as compile_model

    place, shape = Path(folder), random_llama.SHAPES[size]
    feeds = [{"tokens": random_llama.samples(shape, 1, 64, seed)} for seed in range(OPTIONS["samples"])]
    artifact = compile_model(
        place / "float.onnx",
        calibration=feeds,
        output=place / f"{operators}{bits}",
        cache=place / "cache",
        force=True,
        budget=f"{bits + ROOM}bit",
        bits=(bits,),
        operators=operators,
        **OPTIONS,
    )
    return int(artifact.manifest["file"]["bytes"])


def measured(size: str, path: str) -> dict[str, float]:
    """Megabytes and milliseconds of one file. Runs in a child."""
    harness.open_model(ROOT / "models" / "tiny_mlp.onnx", 1)  # what the library sets up once is no part of any model
    with suppress(OSError):
        CLEAR.write_text(CLEAR_PEAK)
    before = resident("VmRSS")
    run = harness.open_model(path, 1)
    most = resident("VmHWM")
    give_back(0)
    row = {"loaded_mb": (resident("VmRSS") - before) / 1e6, "peak_mb": (most - before) / 1e6}
    for count in TOKENS:
        feeds = {"tokens": random_llama.samples(random_llama.SHAPES[size], 1, count)}
        run(feeds)
        started = time.thread_time()
        for _ in range(REPEATS[count]):
            run(feeds)
        row[f"ms_{count}"] = 1e3 * (time.thread_time() - started) / REPEATS[count]
    return row


def rows_of(size: str, widths: list[int], rounds: int, work: Path) -> list[dict[str, Any]]:
    """A row for the float file and for each width and kind of operators."""
    work.mkdir(parents=True, exist_ok=True)
    random_llama.write(random_llama.SHAPES[size], work / "float.onnx")
    rows = [{"budget": "float32", "operators": "", "path": work / "float.onnx"}]
    rows[0]["bytes"] = sum(path.stat().st_size for path in work.glob("float.*"))
    for bits in widths:
        for operators in get_args(Operators):
            size_of_file = finished(in_child(compiled, size, bits, operators, str(work)))
            path = work / f"{operators}{bits}" / "model.onnx"
            rows.append({"budget": f"{bits} bits", "operators": operators, "path": path, "bytes": size_of_file})
            harness.say(f"{path}: {size_of_file:,} bytes")
    results = [[finished(in_child(measured, size, str(row["path"]))) for row in rows] for _ in range(rounds)]
    for place, row in enumerate(rows):
        del row["path"]
        of_file = [one[place] for one in results]
        row |= {key: round(statistics.median(each[key] for each in of_file), 2) for key in of_file[0]}
        row["task"] = f"random_llama {size}"
    return rows


def finished(done: harness.Outcome) -> Any:
    """What a child gave. Raises RuntimeError with its error."""
    if done.error:
        raise RuntimeError(done.error)
    return done.value


def main() -> None:
    """Print the table."""
    parser = harness.command_line(__doc__)
    parser.add_argument("--size", choices=random_llama.SHAPES, default="20m")
    parser.add_argument("--bits", type=lambda text: [int(part) for part in text.split(",")], default=[4, 8])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--work", type=Path, default=RESULTS / "packed_matmuls", help="for models and artifacts")
    parser.add_argument("--record", action="store_true", help="put the rows into figures/packed_matmuls.json")
    options = parser.parse_args()
    rows, facts = rows_of(options.size, options.bits, options.rounds, options.work), harness.machine()
    harness.write_results(options.out, rows, facts)
    if options.record:
        harness.record(FIGURES / "packed_matmuls.json", rows, facts, "operators")
    harness.print_results(rows, COLUMNS[:-1], facts)


if __name__ == "__main__":
    main()
