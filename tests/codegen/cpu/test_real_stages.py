"""Biases, sums, scales of rows and functions become part of products, and masks part of rounding."""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest

pytest.importorskip("tvm.tirx", reason="the cpu target needs Apache TVM")

import numpy as np
from building import best_and_slowly_least, present
from graphs import noise, parse
from lowering import Quantized, quantized, samples
from together import compared, program_of

from ptqc.codegen.cpu import isa
from ptqc.codegen.kernels.families import dense
from ptqc.codegen.kernels.isa import Isa
from ptqc.codegen.program.program import Program
from ptqc.passes.equalize.outliers import Remedy, rewrites
from ptqc.passes.runner import run_rewrites

ROWS, CHANNELS, INNER = 7, 20, 37
HERE = present(isa.AVX512_VBMI)
SETS = pytest.mark.parametrize("chosen", best_and_slowly_least(HERE))
CONSTANTS = {
    "w": noise(CHANNELS, INNER, scale=0.3),
    "v": noise(INNER, CHANNELS, seed=1, scale=0.3),
    "u": noise(CHANNELS, CHANNELS, seed=2, scale=0.3),
    "b": noise(INNER, seed=3),
    "gain": noise(CHANNELS, seed=6),
    "large": np.abs(noise(INNER, seed=4)) + 1,
    "small": np.clip(noise(INNER, seed=5), -1, 1),
    "root": np.float32(2**0.5),
    "share": np.float32(0.5**0.5),
    "one": np.float32(1),
    "half": np.float32(0.5),
}
GELU = "q = Div(a, root) e = Erf(q) f = Add(e, one) t = Mul(a, f) g = Mul(t, half)"
OTHER_GELU = "q = Mul(share, a) e = Erf(q) f = Add(one, e) t = Mul(f, a) g = Mul(half, t)"
SPLIT, BY_ROW, BOTH = Remedy("n", (2, 9, 11)), Remedy("n", by_row=True), Remedy("n", (2, 9, 11), by_row=True)
BLOCK = f"n = LayerNormalization(x, gain) p = MatMul(n, w) a = Add(p, b) {GELU} r = MatMul(g, v) y = Add(r, x)"
# Networks, what is done about `n`, and families of kernels but copies.
GRAPHS: dict[str, tuple[str, Remedy | None, dict[str, int]]] = {
    "a block in another spelling": (
        f"n = LayerNormalization(x, gain) p = MatMul(n, w) a = Add(b, p) {OTHER_GELU} r = MatMul(g, v) y = Add(x, r)",
        None,
        {"normalize": 1, "quantize": 1, "dense_add_array0_twice_gelu_mul_number0": 1, "dense_float_add_value": 1},
    ),
    "a split block": (
        BLOCK,
        SPLIT,
        {
            "normalize": 1,
            "mul_array1_quantize": 1,
            "nearest": 1,
            "dense": 1,
            "dense_float_add_value_add_array1_twice_gelu_mul_number1": 1,
            "dense_float_add_value": 1,
        },
    ),
    "scales of rows": (
        BLOCK,
        BY_ROW,
        {
            "normalize": 1,
            "abs": 1,
            "reducemax": 1,
            "max_number1": 1,
            "div_float": 1,
            "quantize": 1,
            "dense_mul_row_add_array1_twice_gelu_mul_number1": 1,
            "dense_float_add_value": 1,
        },
    ),
    "both": (
        "n = LayerNormalization(x, gain) y = MatMul(n, w)",
        BOTH,
        {
            "normalize": 1,
            "mul_array1": 1,
            "abs": 1,
            "reducemax": 1,
            "max_number1": 1,
            "div_float": 1,
            "quantize": 1,
            "nearest": 1,
            "dense_mul_row": 1,
            "dense_float_add_value": 1,
        },
    ),
    "other operations": (
        "n = LayerNormalization(x, gain) p = MatMul(n, w) s = Sub(b, p) d = Div(s, large) m = Mul(small, d) y = Neg(m)",
        None,
        {"normalize": 1, "quantize": 1, "dense_sub_array0_div_array1_mul_array0_neg": 1},
    ),
    "a difference of products": (
        "n = LayerNormalization(x, gain) p = MatMul(n, u) r = MatMul(x, u) s = Sub(p, r) y = Relu(s)",
        None,
        {"normalize": 1, "quantize": 1, "dense": 1, "dense_float_sub_value_relu": 1},
    ),
    "a product with what codes gave": (
        "n = LayerNormalization(x, gain) p = MatMul(n, u) c = Exp(x) y = Mul(c, p)",
        None,
        {"normalize": 1, "quantize": 1, "exp": 1, "dense_mul_value": 1},
    ),
    "a product with what real numbers gave": (
        "r = MatMul(x, u) c = Exp(x) y = Mul(c, r)",
        None,
        {"dense_float": 1, "exp": 1, "mul_float": 1},
    ),
    "a product that is read twice": (
        "n = LayerNormalization(x, gain) p = MatMul(n, w) a = Add(p, b) y = Mul(a, p)",
        None,
        {"normalize": 1, "quantize": 1, "dense": 1, "add_array1": 1, "mul_float": 1},
    ),
    "no gelu": (
        "n = LayerNormalization(x, gain) a = MatMul(n, w) q = Div(a, one) e = Erf(q) f = Add(e, one) y = Mul(a, f)",
        None,
        {"normalize": 1, "quantize": 1, "dense": 1, "div_number1_erf_add_number1": 1, "mul_float": 1},
    ),
}
SEEN = samples(ROWS, CHANNELS)


def model(body: str, remedy: Remedy | None) -> ir.Model:
    used = {name: array for name, array in CONSTANTS.items() if re.search(rf"[(,] *{name} *[,)]", body)}
    result = parse(f"g (float[N, {ROWS}, {CHANNELS}] x) => (float y) {{ {body} }}", **used)
    run_rewrites(result, rewrites([remedy] if remedy else []), [{"x": feeds["x"][None]} for feeds in SEEN[:1]])
    return result


def made(body: str, remedy: Remedy | None) -> tuple[Quantized, list[dict[str, np.ndarray]]]:
    feeds = [{"x": feeds["x"][None]} for feeds in SEEN]
    codes = remedy.rest if remedy else "n"
    return quantized(model(body, remedy), feeds, keep_float=lambda site: site != codes), feeds


def programs_of(chosen: Isa, folder: Path) -> dict[str, Program]:
    """The kernels of all networks; what ONNX Runtime computes is left in the folder."""
    return {name: program_of(*made(body, remedy), chosen, folder / name) for name, (body, remedy, _) in GRAPHS.items()}


@pytest.mark.slow
@SETS
def test_the_numbers_are_those_of_the_file(chosen: Isa, tmp_path: Path) -> None:
    programs = programs_of(chosen, tmp_path)
    for name, program in programs.items():
        families = Counter(step.kernel.family for step in program.steps)
        assert {family: count for family, count in families.items() if family != "copy"} == GRAPHS[name][2], name
    assert compared(programs, chosen, tmp_path).wrong == {}


@pytest.mark.long
@pytest.mark.parametrize("kind", ["a split block", "other operations"])
def test_faults_are_found(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = dense.composed

    def wrong(stages: Sequence[Any], *rest: Any) -> Any:
        return right(stages[1:], *rest) if len(stages) > 1 else right(stages, *rest)

    body, remedy, _ = GRAPHS[kind]
    monkeypatch.setattr(dense, "composed", wrong)
    assert compared({"g": program_of(*made(body, remedy), HERE[-1], tmp_path / "g")}, HERE[-1], tmp_path).wrong
