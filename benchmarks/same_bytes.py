"""Compile the same networks with two states of the code, and compare what they deliver, file by file.

python benchmarks/same_bytes.py --against CHECKOUT [--quick] [--networks a,b] [--modes size,cpu] [--work FOLDER]

For changes of the code that must not change any output. Each network is compiled in every mode that it has, by the
checkout and then by this one, on this machine, each from a store that is empty at first. The SHA-256 of every delivered
file must agree. Times and words are left out: `run.json`, the report, and of the manifest notes and measured times.

Rows are kept in FOLDER (build/same-bytes), so that a run that was cut off goes on, and a checkout whose commit and
changes are the same is not compiled again. Exits with 1 where anything differs.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import harness
from harness import ROOT, say
from tasks import all_tasks

Document = dict[str, Any]

OWN = ("tiny_mlp", "tiny_gru_tagger", "tiny_detector_silu")
SHARED = (
    "mlperftiny_kws_dscnn",
    "mlperftiny_ic_resnet8",
    "mlperftiny_vww_mbv1_025_96",
    "cifar10_resnet20",
    "espcn_x3_224",
    "silero_vad_16k",
    "stories260K",
    "digits_resnet_dw",
)
# A decoder with caches, of random weights, drawn into the work folder.
DECODER = "tiny_llama"
QUICK = (*OWN, DECODER)
SAMPLES, QUICK_SAMPLES = 128, 32
# Files with times in them, or with words alone.
LEFT_OUT = frozenset({"run.json", "report.html"})
# Entries of the manifest with words, or with what was measured on a clock.
WORDS, CLOCK = frozenset({"notes", "files"}), frozenset({"measured_us", "measured_ms", "float_ms"})


@dataclass(frozen=True)
class Mode:
    """One way to compile. options: of `ptqc.compile`; "{…}" in a budget is a figure of the first state's `size` mode.

    of_decoders: whether it is for decoders with caches alone; None: for every network. resolves: from the `size` mode.
    measures: it records times, which differ in each run: the first state alone does it, for modes that read them.
    """

    name: str
    options: Mapping[str, Any]
    of_decoders: bool | None = None
    resolves: bool = False
    measures: bool = False


# In this order: later modes read figures and recorded times of the first two.
MODES = (
    Mode("size", {"budget": "25%"}),
    Mode("record", {"budget": ["30%", "10s"]}, measures=True),
    Mode("latency", {"budget": ["30%", "{latency_us}us"], "times": "record"}),
    Mode("memory", {"budget": ["30%", "{memory}Bram"]}),
    Mode("loss", {"budget": "{loss}{loss_unit}"}),
    Mode("resolve", {"budget": "20%"}, resolves=True),
    Mode("advanced", {"budget": "20%", "pipeline": "advanced"}),
    Mode("float8", {"budget": "40%", "activations": "float8"}, of_decoders=False),
    Mode("curvature", {"budget": "20%", "sensitivity": "curvature"}, of_decoders=False),
    Mode("caches", {"budget": ["30%", "25%cache"], "operators": "onnxruntime"}, of_decoders=True),
    Mode("cpu", {"budget": "25%", "target": "cpu"}, of_decoders=False),
    Mode("cuda", {"budget": "25%", "target": "cuda"}, of_decoders=False),
)


@dataclass(frozen=True)
class State:
    """A checkout. name: its commit, and a digest of what is changed in it."""

    checkout: Path
    name: str

    @classmethod
    def of(cls, checkout: Path) -> "State":
        """The state that a checkout is in. Exits where it is none."""
        commit = _git(checkout, "rev-parse", "--short=12", "HEAD")
        changes = _git(checkout, "diff", "HEAD", "--", "ptqc", "passes", "codegen")
        mark = f"+{hashlib.sha256(changes.encode()).hexdigest()[:8]}" if changes else ""
        return cls(checkout.resolve(), f"{commit}{mark}")


def _git(checkout: Path, *arguments: str) -> str:
    try:
        return subprocess.run(
            ["git", "-C", str(checkout), *arguments], check=True, capture_output=True, text=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError) as error:
        raise SystemExit(f"{checkout} is no git checkout: {error}") from error


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 of every file of an artifact, of JSON without times and words."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.name not in LEFT_OUT)
    return {str(path.relative_to(folder)): hashlib.sha256(_content(path)).hexdigest() for path in paths}


def _content(path: Path) -> bytes:
    if path.name != "manifest.json":
        return path.read_bytes()
    return json.dumps(lasting(json.loads(path.read_text(encoding="utf-8"))), sort_keys=True).encode()


def lasting(document: Any) -> Any:
    """Of a manifest, what does not depend on clocks, nor on how something is worded."""
    if isinstance(document, dict):
        return {key: lasting(value) for key, value in document.items() if key not in WORDS | CLOCK}
    return [lasting(value) for value in document] if isinstance(document, list) else document


def compile_one(job: Document) -> Document:
    """Compile one network in one mode with the ptqc that is on the path; what it delivers, or why it does not."""
    import ptqc

    options = {**job["options"], "output": job["output"], "cache": job["cache"], "force": True}
    try:
        if job["resolves"]:
            ptqc.resolve(job["resolves"], **options)
        else:
            feeds = "synthetic" if job["network"] == DECODER else _task(job["network"]).calibration(job["samples"])
            ptqc.compile(job["model"], calibration=feeds, samples=job["samples"], **options)
    except Exception as error:  # a refusal must stay one, and a fault in both states must not end the comparison
        say(f"{job['network']}: {error}")
        return {"files": {}, "error": type(error).__name__}
    return {"files": digests(Path(job["output"])), "error": None}


def _task(name: str) -> Any:
    return all_tasks()[name]


def figures(folder: Path) -> dict[str, str]:
    """What budgets of later modes are made of. folder: with the artifacts of a state's `size` and `record` modes."""
    size, record = (harness.manifest(folder / mode) for mode in ("size", "record"))
    units = {"nat": "nat", "nat per detection": "nat/detection", "cosine distance": "cosine"}
    return {
        "latency_us": f"{0.97 * 1000 * record['latency']['predicted_ms']:.4g}",
        "memory": f"{0.95 * size['memory']['needed_bytes']:.0f}",
        "loss": f"{2 * size['results']['loss']:.3g}",
        "loss_unit": units.get(size["results"]["loss_unit"], "relative"),
    }


