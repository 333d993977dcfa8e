"""Load time, memory and latency of the float file, ONNX Runtime's own int8 file and the compiled artifacts.

python benchmarks/latency.py [--tasks a,b] [--artifacts FOLDER ...] [--threads 1,2] [--peers FOLDER]
                             [--isa avx2] [--out results.json] [--record 13%] [--record-native 8bit]

--peers: where install_peers.py put the environment of OpenVINO, which is left out without it. --isa: keep all engines
to AVX2. --record: put what the artifacts take on one thread, which all have this budget, into figures/latency.json;
--record-native: put what their libraries take into figures/native.json.
"""

import argparse
import contextlib
import importlib.util
import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import harness
import static_int8
import without_avx512
from compat import clean
from harness import RESULTS, Column, Feeds, Run, in_child, number
from install_peers import interpreter
from tasks import Task, chosen, task_of

from ptqc.utils.store import write_npz

Entrant = tuple[str, str]  # file and engine
Times = dict[Entrant, list[float]]  # milliseconds per run of each block
Name = TypeVar("Name")
Timer = Callable[[int], float]  # seconds per run, of a number of runs

FLOAT, INT8 = "float", "ONNX Runtime int8"
REST = 0.05  # seconds, longer than waiting threads of any engine keep a processor busy
SERVER = Path(__file__).with_name("openvino_server.py")
# Engines of OpenVINO, with what computes in float computing in this.
PRECISIONS = {"openvino": "f32", "openvino_bf16": "bf16"}
ENGINES = ("onnxruntime", *PRECISIONS, "tvm")
COLUMNS = (
    Column("task", "task"),
    Column("file", "file"),
    Column("bytes", "bytes", number(0)),
    Column("score", "score", number(3)),
    Column("load ms", "load_ms", number(0)),
    Column("memory MB", "memory_mb", number(1)),
    Column("threads", "threads"),
    Column("ms", "onnxruntime_ms", number(3)),
    Column("of float", "of_float", number(2)),
    Column("of int8", "of_int8", number(2)),
    Column("OpenVINO ms", "openvino_ms", number(3)),
    Column("OpenVINO of float", "openvino_of_float", number(2)),
    Column("OpenVINO bf16 ms", "openvino_bf16_ms", number(3)),
    Column("native ms", "tvm_ms", number(3)),
    Column("native of float", "native_of_float", number(2)),
    Column("native of int8", "native_of_int8", number(2)),
    Column("native of OpenVINO float", "native_of_openvino_float", number(2)),
    Column("native of OpenVINO bf16", "native_of_openvino_bf16", number(2)),
    Column("native of OpenVINO int8", "native_of_openvino_int8", number(2)),
    Column("note", "note"),
)


class Served:
    """A model in OpenVINO, in a process of its own environment that runs it when asked."""

    def __init__(self, python: str, path: str, feeds: Feeds, threads: int, isa: str, precision: str) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="ptqc-bench-")
        samples = Path(self._folder.name) / "feeds.npz"
        write_npz(samples, feeds)
        command = [python, "-W", "ignore", SERVER, path, samples, threads, precision]
        self._process = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=clean() | ({"ONEDNN_MAX_CPU_ISA": isa.upper()} if isa else {}),
        )
        self.version = json.loads(self._answer())["openvino"]

    def __call__(self, repeats: int) -> float:
        """Seconds per run."""
        assert self._process.stdin is not None
        print(repeats, file=self._process.stdin, flush=True)
        return float(self._answer())

    def _answer(self) -> str:
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        line = self._process.stdout.readline()
        if not line:
            message = self._process.stderr.read().split()
            raise RuntimeError(" ".join(message)[-harness.LONGEST_ERROR :])
        return line

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()
        self._folder.cleanup()


def open_native(path: str, threads: int, isa: str = "") -> Run:
    """The native library beside a compiled file, the best one or that for an instruction set."""
    from ptqc.runtime.library import Library

    library = Library.open(native_folder(path), threads, isa)
    return lambda feeds: list(library.run(feeds).values())


def native_folder(path: str) -> Path:
    """Where the native library of a file is, if it has one."""
    return Path(path).parent / "cpu"


def engines(openvino: str | None) -> list[str]:
    """Those that are at hand. openvino: the Python of its environment."""
    return [name for name in ENGINES if (openvino if name in PRECISIONS else importlib.util.find_spec(name))]


