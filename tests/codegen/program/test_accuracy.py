"""How far real values may be off: more where a chip sums in fewer digits, but not in an emulator."""

from dataclasses import replace

import numpy as np
import pytest

from ptqc.codegen.program.layout import Layout
from ptqc.codegen.program.listing import Call, Listing
from ptqc.codegen.program.program import SUM_OF_PRODUCTS, Accuracy
from ptqc.codegen.program.verify import CallOutputs, judged_calls

CALL = Call("float8_mma", "k", ("x",), "y", "y", 0, accuracy=replace(SUM_OF_PRODUCTS, of_chip=2.0**-10))
LISTING = Listing((CALL,), {name: Layout((5,), "float32", is_io=True) for name in "xy"}, ("x",), ("y",))


@pytest.mark.parametrize(
    ("share", "on_a_chip", "emulated"), [(5e-6, True, True), (5e-4, True, False), (2e-3, False, False)]
)
def test_sums_of_a_chip_may_be_off_by_more(share: float, on_a_chip: bool, emulated: bool) -> None:
    wanted = np.array([[100, -200, 3, 0, 50]], np.float32)
    result = wanted + np.float32(200 * share)
    values = {"x": wanted, "y": wanted}
    for listing, is_right in ((LISTING, on_a_chip), (LISTING.summed_exactly, emulated)):
        (outcome,) = judged_calls(listing, values, lambda *_: CallOutputs(result, result, result))
        assert (outcome.problem == "") is is_right
        assert outcome.wrong == (0 if is_right else 5)


def test_what_is_allowed_on_a_chip_is_kept_in_artifacts() -> None:
    assert Listing.from_json(LISTING.to_json()).calls == LISTING.calls


def test_a_mean_counts_as_much_as_its_row_is_enlarged() -> None:
    """Rows of one value are nothing but the rounding of their mean, divided by the root of epsilon."""
    values = np.array([[3, 3, 3, 3], [1, -1, 1, -1]], np.float32)
    result = Accuracy(axes=1, epsilon=1e-4, gain=2.0).enlarged(values)
    np.testing.assert_allclose(result, [[600] * 4, [2 / np.sqrt(1 + 1e-4)] * 4], rtol=1e-6)
