import json
from dataclasses import replace
from typing import Any

import pytest
from graphs import noise, parse

from ptqc.errors import UsageError
from ptqc.formats import BFLOAT16, FLOAT16, UINT8, Format, Integer, QuantParams
from ptqc.ir.layers import find_layers, find_weights
from ptqc.ir.plan import Plan, write_json
from ptqc.ir.sites import find_kernels, find_sites

GRAPH = """g (float[N, 4, 8, 8] x) => (float[N, 5] y) {
    c = Conv(x, w)
    r = Relu(c)
    p = MaxPool <kernel_shape = [2, 2]> (r)
    s = Conv(p, v)
    g = GlobalAveragePool(s)
    f = Flatten(g)
    y = Gemm(f, m)
}"""
BFLOATS = BFLOAT16.of_range(0, 1)


@pytest.fixture
def roles() -> Plan:
    model = parse(GRAPH, w=noise(4, 4, 1, 1), v=noise(4, 4, 1, 1, seed=1), m=noise(4, 5))
    layers = find_layers(model)
    kernels = find_kernels(model, layers)
    weights, sites = find_weights(model, layers), find_sites(model, kernels)
    return Plan(tuple(layers), tuple(weights), tuple(kernels), tuple(sites), {}, {})


@pytest.fixture
def plan(roles: Plan) -> Plan:
    activations = {name: QuantParams(UINT8, 0.1 + i, i) for i, name in enumerate(["x", "r", "s", "g"])}
    formats = {"w": Integer(3), "v": Integer(8), "m": FLOAT16}
    return Plan(roles.layers, roles.weights, roles.kernels, roles.sites, activations, formats)


def test_nothing_is_decided_at_first(roles: Plan) -> None:
    assert (roles.params, roles.integer) == ({}, {})


def test_tensors_of_a_site_share_one_object(plan: Plan) -> None:
    assert set(plan.params) == {"x", "r", "p", "s", "g", "f"}
    assert plan.params["r"] is plan.params["p"]
    assert plan.params["g"] is plan.params["f"]


def test_codes_that_no_kernel_reads_or_gives_are_left_out(plan: Plan) -> None:
    """A weight of real numbers has no integer kernel: nothing that only its layer reads or gives is on codes."""
    real = Format.parse("palette2")
    assert set(plan.with_formats({**plan.formats, "w": real}).activations) == {"r", "s", "g"}
    assert set(plan.with_formats({**plan.formats, "v": real}).activations) == {"x", "r"}
    assert set(plan.with_formats(dict.fromkeys(plan.formats, real)).activations) == set()


def test_layers_are_integer_where_tensors_and_weight_have_codes(plan: Plan) -> None:
    assert list(plan.integer) == ["c", "s", "g"]
    assert list(plan.with_formats({**plan.formats, "m": Integer(4)}).integer) == ["c", "s", "g", "y"]
    assert list(plan.with_formats({**plan.formats, "w": Format.parse("palette2")}).integer) == ["s", "g"]
    undecided = plan.with_formats({})
    assert list(undecided.integer) == ["c", "s", "g", "y"]
    assert undecided.activations is plan.activations


def test_code_bits_are_those_of_the_mean_weight_with_codes(plan: Plan) -> None:
    wide = Plan(
        plan.layers, plan.weights, (), (), {}, {**plan.formats, "w": Integer(8), "v": Integer(8), "m": Integer(2)}
    )
    assert wide.code_bits == (8 * 32 + 2 * 20) / 52
    assert plan.code_bits == (3 + 8) / 2
    assert Plan((), (), (), (), {}, {}).code_bits == 0


def test_a_plan_survives_json(plan: Plan, roles: Plan) -> None:
    text = write_json(plan.to_json())
    again = Plan.from_json(json.loads(text), roles)
    assert again == plan
    assert write_json(again.to_json()) == text


def test_the_document(plan: Plan) -> None:
    document = plan.to_json()
    assert document["version"] == 1
    assert document["activations"][1] == {
        "site": "r",
        "tensors": ["r", "p"],
        "format": "uint8",
        "scale": 1.1,
        "zero_point": 1,
    }
    assert document["weights"] == [
        {"weight": "w", "format": "int3", "layers": {"c": "integer"}},
        {"weight": "v", "format": "int8", "layers": {"s": "integer"}},
        {"weight": "m", "format": "float16", "layers": {"y": "float"}},
    ]


def test_a_plan_may_leave_activations_float(plan: Plan, roles: Plan) -> None:
    document = plan.to_json()
    document["activations"] = []
    again = Plan.from_json(document, roles)
    assert again.integer == {}
    assert again.formats == plan.formats