@dataclass(frozen=True)
class Runner:
    """Compiles networks in modes, each in a process of its own. work: where rows, artifacts and stores are kept."""

    work: Path
    samples: int

    def compare(self, network: str, modes: Sequence[Mode], baseline: State, state: State) -> Iterator[Document]:
        """A row for each mode: the files that differ."""
        model = self._model(network)
        for mode in modes:
            if mode.of_decoders is not None and mode.of_decoders is not (network == DECODER):
                continue
            before = self._row(baseline, network, model, mode, baseline)
            if mode.measures:
                continue
            after = self._row(state, network, model, mode, baseline)
            paths = sorted(before["files"].keys() | after["files"].keys())
            different = [path for path in paths if before["files"].get(path) != after["files"].get(path)]
            if before["error"] != after["error"]:
                different.append(f"{before['error'] or 'delivered'} -> {after['error'] or 'delivered'}")
            row = {"network": network, "mode": mode.name, "files": len(after["files"]), "different": different}
            say(f"{network} {mode.name}: {len(after['files'])} files, {', '.join(different) or 'none differs'}")
            yield {**row, "error": after["error"], "seconds": [before["seconds"], after["seconds"]]}

    def _model(self, network: str) -> str:
        if network != DECODER:
            return str(_task(network).path)
        path = self.work / f"{DECODER}.onnx"
        if not path.is_file():
            command = [sys.executable, str(ROOT / "models" / f"{DECODER}.py"), "--out", str(path)]
            subprocess.run(command, check=True, capture_output=True)
        return str(path)

    def _row(self, state: State, network: str, model: str, mode: Mode, baseline: State) -> Document:
        folder = self.work / state.name / network
        stored = folder / f"{mode.name}.json"
        if stored.is_file():
            return dict(json.loads(stored.read_text(encoding="utf-8")))
        folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(folder / mode.name, ignore_errors=True)
        first = self.work / baseline.name / network
        job = {
            "network": network,
            "model": model,
            "options": _filled(mode.options, first),
            "output": str(folder / mode.name),
            "cache": str(folder / "store"),
            "resolves": str(folder / "size") if mode.resolves else None,
            "samples": self.samples,
        }
        started = time.monotonic()
        row = {**_in_state(state, job), "seconds": round(time.monotonic() - started, 1)}
        stored.write_text(json.dumps(row, indent=1), encoding="utf-8")
        return row


