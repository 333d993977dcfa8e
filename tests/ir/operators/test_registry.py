"""What is known of operators is said once, is true of ONNX, and every table of another room agrees with it."""

from collections import Counter

import onnx.defs
import pytest

from ptqc.codegen.kernels.families.functions import UNARY
from ptqc.codegen.kernels.lowering import BETWEEN_CODES, KERNELS
from ptqc.execution.torch.operators import OPERATORS as IN_TORCH
from ptqc.ir.operators import EVERY, OPERATORS, Operator, Trait, named

SCHEMAS = onnx.defs.get_all_schemas_with_history()
ON_CODES = [one for one in EVERY if one.kernels]


def identity(one: Operator) -> str:
    return f"{one.domain}:{one.name}"


def test_every_operator_is_said_once() -> None:
    assert [name for name, count in Counter(map(identity, EVERY)).items() if count > 1] == []


@pytest.mark.parametrize("one", EVERY, ids=identity)
def test_every_operator_is_one_of_onnx_with_the_inputs_that_are_named(one: Operator) -> None:
    known = [schema for schema in SCHEMAS if (schema.name, schema.domain) == (one.name, one.domain)]
    if not known:
        assert one.domain == "com.microsoft" or one.name == "SimplifiedLayerNormalization"
        return
    most = max(schema.max_input for schema in known)
    assert max(one.parameters, default=-1) < most


@pytest.mark.parametrize("one", EVERY, ids=identity)
def test_what_has_an_integer_kernel_has_a_reference(one: Operator) -> None:
    assert bool(one.kernels) == (one.reference is not None)
    assert not one.kernels or one.moves is None


def test_layers_have_weights_and_channels() -> None:
    assert named(Trait.LAYER) <= named(Trait.WEIGHTED) & named(Trait.PRODUCT)
    assert all(OPERATORS[name].channels is not None and OPERATORS[name].kernels for name in named(Trait.LAYER))


@pytest.mark.parametrize("one", ON_CODES, ids=identity)
def test_native_libraries_compute_on_codes_what_onnx_runtime_does(one: Operator) -> None:
    assert one.name in {*KERNELS, *BETWEEN_CODES, *UNARY}


@pytest.mark.parametrize("one", [one for one in OPERATORS.values() if one.kernels or one.moves], ids=identity)
def test_torch_knows_what_moves_codes_or_computes_on_them(one: Operator) -> None:
    assert one.name in IN_TORCH
