from pathlib import Path

import numpy as np
import pytest
from compiling import compiled, product, samples

from ptqc.budget import CONSTRAINTS, parse, parse_budgets
from ptqc.errors import UsageError
from ptqc.losses import UNITS
from ptqc.passes.allocate.constraints.caches import CacheBudget
from ptqc.passes.allocate.constraints.criteria import LOSS_UNITS
from ptqc.passes.allocate.constraints.latency import LatencyBudget
from ptqc.passes.allocate.constraints.loss import LossBudget
from ptqc.passes.allocate.constraints.memory import MemoryBudget
from ptqc.passes.allocate.constraints.size import SizeBudget
from ptqc.passes.allocate.state import Constraint
from ptqc.passes.quantize.prepare import Origin


def size_of(text: str) -> SizeBudget:
    budget = parse(text)
    assert isinstance(budget, SizeBudget)
    return budget


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
    assert size_of(text).limit(100_000, 25_000) == limit


def test_a_limit_is_never_rounded_up() -> None:
    assert size_of("13%").limit(999, 1) == 129
    assert size_of("3bit").limit(1, 5) == 1


@pytest.mark.parametrize("text", ["", "13", "%", "MB", "13 % of it", "13%%", "1e6B", "nan%", "inf%", "1,5MB", "--3%"])
def test_what_cannot_be_read_is_named_with_the_known_forms(text: str) -> None:
    with pytest.raises(UsageError) as error:
        parse(text)
    assert repr(text) in str(error.value)
    assert "give 13%, 4.5MB, 2ms, 60MBram, 99%same or another form that `ptqc help budgets` lists" in str(error.value)


@pytest.mark.parametrize("text", ["0%", "-13%", "-1MB", "0.0bit"])
def test_a_budget_is_positive(text: str) -> None:
    with pytest.raises(UsageError, match="must be positive"):
        parse(text)


def test_an_unknown_unit_is_named() -> None:
    with pytest.raises(UsageError, match="unknown unit 'stone'"):
        parse("3stone")


@pytest.mark.parametrize(("text", "shown"), [("13%", "13%"), ("4.2bits", "4.2 bit"), ("900B", "900 B")])
def test_shown(text: str, shown: str) -> None:
    assert str(parse(text)) == shown


@pytest.mark.parametrize(
    ("text", "nanoseconds"), [("2ms", 2e6), ("800us", 8e5), (" 800 µs ", 8e5), (".5s", 5e8), ("70000ns", 7e4)]
)
def test_latency(text: str, nanoseconds: float) -> None:
    assert parse(text) == LatencyBudget(nanoseconds)


def test_a_latency_is_shown_in_milliseconds() -> None:
    assert str(parse("800us")) == "0.8 ms"


@pytest.mark.parametrize("text", ["2MS", "2min", "2m"])
def test_units_of_time_are_written_as_they_are(text: str) -> None:
    with pytest.raises(UsageError, match="unknown unit"):
        parse(text)


@pytest.mark.parametrize(
    ("value", "size", "latency"),
    [
        (None, None, None),
        ("13%", "13%", None),
        ("2ms", None, "2 ms"),
        (("2ms", "13%"), "13%", "2 ms"),
        (["13%"], "13%", None),
        (0.13, "13%", None),
        (np.float32(0.25), "25%", None),
        (1.0, "100%", None),
        (200_000, "200,000 B", None),
        (np.int64(1), "1 B", None),
        ("12 MB", "12,000,000 B", None),
        ([200_000, " 2 ms "], "200,000 B", "2 ms"),
    ],
)
def test_one_budget_of_each_kind(value: object, size: str | None, latency: str | None) -> None:
    result = parse_budgets(value)
    assert [None if limit is None else str(limit) for limit in (result.get(SizeBudget), result.get(LatencyBudget))] == [
        size,
        latency,
    ]


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (("2ms", "3ms@cpu"), "2 ms and 3 ms@cpu are both of latency"),
        (("13%", "1%drop", "99%same"), "are both of loss"),
        (("25%cache", "1MBcache"), "are both of cache"),
    ],
)
def test_two_budgets_that_cannot_be_joined_are_refused(texts: tuple[str, ...], expected: str) -> None:
    with pytest.raises(UsageError, match=f"{expected}.*, and cannot be joined: give one of them"):
        parse_budgets(texts)


