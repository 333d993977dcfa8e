"""Tables that stay packed in memory: what a session gives, what it holds, and that a wrong bit is found."""

import numpy as np
import onnx
import pytest
from graphs import noise, parse
from lowering import Quantized, quantized
from onnx import numpy_helper

from ptqc.codegen.onnxruntime import size, verify
from ptqc.codegen.onnxruntime.export import Exported, export
from ptqc.codegen.onnxruntime.size import loaded_bytes
from ptqc.codegen.onnxruntime.unpack_functions import UnpackKind
from ptqc.codegen.onnxruntime.verify_semantics import Intent
from ptqc.errors import VerificationError
from ptqc.execution.onnxruntime import Feeds, Runner
from ptqc.formats import FLOAT16, Codebook, Format, Integer
from ptqc.formats.trellis import BITS, RowTrellis
from ptqc.ir import layers

ROWS, WIDTH = 500, 48
FUNCTIONS = 10_000  # bytes of what two of them keep
PATHS = [*map(RowTrellis, BITS)]
FORMS: list[Format] = [*map(Integer, range(2, 9)), *map(Codebook, (2, 3, 4)), *PATHS]
TWO = """g (int64[N, T] i, int32[M] j) => (float[N, T, 48] y, float[M, 48] z) {
    y = Gather(embedding, i)
    z = Gather(embedding, j)
}"""
FEEDS: Feeds = {"i": np.array([[0, 499, 7], [-1, 3, 3]]), "j": np.array([5, 499, -500, 0], np.int32)}


@pytest.fixture(autouse=True)
def every_table_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "LARGE", ROWS * WIDTH)


def made_in(form: Format) -> Quantized:
    return quantized(parse(TWO, embedding=noise(ROWS, WIDTH)), [FEEDS], forms=form)


def check(network: Quantized, file: Exported) -> int:
    return verify.check(file, network.lowered, Intent(network.model, network.plan, network.tuned))


@pytest.mark.parametrize("inline", [False, True])
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_rows_are_unpacked_when_they_are_read(form: Format, inline: bool) -> None:
    made = made_in(form)
    file = export(made.lowered, made.model, inline=inline)
    proto = onnx.load_from_string(file.data)
    onnx.checker.check_model(proto)
    expected, result = made.run(FEEDS, optimize=False), Runner(proto).run(FEEDS)
    for name, rows in expected.items():
        np.testing.assert_array_equal(result[name], rows)
    assert check(made, file) == 1
    packed = form.bits_per_weight * ROWS * WIDTH // 8
    assert loaded_bytes(proto) < packed + 2 * ROWS + FUNCTIONS


@pytest.mark.parametrize("form", PATHS, ids=str)
def test_no_row_of_paths_may_be_read(form: Format) -> None:
    made = made_in(form)
    file = export(made.lowered, made.model)
    assert [function.name for function in file.functions] == ["Gy"]  # for places of any rank
    runner = Runner(onnx.load_from_string(file.data))
    for shape in ((0, 3), (2, 0)):
        feeds: Feeds = {"i": np.zeros(shape, np.int64), "j": np.zeros(shape[1], np.int32)}
        for name, rows in made.run(feeds, optimize=False).items():
            np.testing.assert_array_equal(runner.run(feeds)[name], rows)


@pytest.mark.parametrize("form", PATHS, ids=str)
def test_a_table_of_paths_that_one_row_is_read_of_is_unpacked(form: Format) -> None:
    feeds = {"i": np.array(-1)}
    network = quantized(
        parse("g (int64 i) => (float[48] y) { y = Gather(t, i) }", t=noise(ROWS, WIDTH)), [], forms=form
    )
    file = export(network.lowered, network.model)
    assert [function.kind for function in file.functions] == [UnpackKind.FLOAT]
    assert check(network, file) == 1
    result = Runner(onnx.load_from_string(file.data)).run(feeds)
    np.testing.assert_array_equal(result["y"], network.run(feeds)["y"])


def test_what_is_read_whole_as_well_is_unpacked() -> None:
    graph = "g (int64[N, T] i) => (float[N, T, 48] y, float[500, 48] z) { y = Gather(t, i) z = Neg(t) }"
    network = quantized(parse(graph, t=noise(ROWS, WIDTH)), [{"i": FEEDS["i"]}], forms=Integer(4))
    file = export(network.lowered, network.model)
    assert not file.picks
    assert [function.kind for function in file.functions] == [UnpackKind.FLOAT]
    assert check(network, file) == 1


def test_float16_is_unpacked() -> None:
    made = made_in(FLOAT16)
    assert not export(made.lowered, made.model).picks


def test_a_wrong_bit_is_found() -> None:
    made = made_in(Integer(4))
    file = export(made.lowered, made.model)
    plane = next(t for t in file.proto.graph.initializer if t.data_type == onnx.TensorProto.UINT8)
    array = numpy_helper.to_array(plane).copy()
    array[ROWS - 1, 0, -1, -1] ^= 1
    plane.CopyFrom(numpy_helper.from_array(array, plane.name))
    with pytest.raises(VerificationError, match=r"'embedding'.* is not what was tuned"):
        check(made, file)


@pytest.mark.parametrize(("one", "other"), [(2, 7), (3, 4), (5, 8)])
def test_the_bytes_of_a_format_are_said(one: int, other: int) -> None:
    written, said = [], []
    for bits in (one, other):
        made = made_in(Integer(bits))
        file = export(made.lowered, made.model, 1)
        uses = [size.Use(rank=rank) for rank in (2, 1)]
        needed = size.stored(made.tuned.weights["embedding"], uses, 1)
        written.append(file.size)
        said.append(needed.own + sum(needed.parts(18).values()))
    assert abs((written[1] - written[0]) - (said[1] - said[0])) <= size.BOUND
