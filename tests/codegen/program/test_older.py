"""Listings of earlier artifacts: what their kernels' names said is read into fields."""

import pytest

from ptqc.codegen.program.listing import Listing
from ptqc.codegen.program.program import EXACT, SUM_OF_INPUTS, SUM_OF_PRODUCTS, USUAL, Accuracy


def listed(kernel: str, output: str = "y") -> Listing:
    call = {"kernel": kernel, "inputs": ["x"], "output": output, "constants": 0, "placed": [], "within": []}
    return Listing.from_json({"calls": [call], "layouts": {}, "inputs": ["x"], "outputs": [output]})


@pytest.mark.parametrize(
    ("kernel", "accuracy"),
    [
        ("dense_3f2a", SUM_OF_PRODUCTS),
        ("matmul_float_77", SUM_OF_PRODUCTS),
        ("dense_float_sigmoid_0a", Accuracy(adds_products=True, at_one=5e-7)),
        ("reducemean_1b", SUM_OF_INPUTS),
        ("copy_9c", EXACT),
        ("rounded_9c", Accuracy(is_exact=True, to_bfloat16=True)),
        ("add_float_rounded_9c", Accuracy(to_bfloat16=True)),
        ("tanh_9c", Accuracy(at_one=1e-6)),
        ("softmax_9c", USUAL),
    ],
)
def test_names_of_kernels_are_read_as_fields(kernel: str, accuracy: Accuracy) -> None:
    (call,) = listed(kernel).calls
    assert call.accuracy == accuracy
    assert call.family == kernel.rpartition("_")[0]


def test_copies_for_the_outside_are_of_the_value_that_they_copy() -> None:
    (call,) = listed("copy_9c", "y@outside").calls
    assert (call.value, call.output) == ("y", "y@outside")


def test_a_listing_reads_its_own_document() -> None:
    found = listed("dense_float_sigmoid_0a", "y@outside")
    assert Listing.from_json(found.to_json()) == found