def test_sites_in_bfloat16_survive_json(plan: Plan, roles: Plan) -> None:
    rounded = replace(plan, activations={"x": plan.activations["x"], "r": BFLOATS, "s": BFLOATS})
    document = rounded.to_json()
    assert document["activations"][1] == {"site": "r", "tensors": ["r", "p"], "format": "bfloat16"}
    assert Plan.from_json(json.loads(write_json(document)), roles) == rounded
    assert rounded.cast == dict.fromkeys(["r", "s"], BFLOAT16)
    document["activations"][1]["site"] = "nowhere"
    with pytest.raises(UsageError, match=r"unknown activations \['nowhere'\]"):
        Plan.from_json(document, roles)


def test_only_inputs_of_convolutions_with_codes_stay_in_bfloat16(plan: Plan) -> None:
    rounded = replace(plan, activations=dict.fromkeys(["x", "r", "s"], BFLOATS))
    assert list(rounded.with_formats({}).cast) == ["x", "r"]  # what the product reads gains nothing
    assert list(rounded.with_formats({**plan.formats, "v": FLOAT16}).cast) == ["x"]
    on_codes = replace(rounded, activations={**plan.activations, "g": BFLOATS}).with_formats(plan.formats)
    assert (on_codes.cast, list(on_codes.activations)) == ({}, ["x", "r", "s"])


def test_an_activation_may_be_taken_out_of_the_integers(plan: Plan, roles: Plan) -> None:
    document = altered(plan.to_json(), "activations", 0, "format", value="float")
    assert list(Plan.from_json(document, roles).activations) == list(plan.activations)[1:]
    document["activations"][0]["site"] = "typo"
    with pytest.raises(UsageError, match=r"unknown activations \['typo'\]"):
        Plan.from_json(document, roles)


def altered(document: dict[str, Any], *path: str | int, value: Any) -> dict[str, Any]:
    place: Any = document
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return document


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("version",), 2, "has version 2; this ptqc reads version 1"),
        (("version",), True, "has version True; this ptqc reads version 1"),
        (("activations", 0, "site"), "z", r"unknown activations \['z'\]"),
        (("weights", 0, "weight"), "z", r"unknown weights \['z'\], missing weights \['w'\]"),
        (("weights", 0, "format"), "int99x", "weight 'w': unknown number format 'int99x'"),
        (("activations", 0, "format"), "uint", "site 'x' is uint; activations are uint8 or bfloat16"),
        (("activations", 0, "site"), None, r"unknown activations \[None\]"),
        (("activations", 0, "scale"), -1.0, "scale must be positive"),
        (("activations", 0, "scale"), 1e-320, "scale must be positive and finite in float32, got 1e-320"),
        (("activations", 0, "scale"), True, "scale must be a number, got True"),
        (("activations", 0, "scale"), 10**400, "site 'x': scale must be positive and finite in float32, got 1000"),
        (("activations", 0, "zero_point"), 300, "zero point 300"),
        (("activations", 0, "zero_point"), 1.5, "zero_point must be an integer, got 1.5"),
        (("weights", 0), {}, "the plan cannot be read: KeyError: 'weight'"),
        (("weights",), None, "the plan cannot be read: TypeError"),
        (("activations", 0), {"site": "x", "format": "uint8"}, "site 'x' is uint8 and has no 'scale'"),
        (("activations", 0, "scale"), "big", "the plan cannot be read: TypeError"),
        (("activations", 0, "format"), "uint4", "site 'x' is uint4; activations are uint8"),
    ],
)
def test_an_edited_plan_that_does_not_fit_is_refused(
    plan: Plan, roles: Plan, path: tuple[str | int, ...], value: Any, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        Plan.from_json(altered(plan.to_json(), *path, value=value), roles)


@pytest.mark.parametrize("document", [[], 5, "plan", None])
def test_what_is_no_object_is_no_plan(roles: Plan, document: Any) -> None:
    with pytest.raises(UsageError, match=f"the plan is a {type(document).__name__}; expected an object"):
        Plan.from_json(document, roles)


def test_a_plan_without_one_of_the_weights_is_refused(plan: Plan, roles: Plan) -> None:
    document = plan.to_json()
    document["weights"].pop()
    with pytest.raises(UsageError, match=r"unknown weights \[\], missing weights \['m'\]"):
        Plan.from_json(document, roles)


def test_documents_are_canonical() -> None:
    assert write_json({"b": 1, "a": [1.5]}) == '{\n "a": [\n  1.5\n ],\n "b": 1\n}\n'
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json({"a": float("nan")})