@pytest.mark.parametrize(
    ("texts", "kept"),
    [
        (("2ms", "13%", "3ms"), ["13%", "2ms"]),
        (("3ms@cpu", "2ms@cpu"), ["2ms@cpu"]),
        (("4MBram", "3MBram"), ["3MBram"]),
        (("64KBflash", "32KBflash", "8KBram@c", "9KBram@c"), ["32KBflash", "8KBram@c"]),
        (("30%cache", "25%cache"), ["25%cache"]),
    ],
)
def test_the_stricter_of_two_budgets_holds(texts: tuple[str, ...], kept: list[str]) -> None:
    assert parse_budgets(texts) == parse_budgets(kept)


@pytest.mark.parametrize(
    ("texts", "limit", "smallest"),
    [
        (["1MB", "13%"], 910_000, "13%"),
        (["13%", "0.9MB", "4bit"], 875_000, "4 bit"),
        (["1MB", "2MB"], 1_000_000, "1,000,000 B"),
    ],
)
def test_the_smallest_of_several_sizes_holds(texts: list[str], limit: int, smallest: str) -> None:
    origin = Origin("model.onnx", 7_000_000, "", 1_750_000)
    budgets = parse_budgets(texts)
    size = budgets.get(SizeBudget)
    assert size is not None
    assert budgets.max_bytes(origin) == limit
    assert str(size.smallest(origin)) == smallest
    (note,) = size.notes(origin)
    assert note.message.endswith(f", {smallest} is the smallest for this model")
    assert SizeBudget(13, "%").notes(origin) == []


def test_the_manifest_says_which_size_held(tmp_path: Path) -> None:
    artifact = compiled(product(), samples(16), tmp_path, ["1MB", "60%"], bits=(4, 7))
    limit = artifact.manifest["source"]["bytes"] * 60 // 100
    assert (artifact.manifest["budget"], artifact.manifest["allocation"]["limit"]) == ("60%", limit)
    assert artifact.size <= limit
    messages = [note["message"] for note in artifact.manifest["notes"] if note["step"] == "size"]
    assert messages == ["of the budgets 1,000,000 B and 60%, 60% is the smallest for this model"]


@pytest.mark.parametrize(
    "value", [13.0, 0.0, -0.1, float("nan"), float("inf"), 0, -5, True, b"13%", {"size": 3}, [[1]]]
)
def test_what_is_no_budget_is_named_with_the_known_forms(value: object) -> None:
    with pytest.raises(UsageError, match=r"neither a fraction of the model's size \(0.13\) nor a number of bytes"):
        parse_budgets(value)


def test_a_fraction_is_the_same_budget_as_its_percentage() -> None:
    for percent in range(1, 101):
        assert parse_budgets(percent / 100) == parse_budgets(f"{percent}%")


@pytest.mark.parametrize(
    ("text", "size"),
    [("60MBram", 60_000_000), (" 1.5 GiBram ", 1_610_612_736), ("900KBRAM", 900_000), ("64kibram", 65_536)],
)
def test_memory(text: str, size: int) -> None:
    assert parse(text) == MemoryBudget(size)
    result = parse_budgets(["13%", text], strict=True)
    assert (result.get(MemoryBudget), str(result.get(SizeBudget)), result.strict) == (MemoryBudget(size), "13%", True)


def test_memory_is_shown_in_bytes() -> None:
    assert str(parse("60MBram")) == "60,000,000 B of memory"


@pytest.mark.parametrize("text", ["60ram", "60msram", "60%ram", "60bitram"])
def test_memory_is_in_bytes(text: str) -> None:
    with pytest.raises(UsageError, match="unknown unit"):
        parse(text)


