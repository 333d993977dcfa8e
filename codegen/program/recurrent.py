"""LSTM, GRU and RNN as functions of operators that have kernels: their steps written out one after the other.

Gates are as ONNX defines them. What inputs give to all steps is one product; each step adds what the state before
gives. States and biases that a node does not have are zeros, which fold away.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from ptqc.ir.nodes import constant, input_of, integer, static, text

# Steps of all directions that are written out: each is some ten kernels.
MOST_STEPS = 64
INPUTS = ("x", "weights", "recurrence", "biases", "lengths", "h_first", "c_first", "peepholes")
WEIGHTS, RECURRENCE, BIASES, LENGTHS, FIRST, PEEPHOLES = 1, 2, 3, 4, (5, 6), 7
STATES = ("h", "c")
LSTM = """{n}_p = MatMul({h}, {d}_r) {n}_z = Add({x}, {n}_p) {n}_raw, {n}_drawn = Split <axis = 2> ({n}_z, parts)
    {n}_open = Sigmoid({n}_raw) {n}_i, {n}_o, {n}_f = Split <axis = 2, num_outputs = 3> ({n}_open)
    {n}_g = Tanh({n}_drawn) {n}_new = Mul({n}_i, {n}_g) {n}_old = Mul({n}_f, {c}) {n}_c = Add({n}_new, {n}_old)
    {n}_seen = Tanh({n}_c) {n}_h = Mul({n}_o, {n}_seen)"""
RNN = "{n}_p = MatMul({h}, {d}_r) {n}_z = Add({x}, {n}_p) {n}_h = {activation}({n}_z)"
GATES = """{n}_xg, {n}_xn = Split <axis = 2> ({x}, parts) {n}_raw = Add({n}_xg, {n}_hg)
    {n}_open = Sigmoid({n}_raw) {n}_z, {n}_reset = Split <axis = 2, num_outputs = 2> ({n}_open)"""
MIXED = """{n}_total = Add({n}_xn, {n}_turned) {n}_new = Tanh({n}_total) {n}_left = Sub(one, {n}_z)
    {n}_part = Mul({n}_left, {n}_new) {n}_stays = Mul({n}_z, {h}) {n}_h = Add({n}_part, {n}_stays)"""
GRU = f"""{{n}}_p = MatMul({{h}}, {{d}}_rg) {{n}}_hg = Identity({{n}}_p) {GATES}
    {{n}}_kept = Mul({{n}}_reset, {{h}}) {{n}}_turned = MatMul({{n}}_kept, {{d}}_rn) {MIXED}"""
RESET_LAST = f"""{{n}}_m = MatMul({{h}}, {{d}}_r) {{n}}_p = Add({{n}}_m, {{d}}_rb)
    {{n}}_hg, {{n}}_hn = Split <axis = 2> ({{n}}_p, parts) {GATES} {{n}}_turned = Mul({{n}}_reset, {{n}}_hn) {MIXED}"""
DIRECTION = """{d}_at = Constant <value_int = {place}> ()
    {d}_w_one = Gather <axis = 0> (weights, {d}_at) {d}_w = Transpose <perm = [1, 0]> ({d}_w_one)
    {d}_r_one = Gather <axis = 0> (recurrence, {d}_at) {d}_r = Transpose <perm = [1, 0]> ({d}_r_one)
    {d}_b = Gather <axis = 0> (biases, {d}_at) {d}_wb, {d}_rb = Split <axis = 0, num_outputs = 2> ({d}_b)
    {d}_product = MatMul(x, {d}_w)"""
ALL_BIASES = "{d}_bias = Add({d}_wb, {d}_rb) {d}_x = Add({d}_product, {d}_bias)"
OWN_BIAS = "{d}_x = Add({d}_product, {d}_wb)"
APART = "{d}_rg, {d}_rn = Split <axis = 1> ({d}_r, parts)"


@dataclass(frozen=True)
class Cell:
    """One of the operators. gates: how many, the last apart. states: that go from step to step. usual: activations.

    before: what is done once. step: what is done in each step.
    """

    gates: int
    states: tuple[str, ...]
    usual: tuple[str, ...]
    before: str
    step: str


CELLS = {
    "LSTM": Cell(4, STATES, ("Sigmoid", "Tanh", "Tanh"), ALL_BIASES, LSTM),
    "GRU": Cell(3, STATES[:1], ("Sigmoid", "Tanh"), f"{ALL_BIASES} {APART}", GRU),
    "RNN": Cell(1, STATES[:1], ("Tanh",), ALL_BIASES, RNN),
}
# A GRU with linear_before_reset: its state is multiplied before it is reset.
LINEAR = replace(CELLS["GRU"], before=OWN_BIAS, step=RESET_LAST)
OF_RNN = ("Tanh", "Relu", "Sigmoid")


def is_recurrent(node: ir.Node) -> bool:
    """Whether it is one of them."""
    return not node.domain and node.op_type in CELLS


def is_written_out(node: ir.Node) -> bool:
    """Whether it is one of them whose steps can be written out."""
    return is_recurrent(node) and refusal(node) is None


def refusal(node: ir.Node) -> str | None:
    """Why it cannot be written out, if so."""
    steps = static(input_of(node, 0), slice(0, 1))
    if steps is None:
        return refusal_by_form(node) or "the number of its steps varies"
    if (reason := refusal_with(node, steps[0])) is not None:
        return reason
    count = steps[0] * len(directions_of(node))
    return f"it has {count} steps, and up to {MOST_STEPS} are written out" if not 0 < count <= MOST_STEPS else None


def refusal_with(node: ir.Node, steps: int) -> str | None:
    """Why no library can have it with so many steps, if so."""
    operand = input_of(node, LENGTHS)
    if operand is not None and ((lengths := constant(operand)) is None or np.any(lengths != steps)):
        return refusal_by_form(node) or "its sequences have lengths of their own"
    return refusal_by_form(node)


def refusal_by_form(node: ir.Node) -> str | None:
    """The same, before sizes are known."""
    if input_of(node, PEEPHOLES) is not None:
        return "its gates look at the state of the cell"
    if integer(node, "layout", 0) or integer(node, "input_forget", 0) or "clip" in node.attributes:
        return "it has layout, clip or input_forget"
    return None if activation_of(node) is not None else "its activations are not the usual ones"


def definition(node: ir.Node) -> str:
    """What it computes, in ONNX's text form: a function of the inputs that it has."""
    operand = [name for place, name in enumerate(INPUTS) if input_of(node, place) is not None]
    cell, directions = _cell(node), directions_of(node)
    outputs = ["y", *(f"{state}_last" for state in cell.states)][: len(node.outputs)]
    body = [*_constants(node, operand)]
    for place, direction in enumerate(directions):
        body += _direction(node, direction, place)
    for state in cell.states:
        body.append(f"{state}_last = Concat <axis = 0> ({', '.join(f'{d}_{state}_last' for d in directions)})")
    body.append(f"y = Concat <axis = 1> ({', '.join(f'{d}_y' for d in directions)})")
    return f"({', '.join(operand)}) => ({', '.join(outputs)}) {{ {' '.join(body)} }}"


