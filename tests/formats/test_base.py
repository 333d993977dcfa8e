import pytest

from ptqc.formats import (
    BFLOAT16,
    FLOAT8,
    FLOAT8_ACTIVATION,
    FLOAT16,
    FLOAT32,
    UINT8,
    ActivationParams,
    Affine,
    Codebook,
    Format,
    Integer,
    Palette,
    QuantParams,
    VectorCodebook,
)
from ptqc.formats.activations import read

KEYS = {
    Integer(4): "int4",
    Codebook(3): "codebook3",
    VectorCodebook(7): "pairs7",
    FLOAT16: "float16",
    FLOAT32: "float32",
    Palette(1): "palette1",
    FLOAT8: "float8_e4m3fn",
}


@pytest.mark.parametrize(("form", "text"), KEYS.items(), ids=str)
def test_a_format_has_a_stable_key(form: Format, text: str) -> None:
    assert str(form) == text
    assert Format.parse(text) == form


@pytest.mark.parametrize("text", ["", "int", "int4x", "x4", "u8", "int-4", "INT4", " int4", "int99", "palette3"])
def test_unknown_formats_are_named(text: str) -> None:
    with pytest.raises(
        ValueError, match=f"unknown number format '{text}'; known: float16, float32, int2, .*palette4, float8_e4m3fn$"
    ):
        Format.parse(text)


def test_formats_of_as_many_bits_differ() -> None:
    assert len({Integer(4), Codebook(4), VectorCodebook(4), Palette(4)}) == 4


def test_formats_sort_by_family_and_width() -> None:
    forms = [Palette(1), Integer(8), VectorCodebook(3), Integer(2), FLOAT16, Codebook(4)]
    assert sorted(forms) == [Codebook(4), FLOAT16, Integer(2), Integer(8), VectorCodebook(3), Palette(1)]


@pytest.mark.parametrize(("form", "low", "high"), [(Affine(8, signed=True), -128, 127), (UINT8, 0, 255)])
def test_codes_of_activations(form: Affine, low: int, high: int) -> None:
    assert (form.low, form.high) == (low, high)


def test_range_of_parameters() -> None:
    params = QuantParams(UINT8, 0.5, 3)
    assert (params.low, params.high) == (-1.5, 126.0)


@pytest.mark.parametrize("scale", [0.0, -1.0, float("inf"), float("nan")])
def test_a_scale_is_positive_and_finite(scale: float) -> None:
    with pytest.raises(ValueError, match="scale must be positive and finite"):
        QuantParams(UINT8, scale, 0)


@pytest.mark.parametrize(("form", "zero_point"), [(UINT8, -1), (UINT8, 256), (Affine(8, signed=True), 128)])
def test_a_zero_point_is_a_code(form: Affine, zero_point: int) -> None:
    with pytest.raises(ValueError, match=f"zero point {zero_point} lies outside {form}"):
        QuantParams(form, 1.0, zero_point)


REALS = [form.of_range(-1, 3) for form in (BFLOAT16, FLOAT8_ACTIVATION)]


@pytest.mark.parametrize("params", [QuantParams(UINT8, 0.5, 3), *REALS], ids=str)
def test_parameters_of_activations_are_read_back(params: ActivationParams) -> None:
    assert read({"site": "x", **params.to_json()}) == params


def test_an_unknown_format_of_activations_is_named() -> None:
    with pytest.raises(ValueError, match="site 'x' is uint4; activations are uint8 or bfloat16 or float8_e4m3fn"):
        read({"site": "x", "format": "uint4"})
