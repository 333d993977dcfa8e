"""Random networks: every kernel of the library gives ONNX Runtime's integers, or the node without one is named."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

pytest.importorskip("tvm.tirx", reason="the cpu target needs Apache TVM")

from building import present
from drawing import draw
from lowering import quantized

from ptqc.codegen.onnxruntime.export import export
from ptqc.codegen.tvm import lowering, package, target, verify, worker
from ptqc.codegen.tvm.isa import Isa
from ptqc.codegen.tvm.package import Program
from ptqc.errors import TargetError, VerificationError
from ptqc.formats import integer
from ptqc.passes.pipeline import default_rewrites, run_rewrites

TOGETHER = 25  # networks in one library
REFUSED = 0.04


@dataclass
class Found:
    """kernels: of all networks. refused, wrong: messages by seed."""

    compared: verify.Compared = field(default_factory=verify.Compared)
    refused: dict[int, str] = field(default_factory=dict)
    wrong: dict[int, str] = field(default_factory=dict)


def lowered_program(seed: int, chosen: Isa, folder: Path) -> Program:
    """The kernels of a random network; what ONNX Runtime computes is left in the folder."""
    proto, feeds = draw(seed)
    random = np.random.default_rng(seed)
    model = ir.from_proto(proto)
    run_rewrites(model, default_rewrites(), feeds[:1])
    floating = random.random() if random.random() < 0.3 else 0.0
    made = quantized(
        model,
        feeds,
        forms=integer(int(random.integers(2, 9))),
        keep_float=lambda _site: bool(random.random() < floating),
    )
    target._write_job(folder, made.lowered, export(made.lowered, made.model), feeds, chosen.name)
    shapes = json.loads((folder / "job.json").read_text())["shapes"]
    return lowering.program(made.lowered, {name: tuple(shape) for name, shape in shapes.items()}, chosen)


def merged(programs: Sequence[Program]) -> Program:
    """All networks side by side."""
    steps, layouts = [], {}
    inputs: tuple[str, ...] = ()
    for number, program in enumerate(programs):

        def own(name: str, number: int = number) -> str:
            return f"{number}/{name}"

        steps += [replace(s, inputs=tuple(map(own, s.inputs)), output=own(s.output)) for s in program.steps]
        layouts |= {own(name): layout for name, layout in program.layouts.items()}
        inputs += tuple(map(own, program.inputs))
    return Program(tuple(steps), layouts, inputs, tuple(step.output for step in steps))


def check(seeds: Iterable[int], chosen: Isa, folder: Path) -> Found:
    """Compile and compare networks."""
    found, programs = Found(), {}
    for seed in seeds:
        (folder / str(seed)).mkdir()
        try:
            programs[seed] = lowered_program(seed, chosen, folder / str(seed))
        except TargetError as reason:
            found.refused[seed] = str(reason)
    whole = merged(list(programs.values()))
    package.link(whole, chosen, folder / "model.so")
    loaded = worker.load(folder / "model.so", whole)
    first = 0
    for seed, program in programs.items():
        count = sum(len(step.built.constants) for step in program.steps)
        part = verify.Loaded(program, loaded.run, loaded.constants[first : first + count])
        first += count
        try:
            compare(part, folder / str(seed), found.compared)
        except VerificationError as error:
            found.wrong[seed] = str(error)
    return found


def compare(loaded: verify.Loaded, folder: Path, compared: verify.Compared) -> None:
    """Compare a network on all its samples; end to end too where no float part is rounded to codes."""
    own = verify.Compared()
    for path in sorted(folder.glob("values-*.npz")):
        with np.load(path) as values:
            verify.compare(loaded, dict(values), own)
    compared.kernels += own.kernels
    compared.integers += own.integers
    rounded = [s for s in loaded.program.steps if s.built.family == "quantize"]
    if own.different and all(step.inputs[0] in loaded.program.inputs for step in rounded):
        raise VerificationError(f"end to end: {own.different}")


def judge(found: Found, networks: int) -> None:
    assert found.wrong == {}
    assert len(found.refused) <= REFUSED * networks, found.refused
    assert found.compared.integers > 1000 * networks


def test_random_networks(tmp_path: Path) -> None:
    judge(check(range(TOGETHER), present()[0], tmp_path), TOGETHER)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(1, 21))
def test_many_random_networks(part: int, tmp_path: Path) -> None:
    chosen = present()[part % len(present())]
    judge(check(range(part * TOGETHER, (part + 1) * TOGETHER), chosen, tmp_path), TOGETHER)