def _cell(node: ir.Node) -> Cell:
    return LINEAR if is_linear(node) else CELLS[node.op_type]


def is_linear(node: ir.Node) -> bool:
    """Whether it is a GRU that resets a product of its state, not the state."""
    return node.op_type == "GRU" and bool(integer(node, "linear_before_reset", 0))


def directions_of(node: ir.Node) -> tuple[str, ...]:
    """f and r: forward and reverse."""
    return {"forward": ("f",), "reverse": ("r",), "bidirectional": ("f", "r")}[text(node, "direction", "forward")]


def activation_of(node: ir.Node) -> str | None:
    """That of an RNN, the last of the others; None where they are not the usual ones."""
    cell, attribute = CELLS[node.op_type], node.attributes.get("activations")
    count = len(directions_of(node))
    if attribute is None:
        return cell.usual[-1]
    inputs = [str(name).capitalize() for name in attribute.as_strings()]
    one = inputs[: len(cell.usual)]
    is_known = one == [*cell.usual] or (node.op_type == "RNN" and one[0] in OF_RNN)
    return one[-1] if is_known and inputs == one * count else None


def _constants(node: ir.Node, inputs: list[str]) -> Iterator[str]:
    """Sizes of parts of the gates, zeros for what the node does not have, and a state for each direction."""
    cell, directions = CELLS[node.op_type], directions_of(node)
    hidden = integer(node, "hidden_size", 0)
    yield f"parts = Constant <value_ints = [{(cell.gates - 1) * hidden}, {hidden}]> ()"
    yield "one = Constant <value_float = 1.0> () second = Constant <value_ints = [1]> ()"
    if "biases" not in inputs:
        yield f"b_sizes = Constant <value_ints = [{len(directions)}, {2 * cell.gates * hidden}]> ()"
        yield "biases = ConstantOfShape(b_sizes)"
    for state in cell.states:
        first = f"{state}_first"
        if first not in inputs:
            yield f"{state}_sizes = Constant <value_ints = [{len(directions)}, 1, {hidden}]> ()"
            yield f"{first} = ConstantOfShape({state}_sizes)"
        starts = ", ".join(f"{d}_{state}" for d in directions)
        yield f"{starts} = Split <axis = 0, num_outputs = {len(directions)}> ({first})"


def _direction(node: ir.Node, direction: str, place: int) -> Iterator[str]:
    """All steps in one direction, and what they give."""
    cell = _cell(node)
    yield DIRECTION.format(d=direction, place=place)
    yield cell.before.format(d=direction)
    steps = static(input_of(node, 0), slice(0, 1))
    assert steps is not None
    names = [f"{direction}{now}" for now in range(steps[0])]
    yield f"{', '.join(f'{n}_x' for n in names)} = Split <axis = 0, num_outputs = {len(names)}> ({direction}_x)"
    states = {state: f"{direction}_{state}" for state in STATES}
    for n in reversed(names) if direction == "r" else names:
        yield cell.step.format(n=n, d=direction, x=f"{n}_x", activation=activation_of(node), **states)
        states = {state: f"{n}_{state}" for state in STATES}
    for state in cell.states:
        yield f"{direction}_{state}_last = Identity({states[state]})"
    hidden = ", ".join(f"{n}_h" for n in names)
    yield f"{direction}_all = Concat <axis = 0> ({hidden}) {direction}_y = Unsqueeze({direction}_all, second)"
