"""Numbers and names in words."""

import pytest

from ptqc.utils.text import decibels, magnitude, number, percent, printable, shorten, visible


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0, "0"), (0.00202, "0.00202"), (41.25, "41.2"), (12345, "12,345"), (3.75e-5, "3.75×10⁻⁵"), (2e7, "2.00×10⁷")],
)
def test_number(value: float, expected: str) -> None:
    assert number(value) == expected


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_what_is_no_number_is_told_as_it_is(value: str) -> None:
    assert number(float(value)) == value


def test_other_numbers() -> None:
    assert [percent(x) for x in (0, 1e-6, 0.0512, 0.5, 1)] == ["0.00 %", "< 0.01 %", "5.12 %", "50.0 %", "100.0 %"]
    assert [magnitude(x) for x in (0, 640, 999.6, 999_542, 2359296, 4e9)] == [
        "0 ",
        "640 ",
        "1 k",
        "1 M",
        "2.36 M",
        "4 G",
    ]
    assert [decibels(x) for x in (0.0, 0.01, 1.0)] == ["exact", "20.0 dB", "0.0 dB"]


def test_shorten_keeps_the_ends() -> None:
    assert shorten("abc", 3) == "abc"
    assert shorten("a" * 50 + "z" * 50, 10) == "aaa…zzzzzz"


def test_visible() -> None:
    assert visible("Ünïcode 卷积 ok") == "Ünïcode 卷积 ok"
    assert visible("a\u202eb\nc\x1b\ud800") == "a\\u202eb\\nc\\x1b\\ud800"


def test_printable_leaves_lines() -> None:
    assert printable("a\n\x1bb\n") == "a\n\\x1bb\n"
