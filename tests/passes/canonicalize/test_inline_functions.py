import onnx.parser
import onnx_ir as ir
from graphs import noise
from rewriting import operators, rewrite

from ptqc.passes.canonicalize.inline_functions import InlineFunctions


def test_functions_are_inlined_and_dropped() -> None:
    text = """
    <ir_version: 8, opset_import: ["": 18, "own": 1]>
    g (float[N] x) => (float[N] y) { y = own.twice(x) }
    <domain: "own", opset_import: ["": 18]>
    twice (a) => (b) { b = Add(a, a) }"""
    model = ir.from_proto(onnx.parser.parse_model(text))
    notes = rewrite(model, InlineFunctions(), x=noise(3))
    assert operators(model) == ["Add"]
    assert not model.functions
    assert model.graph.opset_imports == {"": 18}
    assert [note.subject for note in notes] == ["twice"]


def test_an_input_with_a_default_becomes_a_constant() -> None:
    text = """
    <ir_version: 8, opset_import: ["": 18]>
    g (float[2] x, float[2] w = {1, 2}) => (float[2] y) { y = Mul(x, w) }"""
    model = ir.from_proto(onnx.parser.parse_model(text))
    notes = rewrite(model, InlineFunctions(), x=noise(2))
    assert [value.name for value in model.graph.inputs] == ["x"]
    assert notes[0].subject == "w"
    assert notes[0].level == "warning"
    assert notes[0].message.startswith("was an input")


def test_one_note_tells_of_all_defaults() -> None:
    text = """
    <ir_version: 8, opset_import: ["": 18]>
    g (float[2] x, float[2] v = {1, 2}, float[2] w = {3, 4}) => (float[2] y) { a = Mul(x, v) y = Mul(a, w) }"""
    model = ir.from_proto(onnx.parser.parse_model(text))
    (note,) = rewrite(model, InlineFunctions(), x=noise(2))
    assert [value.name for value in model.graph.inputs] == ["x"]
    assert note.subject == "v"
    assert note.message.startswith("and 1 more were inputs")
