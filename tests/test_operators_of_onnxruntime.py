"""Files whose weights stay packed in memory, by operators of ONNX Runtime's own or by standard ones."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from compiling import compiled, kept_budgets, proto, store_of, weight
from graphs import noise

import ptqc
from ptqc.artifact.folder import Artifact
from ptqc.codegen.onnxruntime.size import BOUND
from ptqc.errors import Infeasible, UsageError

MODEL = """g (float[N,T,64] x) => (float[N,T,32] y) {
    a = MatMul(x, w) b = Tanh(a) c = MatMul(b, v) d = Tanh(c) y = MatMul(d, u)
}"""


def model() -> onnx.ModelProto:
    return proto(MODEL, w=weight(64, 128), v=weight(128, 128, seed=1), u=weight(128, 32, seed=2))


def texts() -> list[dict[str, np.ndarray]]:
    return [{"x": noise(1, 6, 64, seed=seed)} for seed in range(24)]


def test_products_in_float_stay_packed_where_that_is_asked_for(tmp_path: Path) -> None:
    own = compiled(model(), texts(), tmp_path, "24%", activations="float", operators="onnxruntime")
    assert own.manifest["file"]["runtime_operators"] == ["MatMulNBits"]
    assert "ONNX Runtime alone, with operators of its own: MatMulNBits" in str(own)
    assert {entry["format"] for entry in own.plan["weights"]} <= {"int4", "int8"}
    assert own.manifest["results"]["sqnr_db"] > 20
    levels = {a.i for n in onnx.load(own.path).graph.node for a in n.attribute if a.name == "accuracy_level"}
    assert levels == {4}
    again = ptqc.resolve(
        own.folder, output=tmp_path / "standard", budget="24%", cache=store_of(own), operators="standard"
    )
    assert again.manifest["file"]["runtime_operators"] == []
    assert own.manifest["memory"]["weights_bytes"] < 0.4 * again.manifest["memory"]["weights_bytes"]


@pytest.mark.long
def test_products_stay_packed_in_standard_operators(tmp_path: Path) -> None:
    result = compiled(model(), texts(), tmp_path, "24%", activations="float", operators="dequantize")
    file = result.manifest["file"]
    assert (file["runtime_operators"], file["opset"], file["oldest_onnxruntime"]) == ([], 21, "1.19")
    assert "ONNX Runtime 1.19 and newer, where float matmuls stay packed from 1.25 on" in " ".join(str(result).split())
    assert {entry["format"] for entry in result.plan["weights"]} <= {"int4", "int8"}
    assert result.manifest["verification"]["operators"]["MatMulNBits"] == 3
    assert result.manifest["results"]["sqnr_db"] > 20
    assert abs(file["bytes"] - file["bytes_told_to_solver"]) <= BOUND
    numbers = 64 * 128 + 128 * 128 + 128 * 32
    assert 0.5 * numbers < result.manifest["memory"]["weights_bytes"] < 1.2 * numbers
    assert ptqc.verify(result.folder)


def test_an_older_onnxruntime_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnxruntime.__version__", "1.24.4")
    with pytest.raises(UsageError, match=r"needs ONNX Runtime 1\.25 or newer .* 1\.24\.4 is installed: pip install"):
        compiled(model(), texts(), tmp_path, "24%", activations="float", operators="dequantize")


@pytest.mark.slow
def test_products_on_integers_are_as_they_were(tmp_path: Path) -> None:
    result = compiled(model(), texts(), tmp_path, "30%", activations="integer", operators="onnxruntime")
    assert result.manifest["file"]["runtime_operators"] == []


def test_other_operators_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="operators is 'tensorrt'"):
        compiled(model(), texts(), tmp_path, "30%", operators="tensorrt")


# Products whose weights are most of the memory: 98,304 numbers.
WIDE = """g (float[N,T,64] x) => (float[N,T,64] y) {
    a = MatMul(x, w) b = Tanh(a) c = MatMul(b, v) d = Tanh(c) y = MatMul(d, u)
}"""
NUMBERS = 64 * 256 + 256 * 256 + 256 * 64


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("budgets")


def wide(place: Path, name: str, budget: Any, **options: Any) -> Artifact:
    value = proto(WIDE, w=weight(64, 256), v=weight(256, 256, seed=1), u=weight(256, 64, seed=2))
    settings: dict[str, Any] = {"activations": "float", "bits": (4, 8), "operators": "onnxruntime"} | options
    return compiled(value, texts(), place, budget, output=place / name, cache=place / "cache", **settings)


@pytest.mark.slow
def test_formats_keep_a_budget_of_memory(place: Path) -> None:
    free = wide(place, "free", None)
    assert {entry["format"] for entry in free.plan["weights"]} == {"int8"}
    needed = free.manifest["memory"]["needed_bytes"]
    assert NUMBERS < free.manifest["memory"]["weights_bytes"] < 1.3 * NUMBERS
    held = wide(place, "held", f"{int(0.8 * needed)}Bram")
    assert kept_budgets(held)["memory"] is True
    assert {entry["format"] for entry in held.plan["weights"]} == {"int4", "int8"}
    # A size that asks for fewer bytes is kept beside it, one that allows more changes nothing.
    both = wide(place, "both", (f"{int(0.8 * needed)}Bram", "15%"))
    assert (kept_budgets(both)["memory"], kept_budgets(both)["size"]) == (True, True)
    assert both.path.stat().st_size < held.path.stat().st_size
    again = wide(place, "again", (f"{int(0.8 * needed)}Bram", "60%"))
    assert again.plan == held.plan


@pytest.mark.slow
def test_standard_operators_keep_a_budget_of_memory(place: Path) -> None:
    needed = wide(place, "standard", None, operators="dequantize").manifest["memory"]["needed_bytes"]
    held = wide(place, "held by them", f"{int(0.8 * needed)}Bram", operators="dequantize")
    assert kept_budgets(held)["memory"]
    assert {entry["format"] for entry in held.plan["weights"]} == {"int4", "int8"}


@pytest.mark.slow
def test_the_least_memory_that_is_told_can_be_had(place: Path) -> None:
    with pytest.raises(Infeasible, match="with float activations") as refused:
        wide(place, "none", "10KBram")
    least = int(re.search(r"built, and needs ([\d,]+)", str(refused.value))[1].replace(",", ""))  # type: ignore[index]
    assert 0.5 * NUMBERS < least < 0.9 * NUMBERS
    result = wide(place, "least", f"{least}Bram")
    assert {entry["format"] for entry in result.plan["weights"]} == {"int4"}
    assert kept_budgets(result)["memory"] is True


@pytest.mark.slow
def test_codes_and_packed_weights_are_chosen_together(place: Path) -> None:
    """With 8-bit activations a weight takes a byte for each number: less than int4 in float takes, it cannot be."""
    result = wide(place, "auto", f"{int(0.95 * NUMBERS)}Bram", activations="auto")
    assert kept_budgets(result)["memory"] is True
    assert result.manifest["file"]["runtime_operators"] == ["MatMulNBits"]
