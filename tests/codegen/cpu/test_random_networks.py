"""Random networks: every kernel of the library gives ONNX Runtime's integers, or the node without one is named."""

from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("tvm.tirx", reason="the cpu target needs Apache TVM")

from building import present
from lowering import quantized
from random_formats import RandomNetwork
from together import built, compared, program_of

from ptqc.codegen.cpu.isa import AVX512_BF16
from ptqc.codegen.kernels.isa import Isa
from ptqc.codegen.program import verify
from ptqc.codegen.program.program import Program
from ptqc.errors import TargetError

TOGETHER, FEW = 25, 2  # networks in one library
REFUSED = 1  # of these


def network(seed: int, chosen: Isa, folder: Path) -> Program:
    """A random network with weights in random formats, and some sites kept float or rounded to bfloat16."""
    drawn = RandomNetwork.drawn(seed, mixed=0.3)
    rounded = drawn.random.random()
    model = quantized(
        drawn.model,
        drawn.feeds,
        forms=drawn.forms,
        keep_float=drawn.keeps_float,
        is_rounded=lambda _site: bool(drawn.random.random() < rounded),
    )
    return program_of(model, drawn.feeds, chosen, folder)


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
    result = compared(programs, chosen, folder, build)
    assert result.wrong == {}
    assert len(refused) <= REFUSED, refused
    assert result.compared.integers > 1000 * count


def test_random_networks(tmp_path: Path) -> None:
    check(0, tmp_path, FEW)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(20))
def test_many_random_networks(part: int, tmp_path: Path) -> None:
    check(part, tmp_path)
