"""What a delivered file is told to need of memory, against the allocator of ONNX Runtime and the file's own weights."""

from pathlib import Path

import pytest
from compiling import compiled, proto, samples, weight
from mostly_slow import mostly_slow

from ptqc.artifact.folder import Artifact
from ptqc.execution.memory import _most

# Wide enough that the allocator's rounding is little of it.
GRAPH = """g (float[N,3,48,48] x) => (float[N,16,24,24] y) {
    a = Conv<pads=[1,1,1,1]>(x, w1, b1)
    ar = Relu(a)
    b = Conv<pads=[1,1,1,1], strides=[2,2]>(ar, w2, b2)
    br = Relu(b)
    y = Conv(br, w3)
}"""
SHAPES = {"w1": (32, 3, 3, 3), "w2": (64, 32, 3, 3), "w3": (16, 64, 1, 1)}
WEIGHTS = 32 * 27 + 64 * 288 + 16 * 64


@pytest.fixture(scope="module", params=mostly_slow(["integer", "float"], "integer"))
def artifact(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    place = tmp_path_factory.mktemp("memory")
    weights = {name: weight(*shape, seed=i) for i, (name, shape) in enumerate(SHAPES.items())}
    biases = {"b1": weight(32), "b2": weight(64)}
    model = proto(GRAPH, **weights, **biases)
    options = {"activations": request.param, "bits": (4,), "samples": 8, "cache": place, "output": place / "out"}
    return compiled(model, samples(3, 48, 48, count=16), place, None, **options)


def test_the_run_is_what_the_allocator_gives(artifact: Artifact) -> None:
    memory = artifact.manifest["memory"]
    if memory["run_bytes"] is None:
        pytest.skip("this release of ONNX Runtime does not tell what its allocator gives")
    assert memory["predicted_run_bytes"] == pytest.approx(memory["run_bytes"], rel=0.25)


def test_the_weights_are_what_is_unpacked(artifact: Artifact) -> None:
    on_codes = artifact.manifest["verification"]["integer_nodes"] > 0
    least = WEIGHTS if on_codes else 4 * WEIGHTS
    assert least <= artifact.manifest["memory"]["weights_bytes"] <= 1.25 * least
    assert artifact.manifest["file"]["bytes"] < least


def test_a_release_that_does_not_tell() -> None:
    assert _most([{"op_name": "Conv", "output_size": "4"}]) is None


def test_the_most_of_all_nodes_without_what_was_held_before() -> None:
    nodes = [
        {"mem_bytes_in_use": "1500", "mem_in_use_delta": "500", "mem_in_use_peak": "1600"},
        {"mem_bytes_in_use": "1100", "mem_in_use_delta": "-400", "mem_in_use_peak": "1900"},
    ]
    assert _most(nodes) == 900


def test_a_depthwise_kernel_has_a_pointer_for_each_tap(tmp_path: Path) -> None:
    graph = "g (float[N,32,48,48] x) => (float[N,32,48,48] y) { y = Conv<pads=[1,1,1,1], group=32>(x, w) }"
    options = {"activations": "integer", "bits": (4,), "samples": 8, "cache": tmp_path, "output": tmp_path / "out"}
    data = samples(32, 48, 48, count=12)
    memory = compiled(proto(graph, w=weight(32, 1, 3, 3)), data, tmp_path, None, **options).manifest["memory"]
    if memory["run_bytes"] is None:
        pytest.skip("this release of ONNX Runtime does not tell what its allocator gives")
    assert memory["predicted_run_bytes"] == pytest.approx(memory["run_bytes"], rel=0.25)
