"""Formats are compared at equal bits, and the parts of the table run on a small network."""

from collections.abc import Iterator

import formats
import numpy as np
import onnx
import pytest
from compiling import proto, samples, weight
from format_networks import FormatNetwork, opened
from number_formats import PRODUCT, WHOLE, Rows
from tasks import Task

from ptqc.ir.nodes import initial

NETWORK = """g (float[N,16] x) => (float[N,4] y) {
    h = Gemm(x, w1, b1)
    r = Relu(h)
    y = Gemm(r, w2, b2)
}"""


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FormatNetwork]:
    path = tmp_path_factory.mktemp("network") / "model.onnx"
    constants = {"w1": weight(16, 64), "b1": weight(64, seed=1), "w2": weight(64, 4, seed=2), "b2": weight(4, seed=3)}
    onnx.save(proto(NETWORK, 18, **constants), path)
    data = samples(16, count=16)
    task = Task("small", path, lambda count: [{"x": x[None]} for x in data[:count]], lambda _: 0.0, "", 0.0, True)
    with opened(task, 16) as result:
        yield result


def test_a_frontier_has_what_nothing_beats() -> None:
    known = formats.frontier([(4, 20), (3, 15), (3.5, 14), (4, 19), (5, 20), (6, 30)])
    assert known == [(3, 15), (4, 20), (6, 30)]
    assert formats.at_bits(known, 3.5) == 17.5
    assert formats.at_bits(known, 6) == 30
    assert formats.at_bits(known, 2.9) is None


def test_losses_follow_the_errors_by_a_power() -> None:
    assert formats.power_law([0.1, 0.01], [1.0, 0.1], 0.001) == pytest.approx(0.01)
    assert formats.power_law([0.1, 0.01], [1.0, 0.1], 0.2) == pytest.approx(2)
    assert formats.power_law([0.1, 0.01], [1.0, 0.9], 0.001) == pytest.approx(0.9 * 10**-0.5)  # not flatter than a root


def test_own_formats_are_on_their_own_line_or_below() -> None:
    rows = Rows.of(np.random.default_rng(0).standard_normal((16, 64), np.float32))
    result = formats.compared([rows], PRODUCT, PRODUCT)
    assert [row["format"] for row in result] == [form.name for form in PRODUCT]
    assert max(row["more"] for row in result) == pytest.approx(0, abs=1e-9)


def test_a_weight_is_rounded_in_its_own_order(network: FormatNetwork) -> None:
    int8 = next(form for form in PRODUCT if form.name == "int8")
    rounded = {each.name: network.rounded(each, int8) for each in network.weights}
    for name, result in rounded.items():
        values = initial(network.observed.model, name)
        assert np.abs(result - values).max() < 0.02 * np.abs(values).max()
    assert network.loss(rounded) < 1e-2


def test_every_part_of_the_table(network: FormatNetwork, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "WHOLE", WHOLE[:1])
    monkeypatch.setattr(formats, "BUDGETS", {"18%": 5.76})
    result = {"small": {part: made(network) for part, made in formats.PARTS.items()}}
    lines = formats.table("losses", result, formats.SHOWN["losses"]).splitlines()
    assert lines[0] == "| format | bits | small loss | small times |"
    assert len(lines) == 2 + len(PRODUCT) + 1
    by_name = {row["format"]: row for row in result["small"]["losses"]}
    assert by_name["int8"]["loss"] < by_name["int4"]["loss"] < by_name["int2"]["loss"]
    (row,) = result["small"]["choices"]
    assert row["predicted all"] <= row["predicted ptqc"] <= row["predicted even"]
    noise = {row["format"]: row["dB"] for row in result["small"]["activations"]}
    assert noise["bfloat16"] > noise["uint8"] > noise["FP8 E5M2"]
