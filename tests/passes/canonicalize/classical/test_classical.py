"""Classical learners against ONNX Runtime on the original operators."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from graphs import noise
from onnx import TensorProto, helper
from rewriting import operators, rewrite

from ptqc.execution.onnxruntime import Runner
from ptqc.notes import Level, Note
from ptqc.passes.canonicalize.classical import Classical
from ptqc.passes.canonicalize.foreign_types import ForeignTypes
from ptqc.passes.runner import run_rewrites

FEATURES = 5
ROWS = noise(16, FEATURES)
LABELS, SCORES = ("label", TensorProto.INT64), ("scores", TensorProto.FLOAT)
NAMES = ("label", TensorProto.STRING)
TRANSFORMS = ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT"]


def learner(
    op_type: str, outputs: Sequence[tuple[str, int]], kind: int = TensorProto.FLOAT, **attributes: Any
) -> ir.Model:
    """One operator of `ai.onnx.ml` on rows of FEATURES columns."""
    node = helper.make_node(op_type, ["x"], [name for name, _ in outputs], domain="ai.onnx.ml", **attributes)
    values = [helper.make_tensor_value_info("x", kind, ["N", FEATURES])]
    made = [
        helper.make_tensor_value_info(name, kind, ["N", "M"] if name == "scores" else ["N"]) for name, kind in outputs
    ]
    graph = helper.make_graph([node], "g", values, made)
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 1)]
    return ir.from_proto(helper.make_model(graph, opset_imports=imports, ir_version=8))


def rewritten(model: ir.Model, rows: np.ndarray = ROWS) -> ir.Model:
    """The model without operators of `ai.onnx.ml`; the pipeline has compared the outputs."""
    run_rewrites(model, (ForeignTypes(), Classical()), [{"x": rows}])
    assert all(node.domain == "" for node in model.graph)
    assert "ai.onnx.ml" not in model.opset_imports
    return model


def floats(*shape: int, seed: int = 1) -> list[float]:
    return [float(number) for number in noise(*shape, seed=seed).ravel()]


def classes(count: int, of_strings: bool) -> dict[str, Any]:
    """Labels that are not the numbers of their places."""
    if of_strings:
        return {"classlabels_strings": [f"class {chr(97 + i)}" for i in range(count)]}
    return {"classlabels_ints": [7 - i for i in range(count)]}


def small(count: int) -> list[float]:
    """Coefficients whose scores are between 0 and 1 on rows of such numbers, which PROBIT needs."""
    return [0.02 * column + 0.01 * row for row in range(count) for column in range(FEATURES)]


@pytest.mark.parametrize("of_strings", [False, True])
@pytest.mark.parametrize("kind", TRANSFORMS)
def test_linear_classifiers(kind: str, of_strings: bool) -> None:
    """Three classes, one row of coefficients each."""
    outputs = [NAMES if of_strings else LABELS, SCORES]
    weights = small(3) if kind == "PROBIT" else floats(3, FEATURES)
    model = learner(
        "LinearClassifier",
        outputs,
        coefficients=weights,
        intercepts=[0.1, 0.2, 0.05],
        post_transform=kind,
        **classes(3, of_strings),
    )
    rows = np.abs(np.sin(ROWS)) if kind == "PROBIT" else ROWS
    assert operators(rewritten(model, rows)).count("Gemm") == 1


@pytest.mark.parametrize("of_strings", [False, True])
@pytest.mark.parametrize("kind", ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO"])
def test_one_row_of_coefficients_decides_between_two_classes(kind: str, of_strings: bool) -> None:
    model = learner(
        "LinearClassifier",
        [NAMES if of_strings else LABELS, SCORES],
        coefficients=floats(FEATURES),
        intercepts=[0.3],
        post_transform=kind,
        **classes(2, of_strings),
    )
    result = Runner(rewritten(model)).run({"x": ROWS})
    assert len(set(result["label"].tolist())) == 2
    assert result["scores"].shape == (len(ROWS), 2)


def test_scores_of_zero_stay_zero_with_softmax_zero() -> None:
    model = learner(
        "LinearClassifier",
        [LABELS, SCORES],
        coefficients=[*floats(FEATURES), *[0.0] * FEATURES, *floats(FEATURES, seed=2)],
        intercepts=[0.0, 0.0, 0.0],
        post_transform="SOFTMAX_ZERO",
        **classes(3, of_strings=False),
    )
    assert not Runner(rewritten(model)).run({"x": ROWS})["scores"][:, 1].any()


@pytest.mark.parametrize("targets", [1, 2])
@pytest.mark.parametrize("kind", TRANSFORMS)
def test_linear_regressors(kind: str, targets: int) -> None:
    attributes: dict[str, Any] = {
        "coefficients": small(targets),
        "intercepts": [0.1] * targets,
        "targets": targets,
        "post_transform": kind,
    }
    rewritten(learner("LinearRegressor", [SCORES], **attributes), np.abs(np.sin(ROWS)))


def test_a_regressor_without_intercepts() -> None:
    model = learner("LinearRegressor", [SCORES], coefficients=floats(2, FEATURES), targets=2)
    assert len(rewritten(model).graph.node(0).inputs) == 2


def vectors(sizes: Sequence[int], kind: str, of_strings: bool) -> ir.Model:
    """A machine with this many support vectors of each class."""
    count, pairs = len(sizes), len(sizes) * (len(sizes) - 1) // 2
    return learner(
        "SVMClassifier",
        [NAMES if of_strings else LABELS, SCORES],
        coefficients=floats(count - 1, sum(sizes)),
        support_vectors=floats(sum(sizes), FEATURES, seed=2),
        vectors_per_class=list(sizes),
        rho=floats(pairs, seed=3),
        kernel_type="LINEAR",
        kernel_params=[0.0, 0.0, 3.0],
        post_transform=kind,
        **classes(count, of_strings),
    )


@pytest.mark.parametrize("of_strings", [False, True])
@pytest.mark.parametrize("kind", ["NONE", "SOFTMAX", "LOGISTIC"])
@pytest.mark.parametrize("sizes", [(2, 3), (3, 1, 4), (2, 3, 2, 5)])
def test_linear_support_vectors_sum_up_to_one_row_per_pair(sizes: Sequence[int], kind: str, of_strings: bool) -> None:
    model = rewritten(vectors(sizes, kind, of_strings))
    weights = [value for name, value in model.graph.initializers.items() if "coefficients" in name]
    assert [tuple(value.shape or ()) for value in weights] == [(len(sizes) * (len(sizes) - 1) // 2, FEATURES)]


@pytest.mark.parametrize("one_class", [0, 1])
@pytest.mark.parametrize("supports", [0, 4])
def test_linear_support_vector_regressors(supports: int, one_class: int) -> None:
    more: dict[str, Any] = {"support_vectors": floats(supports, FEATURES, seed=2)} if supports else {}
    model = learner(
        "SVMRegressor",
        [SCORES],
        coefficients=floats(supports or FEATURES),
        n_supports=supports,
        rho=[0.2],
        kernel_type="LINEAR",
        kernel_params=[0.0, 0.0, 3.0],
        one_class=one_class,
        **more,
    )
    rewritten(model)


def coupled(sizes: Sequence[int]) -> ir.Model:
    """A machine that gives probabilities."""
    model = vectors(sizes, "NONE", of_strings=True)
    pairs = len(sizes) * (len(sizes) - 1) // 2
    for name, values in {"prob_a": [-1.0 - 0.1 * i for i in range(pairs)], "prob_b": [0.1] * pairs}.items():
        model.graph.node(0).attributes[name] = ir.AttrFloat32s(name, values)
    return model


@pytest.mark.parametrize("sizes", [(5, 6), (8, 7, 9), (9, 9, 9, 9)])
def test_coupled_probabilities_are_made_of_the_decisions_of_a_layer(sizes: Sequence[int]) -> None:
    model = coupled(sizes)
    rewrite(model, Classical(), x=ROWS)
    assert operators(model) == ["Gemm", "SVMClassifier"]


def test_coupled_probabilities_of_few_vectors_stay_with_a_reason() -> None:
    notes = rewrite(coupled((1, 1, 1)), Classical(), x=ROWS)
    assert [(note.level, "so few support vectors" in note.message) for note in notes] == [(Level.SKIPPED, True)]


@pytest.mark.parametrize("columns", [1, FEATURES])
@pytest.mark.parametrize("kind", [TensorProto.FLOAT, TensorProto.INT64])
def test_scalers(kind: int, columns: int) -> None:
    rows = (10 * ROWS).astype(helper.tensor_dtype_to_np_dtype(kind))
    rewritten(learner("Scaler", [SCORES], kind, offset=floats(columns), scale=floats(columns, seed=2)), rows)


@pytest.mark.parametrize("norm", ["MAX", "L1", "L2"])
def test_normalizers_leave_rows_of_zeros(norm: str) -> None:
    rows = np.concatenate([ROWS, np.zeros((2, FEATURES), np.float32)])
    rewritten(learner("Normalizer", [SCORES], norm=norm), rows)


@pytest.mark.parametrize("missing", [float("nan"), -1.0])
def test_imputers(missing: float) -> None:
    rows = ROWS.copy()
    rows[::3, 1] = missing
    rewritten(learner("Imputer", [SCORES], imputed_value_floats=floats(FEATURES), replaced_value_float=missing), rows)


def test_binarizers() -> None:
    rewritten(learner("Binarizer", [SCORES], threshold=0.25))


def parsed(graph: str) -> ir.Model:
    imports = '"": 18, "ai.onnx.ml": 3'
    return ir.from_proto(onnx.parser.parse_model(f"<ir_version: 8, opset_import: [{imports}]> {graph}"))


def test_features_side_by_side_and_apart() -> None:
    model = parsed(
        """g (float[N, 5] x) => (float[N, M] y, float[A, B] z) <int64[2] c = {3, 1}> {
            v = ai.onnx.ml.FeatureVectorizer <inputdimensions: ints = [5, 5]> (x, x)
            y = ai.onnx.ml.ArrayFeatureExtractor(v, c)
            a = Constant <value_ints: ints = [1]> ()
            m = ReduceMax <keepdims: int = 0> (x, a)
            z = ai.onnx.ml.ArrayFeatureExtractor(m, c)
        }"""
    )
    rewritten(model)
    assert {"Concat", "Gather", "Unsqueeze"} <= set(operators(model))


def test_the_norm_of_probabilities_is_dropped() -> None:
    model = parsed(
        """g (float[N, 5] x) => (float[N, 5] y) {
            s = Softmax(x)
            y = ai.onnx.ml.Normalizer <norm: string = "L1"> (s)
        }"""
    )
    assert "Div" not in operators(rewritten(model))


def test_a_classifier_behind_an_operator_of_unknown_rank_is_written_without_data() -> None:
    coefficients = ", ".join(map(str, floats(3, 5)))
    model = parsed(
        f"""g (float[N, 5] x) => (int64[N] label, float[N, 3] scores) {{
            v = ai.onnx.ml.Normalizer <norm: string = "L2"> (x)
            label, scores = ai.onnx.ml.LinearClassifier <
                classlabels_ints: ints = [0, 1, 2], coefficients: floats = [{coefficients}],
                intercepts: floats = [0.1, 0.2, 0.3], post_transform: string = "NONE"
            > (v)
        }}"""
    )
    run_rewrites(model, (Classical(),), [])
    assert "Gemm" in operators(model)


def test_what_renames_labels_stays_with_a_reason() -> None:
    model = parsed(
        """g (float[N, 5] x) => (string[N] y) {
            p = ArgMax <axis: int = 1, keepdims: int = 0> (x)
            y = ai.onnx.ml.LabelEncoder <keys_int64s: ints = [0, 1], values_strings: strings = ["no", "yes"]> (p)
        }"""
    )
    notes: list[Note] = rewrite(model, Classical(), x=ROWS)
    assert [(note.level, note.subject) for note in notes] == [(Level.SKIPPED, "y")]
    assert operators(model) == ["ArgMax", "LabelEncoder"]
