"""Random networks: every kernel of the library gives ONNX Runtime's integers, or the node without one is named."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

pytest.importorskip("tvm.tirx", reason="the cpu target needs Apache TVM")

from building import present
from drawing import draw
from lowering import quantized
from together import built, compared, program_of

from ptqc.codegen.cpu.isa import AVX512_BF16
from ptqc.codegen.kernels.isa import Isa
from ptqc.codegen.program import verify
from ptqc.codegen.program.program import Program
from ptqc.errors import TargetError
from ptqc.formats import Codebook, Entropy, Format, Integer, Sparse, SparseCodebook, Trellis, TwoOfFour, VectorCodebook
from ptqc.ir.layers import Weight, find_layers, find_weights
from ptqc.ir.nodes import constant
from ptqc.passes.canonicalize.rewrites import default_rewrites
from ptqc.passes.quantize.solve_weights import possible
from ptqc.passes.runner import run_rewrites

TOGETHER, FEW = 25, 8  # networks in one library
REFUSED = 1  # of these


def network(seed: int, chosen: Isa, folder: Path) -> Program:
    """A random network with weights in random formats, and some sites kept float or rounded to bfloat16."""
    proto, feeds = draw(seed)
    random = np.random.default_rng(seed)
    model = ir.from_proto(proto)
    run_rewrites(model, default_rewrites(), feeds[:1])
    floating = random.random() if random.random() < 0.3 else 0.0
    forms = {w.name: format_of(w, random) for w in find_weights(model, find_layers(model))}
    for name in (name for name, form in forms.items() if form.keeps_zeros):
        prune(model.graph.initializers[name], random)
    rounded = random.random()
    made = quantized(
        model,
        feeds,
        forms=forms,
        keep_float=lambda _site: bool(random.random() < floating),
        is_rounded=lambda _site: bool(random.random() < rounded),
    )
    return program_of(made, feeds, chosen, folder)


def prune(weight: ir.Value, random: np.random.Generator) -> None:
    """Make zeros of some of the numbers, of few or of all but a few."""
    values = constant(weight)
    assert values is not None
    kept = random.random(values.shape) >= random.random()
    weight.const_value = ir.tensor(np.asarray(values * kept, np.float32), name=weight.name)


def format_of(weight: Weight, random: np.random.Generator) -> Format:
    """A format that the weight can have: pairs are neighbours in a channel, fours are inputs."""
    forms: list[Format] = [Integer(int(random.integers(2, 9))), Codebook(int(random.integers(2, 5))), Entropy(8)]
    forms += [Sparse(int(random.integers(1, 7))), SparseCodebook(int(random.integers(2, 5)))]
    if weight.layers and weight.channel_axis == 0 and weight.size // weight.shape[0] % 2 == 0:
        forms.append(VectorCodebook(int(random.integers(3, 9))))
    if weight.layers and weight.channel_axis == 0 and weight.shape[1] % 4 == 0:
        forms.append(TwoOfFour(int(random.integers(1, 7))))
    if trellis := possible(weight, [*Trellis.members()]):
        forms.append(trellis[int(random.integers(len(trellis)))])
    return forms[int(random.integers(len(forms)))]


def check(part: int, folder: Path, count: int = TOGETHER) -> None:
    here = present(AVX512_BF16)
    check_networks(part, here[part % len(here)], folder, count)


def check_networks(
    part: int,
    chosen: Isa,
    folder: Path,
    count: int = TOGETHER,
    build: Callable[[Program, Isa, Path], verify.Runnable] = built,
) -> None:
    programs, refused = {}, {}
    for seed in range(part * TOGETHER, part * TOGETHER + count):
        try:
            programs[str(seed)] = network(seed, chosen, folder / str(seed))
        except TargetError as reason:
            refused[seed] = str(reason)
    found = compared(programs, chosen, folder, build)
    assert found.wrong == {}
    assert len(refused) <= REFUSED, refused
    assert found.compared.integers > 1000 * count


def test_random_networks(tmp_path: Path) -> None:
    check(0, tmp_path, FEW)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(20))
def test_many_random_networks(part: int, tmp_path: Path) -> None:
    check(part, tmp_path)
