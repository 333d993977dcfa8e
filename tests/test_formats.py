import pytest

from ptqc.formats import FLOAT16, FLOAT32, UINT8, Family, Format, QuantParams, integer


@pytest.mark.parametrize(
    ("form", "text"),
    [
        (integer(4), "int4"),
        (UINT8, "uint8"),
        (FLOAT16, "float16"),
        (FLOAT32, "float32"),
        (Format(Family.PALETTE, 1), "palette1"),
    ],
)
def test_a_format_has_a_stable_key(form: Format, text: str) -> None:
    assert str(form) == text
    assert Format.parse(text) == form


@pytest.mark.parametrize("text", ["", "int", "int4x", "x4", "u8", "int-4", "INT4", " int4"])
def test_unknown_formats_are_named(text: str) -> None:
    with pytest.raises(ValueError, match=f"unknown number format '{text}'"):
        Format.parse(text)


@pytest.mark.parametrize(("form", "low", "high"), [(integer(8), -128, 127), (UINT8, 0, 255), (integer(2), -2, 1)])
def test_codes(form: Format, low: int, high: int) -> None:
    assert (form.low, form.high) == (low, high)


def test_formats_sort_by_width() -> None:
    assert sorted([integer(8), integer(2), FLOAT16])[1:] == [integer(2), integer(8)]


def test_range_of_parameters() -> None:
    params = QuantParams(UINT8, 0.5, 3)
    assert (params.low, params.high) == (-1.5, 126.0)


@pytest.mark.parametrize("scale", [0.0, -1.0, float("inf"), float("nan")])
def test_a_scale_is_positive_and_finite(scale: float) -> None:
    with pytest.raises(ValueError, match="scale must be positive and finite"):
        QuantParams(UINT8, scale, 0)


@pytest.mark.parametrize(("form", "zero_point"), [(UINT8, -1), (UINT8, 256), (integer(8), 128)])
def test_a_zero_point_is_a_code(form: Format, zero_point: int) -> None:
    with pytest.raises(ValueError, match=f"zero point {zero_point} lies outside {form}"):
        QuantParams(form, 1.0, zero_point)