def timer(engine: str, path: str, feeds: Feeds, threads: int, openvino: str | None, isa: str) -> Timer:
    """Seconds per run, of a number of runs, of a file that has run once."""
    if engine in PRECISIONS:
        return Served(str(openvino), path, feeds, threads, isa, PRECISIONS[engine])
    opened = open_native(path, threads, isa) if engine == "tvm" else harness.open_model(path, threads)
    run = partial(opened, feeds)
    run()
    return partial(timed, run)


def make_int8(name: str, target: str, samples: int) -> None:
    """Write ONNX Runtime's int8 file; runs in a child."""
    task = chosen(name)[0]
    source, feeds = task.path.resolve(), task.calibration(samples)
    with contextlib.chdir(Path(target).parent):  # the tool leaves files in the current folder
        static_int8.quantize(source, Path(target), feeds)


def score(name: str, path: str) -> float:
    """Score of a file; runs in a child."""
    return float(chosen(name)[0].score(harness.open_model(path)))


def first_sample(name: str) -> Feeds:
    """What all files are run on; runs in a child."""
    return chosen(name)[0].calibration(1)[0]


def load(path: str | None, feeds: Feeds) -> float:
    """Milliseconds until a model is ready, then one run; without a path only the imports. Runs in a child."""
    import onnxruntime  # noqa: F401  (its own memory is no model's)

    started = time.perf_counter()
    if path is None:
        return 0.0
    run = harness.open_model(path, threads=1)
    seconds = time.perf_counter() - started
    run(feeds)
    return 1000 * seconds


def race(
    paths: Mapping[str, str],
    feeds: Feeds,
    threads: int,
    blocks: int,
    seconds: float,
    openvino: str | None,
    limited: tuple[str, str] | None,
) -> dict[str, Any]:
    """Milliseconds per run, a list over blocks, by (file, engine); errors of those that do not start. Runs in a child.

    All models are open at once and take turns in blocks, so that what slows the machine slows all of them. limited: an
    instruction set, and the folder of an ONNX Runtime that keeps to it.
    """
    isa, runtime = limited or ("", "")
    if runtime:
        without_avx512.use(Path(runtime))
    timers: dict[Entrant, Timer] = {}
    errors: dict[Entrant, str] = {}
    for engine in engines(openvino):
        for file, path in paths.items():
            if engine == "tvm" and not native_folder(path).is_dir():
                continue
            if engine == "openvino" and file not in (FLOAT, INT8):  # it does not unpack weights when it loads a file
                continue
            if engine == "openvino_bf16" and file != FLOAT:
                continue
            try:
                timers[file, engine] = timer(engine, path, feeds, threads, openvino, isa)
            except Exception as error:  # one that does not start leaves the race
                errors[file, engine] = harness.describe(error)
    served = [one for one in timers.values() if isinstance(one, Served)]
    try:
        outcome = {"blocks": take_turns(timers, blocks, seconds), "errors": errors}
        return {**outcome, "openvino": served[0].version if served else None}
    finally:
        for server in served:
            server.close()