@pytest.mark.parametrize(
    ("text", "unit", "limit", "shown"),
    [
        ("0.02nat", "nat", 0.02, "0.02nat"),
        (" .5 relative ", "relative", 0.5, "0.5relative"),
        ("0.1nat/detection", "nat/detection", 0.1, "0.1nat/detection"),
        ("0.001cosine", "cosine", 0.001, "0.001cosine"),
        ("99%same", "%same", 0.01, "99%same"),
        ("99.5 % same", "%same", 0.005, "99.5%same"),
        ("1%drop", "%drop", 1, "1%drop"),
    ],
)
def test_loss(text: str, unit: str, limit: float, shown: str) -> None:
    result = parse(text)
    assert isinstance(result, LossBudget)
    assert (result.unit, str(result)) == (unit, shown)
    assert result.limit == pytest.approx(limit)
    assert [*parse_budgets([text, "2ms", 0.13])] == [
        SizeBudget(13, "%"),
        LatencyBudget(2e6),
        MemoryBudget.default(),
        result,
    ]


@pytest.mark.parametrize("text", ["100%same", "250%drop"])
def test_a_share_is_below_one(text: str) -> None:
    with pytest.raises(UsageError, match="must be below 100 %"):
        parse(text)


@pytest.mark.parametrize("text", ["3%lost", "3%samedrop", "0.1nats"])
def test_an_unknown_loss_is_named(text: str) -> None:
    with pytest.raises(UsageError, match="unknown unit"):
        parse(text)


def test_every_unit_of_a_loss_can_be_given() -> None:
    assert list(LOSS_UNITS) == list(UNITS)


def test_a_latency_may_be_of_the_library_of_a_target() -> None:
    assert parse("2ms@cpu") == parse(" 2 ms @ cpu ") == LatencyBudget(2e6, "cpu")
    assert str(parse("800us@cpu")) == "0.8 ms@cpu"
    assert parse("50us@cuda") == LatencyBudget(5e4, "cuda")
    assert parse("2ms") == LatencyBudget(2e6) != parse("2ms@cpu")


@pytest.mark.parametrize("text", ["13%@cpu", "4.5MB@cpu", "99%same@cpu"])
def test_other_kinds_are_of_no_target(text: str) -> None:
    with pytest.raises(UsageError, match="names a target with @, which only latency, flash and memory can"):
        parse(text)


@pytest.mark.parametrize("value", ["13", 13])
def test_a_number_without_a_unit_may_be_a_percentage(value: object) -> None:
    with pytest.raises(UsageError, match=r"did you mean '?13%'?\?"):
        parse(value)


@pytest.mark.parametrize(("text", "likely"), [("0.13", "13%"), (".5", "50%"), ("4.5M", "MB"), ("2msec", "ms")])
def test_what_may_have_been_meant(text: str, likely: str) -> None:
    with pytest.raises(UsageError, match=rf"\(did you mean {likely}\?\)"):
        parse(text)


@pytest.mark.parametrize("kind", CONSTRAINTS)
def test_examples_that_help_shows_are_of_their_kind(kind: type[Constraint]) -> None:
    assert kind.examples
    assert all(type(parse(example)) is kind for example in kind.examples)


@pytest.mark.parametrize(
    ("text", "limit", "expected"),
    [
        ("25%cache", 500, "25%cache"),
        (" 12.5 % cache ", 250, "12.5%cache"),
        ("1kbcache", 1000, "1,000 B of caches"),
        ("1.5 KiBcache", 1536, "1,536 B of caches"),
    ],
)
def test_caches_are_limited_by_a_share_or_by_bytes(text: str, limit: int, expected: str) -> None:
    result = parse_budgets(["13%", text]).get(CacheBudget)
    assert result is not None
    assert result.limit(2000) == limit
    assert str(result) == expected


@pytest.mark.parametrize("text", ["101%cache", "2mscache", "0%cache", "25cache"])
def test_other_texts_are_no_limit_of_caches(text: str) -> None:
    with pytest.raises(UsageError, match="`ptqc help budgets`"):
        parse(text)
