import numpy as np
import onnx_ir as ir
from graphs import noise, parse
from hypothesis import given, settings
from hypothesis import strategies as st
from rewriting import operators, rewrite

from ptqc.execution.onnxruntime import Runner
from ptqc.passes.equalize.outliers import ScaleRows

CHANNELS = 6
SCALED = ["Abs", "ReduceMax", "Max", "Div"]


def scaled(model: ir.Model, x: np.ndarray, tensor: str = "x") -> list[str]:
    """Operators after the rewrite; the pipeline has compared the outputs with those of before."""
    rewrite(model, ScaleRows((tensor,)), x=x)
    return operators(model)


def with_wide_rows(x: np.ndarray, seed: int) -> np.ndarray:
    """The same with rows that differ by up to four powers of ten, and one of zeros."""
    rng = np.random.default_rng(seed)
    x = (x * 10.0 ** rng.uniform(-2, 2, (*x.shape[:-1], 1))).astype(np.float32)
    x.reshape(-1, x.shape[-1])[rng.integers(0, x.size // x.shape[-1])] = 0
    return x


@settings(max_examples=60, deadline=None)
@given(turned=st.booleans(), biased=st.booleans(), rows=st.integers(1, 5), seed=st.integers(0, 99))
def test_gemm(turned: bool, biased: bool, rows: int, seed: int) -> None:
    graph = f"""g (float[N, {CHANNELS}] x) => (float[N, 4] y) {{
        y = Gemm <transB = {int(turned)}> (x, w{", b" if biased else ""})
    }}"""
    weight = noise(CHANNELS, 4, seed=seed)
    model = parse(graph, w=weight.T.copy() if turned else weight, b=noise(4, seed=seed))
    result = scaled(model, with_wide_rows(noise(rows, CHANNELS, seed=seed), seed))
    assert result == [*SCALED, "Gemm", "Mul", *(["Add"] if biased else [])]


@settings(max_examples=60, deadline=None)
@given(
    lead=st.lists(st.integers(1, 3), min_size=1, max_size=3).map(tuple),
    readers=st.integers(1, 3),
    clipped=st.booleans(),
    seed=st.integers(0, 99),
)
def test_products_that_share_an_input(lead: tuple[int, ...], readers: int, clipped: bool, seed: int) -> None:
    sizes = ", ".join(["N", *(f"D{i}" for i in range(len(lead) - 1))])
    body = "".join(
        f"p{i} = MatMul(s, w{i}) a{i} = {'Relu' if clipped else 'Add'}(p{i}{'' if clipped else ', b'}) "
        for i in range(readers)
    )
    joined = ", ".join(f"a{i}" for i in range(readers))
    graph = f"""g (float[{sizes}, {CHANNELS}] x) => (float[{sizes}, M] y) {{
        s = Neg(x) {body} y = Concat <axis = -1> ({joined})
    }}"""
    model = parse(graph, b=noise(4), **{f"w{i}": noise(CHANNELS, 4, seed=seed + i) for i in range(readers)})
    result = scaled(model, with_wide_rows(noise(*lead, CHANNELS, seed=seed), seed), "s")
    assert result[:5] == ["Neg", *SCALED]
    assert result.count("MatMul") == result.count("Mul") == readers


def test_rows_that_are_read_reach_one() -> None:
    model = parse(f"g (float[N, {CHANNELS}] x) => (float[N, 4] y) {{ y = Gemm(x, w) }}", w=noise(CHANNELS, 4))
    x = with_wide_rows(noise(9, CHANNELS), 0)
    scaled(model, x)
    result = Runner(model, ["x_rows"]).run({"x": x}, ["x_rows"])["x_rows"]
    reach = np.abs(result).max(-1)
    np.testing.assert_array_equal(reach, np.abs(x).max(-1) > 0)