def take_turns(timers: Mapping[Name, Timer], blocks: int, seconds: float) -> dict[Name, list[float]]:
    """Milliseconds per run of every block. Each block lasts about `seconds`; who begins changes from round to round.

    Before each the threads of the one before come to rest, and its own wake up.
    """
    repeats = {name: max(1, int(seconds / max(time_of(2), 1e-6))) for name, time_of in timers.items()}
    times: dict[Name, list[float]] = {name: [] for name in timers}
    order = list(timers)
    for _ in range(blocks):
        for name in order:
            time.sleep(REST)
            timers[name](max(1, repeats[name] // 10))
            times[name].append(1000 * timers[name](repeats[name]))
        order = order[1:] + order[:1]
    return times


def timed(run: Callable[[], Any], repeats: int) -> float:
    """Seconds per run."""
    started = time.perf_counter()
    for _ in range(repeats):
        run()
    return (time.perf_counter() - started) / repeats


def ratio(times: Sequence[float], reference: Sequence[float] | None) -> float | None:
    """Median over rounds of the ratio within a round."""
    return statistics.median(a / b for a, b in zip(times, reference, strict=True)) if reference else None


def measure(task: Task, artifacts: Sequence[Path], arguments: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """The rows of one task."""
    harness.say(task.name)
    int8 = folder / f"{task.path.stem}.onnx"
    outcome = in_child(make_int8, task.name, str(int8), arguments.samples, timeout=arguments.timeout)
    paths = {FLOAT: task.path, INT8: int8} | {path.name: path / "model.onnx" for path in artifacts}
    notes = {INT8: f"not made: {outcome.error}"} if outcome.error else {}
    feeds = in_child(first_sample, task.name)
    if feeds.error:
        return [{"task": task.name, "note": f"no sample: {feeds.error}"}]
    files = []
    for name, path in paths.items():
        row = {"task": task.name, "file": name, "unit": task.unit, "note": notes.get(name)}
        files.append(row if row["note"] else row | examine(task, path, feeds.value, arguments))
    runnable = {str(row["file"]): str(paths[str(row["file"])]) for row in files if "load_ms" in row}
    return [row for threads in arguments.threads for row in timings(files, runnable, feeds.value, threads, arguments)]


def examine(task: Task, path: Path, feeds: Feeds, arguments: argparse.Namespace) -> dict[str, Any]:
    """Size, load time, memory and score of one file."""
    size = {"bytes": path.stat().st_size}
    empty, loaded = in_child(load, None, feeds), in_child(load, str(path), feeds)
    if loaded.error or loaded.peak_mb is None or empty.peak_mb is None:
        return {**size, "note": f"does not run: {loaded.error or empty.error}"}
    memory = {"memory_mb": loaded.peak_mb - empty.peak_mb, "peak_mb": loaded.peak_mb}
    row = {**size, "load_ms": loaded.value, **memory}
    return row if arguments.no_score else row | scored(task, path)


def scored(task: Task, path: Path) -> dict[str, Any]:
    """The score of a file, or why there is none."""
    if not task.unit:
        return {}
    outcome = in_child(score, task.name, str(path))
    return {"score": outcome.value} | ({"note": f"not scored: {outcome.error}"} if outcome.error else {})


def timings(
    files: Sequence[harness.Row], paths: Mapping[str, str], feeds: Feeds, threads: int, arguments: argparse.Namespace
) -> list[dict[str, Any]]:
    """The rows of all files at one number of threads."""
    openvino, seconds = openvino_python(arguments.peers), arguments.seconds / arguments.blocks
    raced = in_child(race, paths, feeds, threads, arguments.blocks, seconds, openvino, arguments.limited)
    if raced.error:
        return [{**row, "threads": threads, "note": f"not timed: {raced.error}"} for row in files]
    return [{**row, "threads": threads} | latencies(row["file"], **raced.value) for row in files]


def openvino_python(peers: Path | None) -> str | None:
    """The Python of OpenVINO's environment, if there is one."""
    python = interpreter(peers, "openvino") if peers is not None else None
    return str(python.absolute()) if python is not None and python.is_file() else None


def latencies(file: str, blocks: Times, errors: Mapping[Entrant, str], openvino: str | None) -> dict[str, Any]:
    """Medians and ratios of one file, with the blocks they come from. openvino: its version."""
    row: dict[str, Any] = {"openvino": openvino}
    for engine in ENGINES:
        if times := blocks.get((file, engine)):
            row |= {f"{engine}_ms": statistics.median(times), f"{engine}_blocks_ms": times}
    if times := blocks.get((file, "onnxruntime")):
        row["of_float"] = ratio(times, blocks.get((FLOAT, "onnxruntime")))
        row["of_int8"] = ratio(times, blocks.get((INT8, "onnxruntime")))
    if times := blocks.get((file, "openvino")):
        row["openvino_of_float"] = ratio(times, blocks.get((FLOAT, "onnxruntime")))
    if times := blocks.get((file, "tvm")):
        row["native_of_openvino_float"] = ratio(times, blocks.get((FLOAT, "openvino")))
        row["native_of_openvino_bf16"] = ratio(times, blocks.get((FLOAT, "openvino_bf16")))
        row["native_of_openvino_int8"] = ratio(times, blocks.get((INT8, "openvino")))
        row["native_of_float"] = ratio(times, blocks.get((FLOAT, "onnxruntime")))
        row["native_of_int8"] = ratio(times, blocks.get((INT8, "onnxruntime")))
    if refused := [f"{engine}: {error}" for (name, engine), error in errors.items() if name == file]:
        row["note"] = "; ".join(refused)
    return row


def parse() -> argparse.Namespace:
    parser = harness.command_line(__doc__)
    parser.add_argument("--tasks", help="comma-separated; default: all")
    parser.add_argument("--artifacts", nargs="+", default=[RESULTS], help="artifacts, or folders of them")
    parser.add_argument("--threads", type=lambda text: [int(part) for part in text.split(",")], default=[1, 2])
    parser.add_argument("--peers", type=Path, metavar="FOLDER", help="where install_peers.py put OpenVINO")
    parser.add_argument("--no-score", action="store_true", help="leave the scores out, which take long")
    parser.add_argument("--isa", choices=("avx2",), default="", help="keep all engines to this instruction set")
    parser.add_argument("--samples", type=int, default=256, help="calibration samples of the int8 file")
    parser.add_argument("--blocks", type=int, default=9, help="rounds; each file runs once in each")
    parser.add_argument("--seconds", type=float, default=1.5, help="seconds of measuring for each file and engine")
    parser.add_argument("--timeout", type=float, help="seconds that making one int8 file may take")
    parser.add_argument("--record", metavar="BUDGET", help="of all artifacts")
    parser.add_argument("--record-native", metavar="BUDGET", help="of all artifacts, for their native libraries")
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    facts, rows, tasks = harness.machine(), [], chosen(arguments.tasks)
    if openvino_python(arguments.peers) is None:
        harness.say(
            "OpenVINO is left out: install it with install_peers.py FOLDER --peers openvino, give --peers FOLDER"
        )
    owners = [(task_of(path, tasks), path) for path in harness.artifacts_below(arguments.artifacts)]
    with tempfile.TemporaryDirectory(prefix="ptqc-bench-") as folder:
        arguments.limited = (arguments.isa, folder) if arguments.isa else None
        if arguments.isa:
            without_avx512.copy(Path(folder))
        for task in tasks:
            artifacts = [path for owner, path in owners if owner is task]
            rows += measure(task, artifacts, arguments, Path(folder))
            harness.write_results(arguments.out, rows, facts)
    about = {"kernels": instructions(facts, arguments.isa)}
    if arguments.record:
        path = harness.FIGURES / "latency.json"
        harness.record(path, [row | about for row in recorded(rows, arguments.record)], facts, "kernels")
    if arguments.record_native:
        native = [of_native(row, arguments.record_native) | about for row in rows if "tvm_ms" in row]
        harness.record(harness.FIGURES / "native.json", native, facts, "threads", "kernels")
    harness.print_results(rows, COLUMNS, facts)


def instructions(facts: Mapping[str, Any], isa: str = "") -> str:
    """What integer kernels use of the processor; figures of speed are told apart by it. isa: what they are kept to."""
    widest = {"amx_int8": "AMX", "avx512_vnni": "AVX-512 VNNI", "avx_vnni": "AVX-VNNI"}
    return next((name for flag, name in widest.items() if flag in facts["flags"] and not isa), "AVX2")


def of_native(row: harness.Row, budget: str) -> dict[str, Any]:
    """A native library beside other engines."""
    ratios = {key: value for key, value in row.items() if key.startswith("native_of")}
    about = {"task": row["task"], "budget": budget, "threads": row["threads"]}
    return {**about, "native_ms": row["tvm_ms"], "openvino": row["openvino"], **ratios}


def recorded(rows: Sequence[harness.Row], budget: str) -> Iterator[dict[str, Any]]:
    """Compiled files beside the float file, on one thread."""
    single = {(row["task"], row["file"]): row for row in rows if row.get("threads") == 1 and "of_float" in row}
    for (task, file), row in single.items():
        if file in (FLOAT, INT8):
            continue
        times, reference = (one["onnxruntime_blocks_ms"] for one in (row, single[task, FLOAT]))
        ratios = sorted(a / b for a, b in zip(times, reference, strict=True))
        yield {
            "task": task,
            "budget": budget,
            "threads": 1,
            "float_ms": single[task, FLOAT]["onnxruntime_ms"],
            "compiled_ms": row["onnxruntime_ms"],
            "ratio": row["of_float"],
            # Of nine rounds the median is between these with a probability of 96 %.
            "ratio_low": ratios[1],
            "ratio_high": ratios[-2],
            "load_ms": row["load_ms"],
        }


if __name__ == "__main__":
    main()
