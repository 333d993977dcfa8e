"""Coverage-guided fuzzing of what ptqc reads.

python tests/fuzzing.py TARGET [--minutes 60] [--corpus FOLDER]

Needs atheris. An input is refused by an error of ptqc's own, or it is read; any other exception is a fault, and so are
a crash, 2 GB of memory and 20 seconds. What reached new code is kept in the folder, build/corpus/TARGET unless told
otherwise, from which the next run starts. A fault is written beside it, and is run again by naming its file in the
place of the minutes: `python tests/fuzzing.py TARGET FILE`.
"""

import argparse
import contextlib
import io
import json
import math
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import atheris

sys.path.append(str(Path(__file__).parent / "faults"))
with atheris.instrument_imports(include=["ptqc"]):
    import numpy as np
    import onnx_ir as ir
    from compiling import compiled, measured_model, product, residual, samples
    from mutations import SEEDS
    from onnx import TensorProto
    from PIL import Image

    import ptqc
    from ptqc import frontend
    from ptqc.budget import parse_budgets
    from ptqc.calibration.inputs import input_specs
    from ptqc.calibration.sources import open_source
    from ptqc.cli.config_file import Commands, Configuration
    from ptqc.cli.parser import parsers
    from ptqc.errors import PtqcError
    from ptqc.evaluation.labels import read_labels
    from ptqc.execution import sandboxed
    from ptqc.formats import Format
    from ptqc.ir.plan import Plan
    from ptqc.utils.store import Store

ROOT = Path(__file__).resolve().parent.parent
MEGABYTES, SECONDS = 2048, 20
# What values of JSON documents are replaced by, and how often bytes are changed instead, or a value is taken out.
STRANGE: tuple[Any, ...] = (None, True, 0, -1, 2**70, 1.5, math.nan, "", "x", "\ud800", [], {}, [1], {"a": 1})
SHARE_OF_BYTES = 0.3


@dataclass(frozen=True)
class Target:
    """Something that is read. seeds: inputs that it takes; read: reads one."""

    seeds: Callable[[], Iterator[bytes]]
    read: Callable[[bytes], object]


@cache
def scratch() -> Path:
    """A folder for what is read from files."""
    return Path(tempfile.mkdtemp(prefix="ptqc-fuzz-"))


def written(name: str, data: bytes) -> Path:
    """A file with this content."""
    path = scratch() / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


@cache
def artifact() -> ptqc.Artifact:
    """What a compile delivers."""
    return compiled(residual(), samples(3, 8, 8), scratch() / "artifact", "20%", activations="integer")


class Stop(Exception):
    """Ends reading a model where another process would try it."""


def models() -> Iterator[bytes]:
    yield from (build().SerializeToString() for build, _ in SEEDS.values())
    model = product()
    tensor = model.graph.initializer[0]
    written("w.bin", tensor.raw_data)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="w.bin")
    yield model.SerializeToString()


def read_model(data: bytes) -> None:
    """All checks in front of the first process that runs the model."""
    with (
        mock.patch.object(sandboxed, "check", side_effect=Stop),
        mock.patch.object(sandboxed, "check_bytes", side_effect=Stop),
        contextlib.suppress(Stop),
    ):
        frontend.read_model(written("model.onnx", data))


def plans() -> Iterator[bytes]:
    yield json.dumps(artifact().plan).encode()


@cache
def roles() -> Plan:
    """Layers and weights of the model that a plan is for."""
    folder = scratch() / "roles"
    folder.mkdir()
    return measured_model(residual(), samples(3, 8, 8), folder, activations="integer").context.roles


def read_plan(data: bytes) -> None:
    try:
        document = json.loads(data)
    except ValueError:
        return
    if isinstance(document, dict):
        Plan.from_json(document, roles())


def manifests() -> Iterator[bytes]:
    yield (artifact().folder / "manifest.json").read_bytes()


def read_artifact(data: bytes) -> None:
    folder = scratch() / "damaged"
    if not folder.exists():
        shutil.copytree(artifact().folder, folder)
    (folder / "manifest.json").write_bytes(data)
    ptqc.load(folder)


def entries() -> Iterator[bytes]:
    store = Store(scratch() / "store")
    store.put({"a": 1}, {"b": [1, 2]}, {"x": np.arange(4, dtype=np.float32)})
    folder = next(path for path in store.folder.rglob("entry.json")).parent
    for number, path in enumerate(sorted(folder.iterdir())):
        yield bytes([number]) + path.read_bytes()


def read_entry(data: bytes) -> None:
    """One file of an entry, which the first byte chooses, has other content."""
    store = Store(scratch() / "damaged-store")
    store.put({"a": 1}, {"b": [1, 2]}, {"x": np.arange(4, dtype=np.float32)})
    folder = next(path for path in store.folder.rglob("entry.json") if "quarantine" not in path.parts).parent
    files = sorted(folder.iterdir())
    files[data[0] % len(files) if data else 0].write_bytes(data[1:])
    entry = store.get({"a": 1})
    assert entry is None or entry.document == {"b": [1, 2]}, "damage was not noticed"


