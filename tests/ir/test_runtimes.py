"""Plans are solved for a runtime: what it demands is known before anything is measured."""

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from compiling import compiled, proto, residual, samples, weight

from ptqc.calibration.ranges import RangeObserver
from ptqc.errors import UsageError
from ptqc.ir.layers import find_layers
from ptqc.ir.runtimes import RULES
from ptqc.ir.sites import find_kernels
from ptqc.options import CompileOptions
from ptqc.passes.quantize.calibrate import observed_params


def observer(values: np.ndarray) -> RangeObserver:
    result = RangeObserver()
    result.update(values)
    return result


@pytest.mark.parametrize("values", [np.linspace(0, 3, 999), np.linspace(-2, 3, 999), np.linspace(-3, 0, 999)])
@pytest.mark.parametrize("powers", [False, True])
def test_symmetric_codes_lie_around_the_middle(values: np.ndarray, powers: bool) -> None:
    """Evenly spread values are hardly clipped, as each step costs more than it saves."""
    params = observed_params(observer(values), "mse", powers=powers, symmetric=True)
    assert params.zero_point == 128
    assert np.frexp(params.scale)[0] == 0.5 or not powers
    reach = np.abs(values).max() / 127
    assert 0.7 * reach <= params.scale <= (2 if powers else 1.01) * reach


@pytest.mark.parametrize("kind", ["normal", "one-sided", "heavy tails"])
def test_a_symmetric_range_has_the_least_error_of_many(kind: str) -> None:
    """The error is that of rounding the values themselves; by minmax nothing is clipped."""
    random = np.random.default_rng(0)
    values = random.standard_t(3, 20_000) if kind == "heavy tails" else random.standard_normal(20_000)
    values = np.abs(values) if kind == "one-sided" else values
    reach = np.abs(values).max()

    def error(scale: float) -> float:
        return float(np.square(np.clip(np.rint(values / scale), -128, 127) * scale - values).mean())

    least = min(error(share * reach / 127) for share in np.linspace(0.05, 1, 96))
    assert error(observed_params(observer(values), "mse", symmetric=True).scale) <= 1.03 * least
    assert observed_params(observer(values), "minmax", symmetric=True).scale == pytest.approx(reach / 127, rel=1e-3)


def test_nothing_observed_has_scale_1() -> None:
    assert observed_params(RangeObserver(), symmetric=True).scale == 1


def test_closed_layers_give_codes() -> None:
    model = ir.from_proto(residual())
    layers = find_layers(model)
    assert any(kernel.float_output for kernel in find_kernels(model, layers))
    assert not any(kernel.float_output for kernel in find_kernels(model, layers, closed=True))


def test_a_runtime_says_what_options_are_where_the_user_does_not() -> None:
    assert CompileOptions.of({"runtime": "xdna"}).scales == "pow2"
    assert CompileOptions.of({"runtime": "litert"}).activations == "integer"
    assert CompileOptions.of({"runtime": "litert", "activations": "float"}).activations == "float"
    assert CompileOptions.of({"runtime": "qnn"}).activations == "auto"
    assert CompileOptions.of({}).activations == "auto"
    assert [CompileOptions.of({"runtime": name}).allow_8bit for name in ("arm", "qnn")] == [True, False]
    assert not CompileOptions.of({"runtime": "arm", "allow_8bit": False}).allow_8bit
    with pytest.raises(UsageError, match="runtime is 'coreml'; known: onnxruntime, arm, openvino, qnn"):
        CompileOptions.of({"runtime": "coreml"})


def test_what_was_measured_for_onnx_runtime_serves_still() -> None:
    assert "runtime" not in CompileOptions.of({}).to_json()
    assert CompileOptions.of({"runtime": "qnn"}).to_json()["runtime"] == "qnn"


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["tensorrt", "xdna"])
def test_a_plan_for_a_runtime_that_is_not_here(runtime: str, tmp_path: Path) -> None:
    """Its file keeps the rules of the runtime, and says that it was not run."""
    artifact = compiled(residual(), samples(3, 8, 8), tmp_path, None, runtime=runtime, target="qdq")
    assert artifact.manifest["targets"]["qdq"]["runtimes"][runtime]["note"].startswith(
        "not run; breaks none of its rules"
    )
    zeros = {entry["site"]: entry["zero_point"] for entry in artifact.plan["activations"]}
    assert {zero for site, zero in zeros.items() if runtime == "xdna" or site in ("x", "ar", "br", "c")} == {128}


FUSED = """g (float[N,8,8,8] x) => (float[N,5] y, float[N,5] z) {
    c = Conv<pads = [1,1,1,1]>(x, w, b)
    s = Sigmoid(c)
    a = Mul(c, s)
    d = Conv(a, one, b)
    m = MaxPool<kernel_shape = [2,2], strides = [2,2]>(d)
    e = Conv(m, one, b)
    r = Clip(e, zero, six)
    f = Conv<pads = [1,1,1,1]>(d, w, b)
    k = MaxPool<kernel_shape = [2,2], strides = [2,2]>(f)
    t = Add(r, k)
    h = Concat<axis = 1>(t, m)
    p = GlobalAveragePool(h)
    q = Flatten(p)
    u = MatMul(q, v)
    n = Relu(u)
    y = Gemm(n, g, b5)
    o = MatMul(n, g)
    z = Add(o, b5)
}"""


def test_a_plan_for_a_runtime_that_fuses(tmp_path: Path) -> None:
    """Layers between real values, sums, moves between two scales: the form for TensorRT computes the same."""
    weights = {"w": weight(8, 8, 3, 3), "one": weight(8, 8, 1, 1), "v": weight(16, 8), "g": weight(8, 5)}
    numbers: dict[str, np.ndarray | np.generic] = {
        "b": weight(8),
        "b5": weight(5),
        "zero": np.float32(0),
        "six": np.float32(6),
    }
    artifact = compiled(
        proto(FUSED, **weights, **numbers), samples(8, 8, 8), tmp_path, None, runtime="tensorrt", target="qdq"
    )
    assert artifact.manifest["targets"]["qdq"]["runtimes"]["tensorrt"]["note"].startswith(
        "not run; breaks none of its rules"
    )
    zeros = {entry["site"]: entry["zero_point"] for entry in artifact.plan["activations"]}
    assert zeros.keys() >= {"x", "a", "d", "m", "r", "k", "q", "n"}
    assert {"c", "s", "e", "f", "t", "h", "p"}.isdisjoint(zeros)
    assert zeros["a"] != 128
    assert zeros["d"] == 128


def test_every_runtime_is_declared() -> None:
    assert set(RULES) >= {"onnxruntime", "arm", "openvino", "qnn", "litert", "tensorrt", "xdna"}