def _filled(options: Mapping[str, Any], first: Path) -> Document:
    """Options with the figures of the first state, and the times that it recorded."""

    def filled(value: Any) -> Any:
        if isinstance(value, list):
            return [filled(each) for each in value]
        return value.format(**figures(first)) if isinstance(value, str) and "{" in value else value

    complete = {name: filled(value) for name, value in options.items()}
    return {**complete, "times": str(first / complete["times"])} if "times" in complete else complete


def _in_state(state: State, job: Document) -> Document:
    """What `compile_one` says in a process that has the ptqc of this state."""
    environment = {**os.environ, "PYTHONPATH": str(state.checkout)}
    command = [sys.executable, str(Path(__file__).resolve()), "--job", json.dumps(job)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{state.name}, {job['network']}: {done.stderr[-2000:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def chosen(names: str | None, known: Sequence[str], what: str) -> list[str]:
    """Names of a comma-separated list; all without one. Exits with the known ones for an unknown one."""
    wanted = names.split(",") if names else list(known)
    if unknown := [name for name in wanted if name not in known]:
        raise SystemExit(f"unknown {what} {', '.join(unknown)}; known: {', '.join(known)}")
    return wanted


def parse() -> argparse.Namespace:
    parser = harness.command_line(__doc__)
    parser.add_argument("--against", type=Path, help="a checkout of the state that outputs must be those of")
    parser.add_argument("--quick", action="store_true", help=f"{', '.join(QUICK)} alone, with few samples")
    parser.add_argument("--networks", help="comma-separated; default: all that are at hand")
    parser.add_argument("--modes", help=f"comma-separated; default: all of {', '.join(mode.name for mode in MODES)}")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "same-bytes", help="where rows are kept")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    if arguments.job:
        print(json.dumps(compile_one(json.loads(arguments.job))))
        return
    if arguments.against is None:
        raise SystemExit("give --against CHECKOUT: the state of the code that outputs must be those of")
    known = QUICK if arguments.quick else tuple(name for name in (*QUICK, *SHARED) if name in {*all_tasks(), DECODER})
    modes = chosen(arguments.modes, [mode.name for mode in MODES], "mode")
    # Later modes read figures of these.
    taken = [mode for mode in MODES if mode.name in {*modes, "size", "record"}]
    baseline, state = State.of(arguments.against), State.of(ROOT)
    samples = QUICK_SAMPLES if arguments.quick else SAMPLES
    runner = Runner(arguments.work.resolve() / f"samples-{samples}", samples)
    rows: list[Document] = []
    for network in chosen(arguments.networks, known, "network"):
        rows += runner.compare(network, taken, baseline, state)
        harness.write_results(arguments.out, rows, harness.machine())
    different = [row for row in rows if row["different"]]
    files = sum(row["files"] for row in rows)
    print(f"{baseline.name} and {state.name}: {len(rows)} compiles, {files} files, {len(different)} compiles differ")
    for row in different:
        print(f"  {row['network']} {row['mode']}: {', '.join(row['different'])}")
    sys.exit(bool(different))


if __name__ == "__main__":
    main()