@cache
def images() -> ir.Model:
    """A model of images."""
    return ir.from_proto(residual())


def arrays() -> Iterator[bytes]:
    values = samples(3, 8, 8, count=2)
    single, named = io.BytesIO(), io.BytesIO()
    np.save(single, values)
    np.savez(named, x=values)
    yield from (single.getvalue(), named.getvalue())


def read_arrays(data: bytes) -> None:
    name = "x.npz" if data[:2] == b"PK" else "x.npy"
    source = open_source(written(name, data), input_specs(images()), 4)
    assert all(islice(source.samples, 3))


def tables() -> Iterator[bytes]:
    yield b"image,class\na.png,1\nb.png,2\n"
    image = {"id": 1, "file_name": "a.png", "width": 8, "height": 8}
    box = {"id": 1, "image_id": 1, "category_id": 1, "bbox": [1, 1, 4, 4], "iscrowd": 0}
    document = {"images": [image], "annotations": [box], "categories": [{"id": 1, "name": "a"}]}
    yield json.dumps(document).encode()


@cache
def photographs() -> None:
    """Images beside the labels."""
    for name in ("a.png", "b.png"):
        Image.new("RGB", (8, 8)).save(written(f"labels/{name}", b""))


def read_table(data: bytes) -> None:
    name = "labels.json" if data[:1] == b"{" else "labels.csv"
    photographs()
    with tempfile.TemporaryDirectory() as folder:
        read_labels(images(), written(f"labels/{name}", data), Path(folder), None)


@cache
def commands() -> Commands:
    """The options of each command."""
    return parsers()[1]


def configurations() -> Iterator[bytes]:
    yield b'budget = "13%"\n[compile]\nbits = [4, 8]\nsamples = 64\ncalibration = "x.npy"\n'


def read_configuration(data: bytes) -> None:
    known = commands()
    path = written("configuration/ptqc.toml", data)
    result = Configuration.find(path.parent, known)
    if result is not None:
        result.apply("compile", known["compile"])


def texts() -> Iterator[bytes]:
    yield from (b"13%", b"12MB", b"2ms@cpu", b"64KBflash", b"99%same", b"0.01nat", b"4.1bit")


def read_text(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    for read in (parse_budgets, Format.parse):
        with contextlib.suppress(PtqcError, ValueError):
            read(text)


TARGETS = {
    "model": Target(models, read_model),
    "plan": Target(plans, read_plan),
    "artifact": Target(manifests, read_artifact),
    "store": Target(entries, read_entry),
    "arrays": Target(arrays, read_arrays),
    "labels": Target(tables, read_table),
    "configuration": Target(configurations, read_configuration),
    "texts": Target(texts, read_text),
}


def mutated(data: bytes, most: int, seed: int) -> bytes:
    """Change bytes, or one value of a JSON document, which changed bytes would mostly end. most: bytes to give back."""
    rng = Random(seed)
    before, brace, document = data.partition(b"{")
    try:
        parsed = json.loads(brace + document)
    except (ValueError, RecursionError):
        parsed = None
    if not parsed or rng.random() < SHARE_OF_BYTES:
        return bytes(atheris.Mutate(data, most))
    container, key = rng.choice(list(entries_of(parsed)))
    if rng.random() < SHARE_OF_BYTES:
        del container[key]
    else:
        container[key] = rng.choice(STRANGE)
    return (before + json.dumps(parsed).encode())[:most]


def entries_of(container: Any) -> Iterator[tuple[Any, Any]]:
    """Every object and array of a JSON document with each key or position."""
    for key, value in list(container.items() if isinstance(container, dict) else enumerate(container)):
        yield container, key
        if isinstance(value, dict | list):
            yield from entries_of(value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("inputs", nargs="*", type=Path, help="read these and nothing else")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--corpus", type=Path, help="default: build/corpus/TARGET")
    arguments = parser.parse_args()
    target = TARGETS[arguments.target]
    corpus = arguments.corpus or ROOT / "build" / "corpus" / arguments.target
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(target.seeds()):
        (corpus / f"seed-{number}").write_bytes(seed)
        target.read(seed)  # what all inputs need is made before the first of them is timed

    def one(data: bytes) -> None:
        with contextlib.suppress(PtqcError):
            target.read(data)

    for path in arguments.inputs:
        one(path.read_bytes())
    if not arguments.inputs:
        limits = [f"-max_total_time={60 * arguments.minutes:.0f}", f"-timeout={SECONDS}", f"-rss_limit_mb={MEGABYTES}"]
        options = [sys.argv[0], *limits, f"-artifact_prefix={corpus.parent}/{arguments.target}-", str(corpus)]
        atheris.Setup(options, one, custom_mutator=mutated)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
