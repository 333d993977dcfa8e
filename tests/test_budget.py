import pytest

from ptqc.budget import Budget
from ptqc.errors import UsageError


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("13%", 13_000),
        (" 12.5 % ", 12_500),
        (".5%", 500),
        ("100%", 100_000),
        ("900KiB", 921_600),
        ("4.5MB", 4_500_000),
        ("4.5mb", 4_500_000),
        ("120000B", 120_000),
        ("1GiB", 2**30),
        ("4.2bit", 13_125),
        ("4 bits", 12_500),
    ],
)
def test_limit(text: str, limit: int) -> None:
    """Of a file of 100,000 bytes with 25,000 weights."""
    assert Budget.parse(text).limit(100_000, 25_000) == limit


def test_a_limit_is_never_rounded_up() -> None:
    assert Budget.parse("13%").limit(999, 1) == 129
    assert Budget.parse("3bit").limit(1, 5) == 1


@pytest.mark.parametrize("text", ["", "13", "%", "MB", "13 % of it", "13%%", "1e6B", "nan%", "inf%", "1,5MB", "--3%"])
def test_what_cannot_be_read_is_named_with_the_known_forms(text: str) -> None:
    with pytest.raises(UsageError) as error:
        Budget.parse(text)
    assert repr(text) in str(error.value)
    assert "a percentage of the model's size (13%)" in str(error.value)


@pytest.mark.parametrize("text", ["0%", "-13%", "-1MB", "0.0bit"])
def test_a_budget_is_positive(text: str) -> None:
    with pytest.raises(UsageError, match="must be positive"):
        Budget.parse(text)


def test_an_unknown_unit_is_named() -> None:
    with pytest.raises(UsageError, match="unknown unit 'stone'"):
        Budget.parse("3stone")


@pytest.mark.parametrize(("text", "shown"), [("13%", "13%"), ("4.2bits", "4.2 bit"), ("900B", "900 B")])
def test_shown(text: str, shown: str) -> None:
    assert str(Budget.parse(text)) == shown
