"""Help: what it lists is what is accepted, and it is short where it is to be short."""

import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import partial
from typing import Any

import pytest

from ptqc import presets
from ptqc.calibration.images import Preprocessing
from ptqc.calibration.texts import Texts
from ptqc.cli import main as cli
from ptqc.cli.commands import flag
from ptqc.cli.help import HelpGroup, Parser, described, possible_values_of
from ptqc.cli.parser import COMMANDS, parse, parsers
from ptqc.cli.topics import TOPICS
from ptqc.codegen.targets import choose, options_of
from ptqc.errors import UsageError
from ptqc.evaluation.detection.detector import Detector
from ptqc.options import CompileOptions
from ptqc.runtime.foreign import runtime_named
from ptqc.tools.evaluating.own import metric_of
from ptqc.utils.executors.registry import EXECUTORS

_, PARSERS = parsers()
NONE = "nothing-of-this-name"


def of_detector(name: str, value: str) -> object:
    stated: dict[str, Any] = {name: {value: "y"} if name == "outputs" else value}
    return Detector(**stated, anchors="a.npy" if value.startswith("offsets") else None)


def executor(value: str) -> None:
    if value.partition("://")[0] not in EXECUTORS:
        raise UsageError(value)


def made(kind: Callable[..., object], name: str, *required: str) -> Callable[[str], object]:
    """Makes an object with a value for one field."""
    return lambda value: kind(*required, **{name: value})


def compiled(name: str) -> Callable[[str], object]:
    several = isinstance(getattr(CompileOptions, name), tuple)
    return lambda value: CompileOptions.of({name: (value,) if several else value})


# What takes the values that help lists, by the option.
ACCEPTING: Mapping[str, Callable[[str], object]] = {
    **{flag(one.metadata["flag"] or one.name): compiled(one.name) for one in fields(CompileOptions)},
    **{flag(name): made(Texts, name, "a.txt", "t.json") for name in ("unit", "overlong", "padding", "padding_side")},
    **{flag(name): made(Preprocessing, name) for name in ("fit", "layout", "channel_order", "resample")},
    **{flag(name): partial(of_detector, name) for name in ("boxes", "box_unit", "scores", "classes")},
    "--detector-outputs": partial(of_detector, "outputs"),
    "--preprocessing": Preprocessing.of,
    "--detector": lambda value: presets.preset("detector", value, presets.DETECTORS),
    "--target": lambda value: choose(value, {}),
    "--cpu": lambda value: options_of("cpu")(cpu=value),
    "--cpu-library": lambda value: options_of("cpu")(cpu_library=value),
    "--gpu": lambda value: options_of("cuda")(gpu=value),
    "--verify-in": lambda value: options_of("qdq")(verify_in=value),
    "--chips": lambda value: options_of("qdq")(chips=value),
    "--runtime": runtime_named,
    "--executor": executor,
    "--metric": lambda value: value == "MODULE:FUNCTION" or metric_of(value),
    "action": lambda value: parse(["cache", value]),
    "shell": lambda value: parse(["completion", value]),
    "topic": lambda value: parse(["help", value]),
}  # fmt: skip


def listing_options() -> dict[str, list[str]]:
    """The possible values of every option of which help lists any."""
    actions = [action for parser in PARSERS.values() for action in parser._actions]
    return {
        (action.option_strings or [action.dest])[-1]: values
        for action in actions
        if (values := possible_values_of(action))
    }


LISTING = listing_options()


@pytest.mark.parametrize("option", LISTING)
def test_the_values_that_help_lists_are_those_that_are_accepted(option: str) -> None:
    for value in LISTING[option]:
        ACCEPTING[option](value)
    with pytest.raises(UsageError) as refused:
        ACCEPTING[option](NONE)
    known = re.search(r"(?:known: |expected one of )([^;]*)", str(refused.value))
    if known and option != "--metric":
        listed = [name for name in known[1].split(", ") if not name.startswith("or ")]
        assert set(listed) - set(COMMANDS) == set(LISTING[option])


def test_help_shows_defaults_and_values_in_one_form() -> None:
    (fit,) = [action for action in PARSERS["compile"]._actions if "--fit" in action.option_strings]
    assert described(fit).endswith("(default: crop) (possible values: crop, stretch, letterbox, letterbox-corner)")
    for parser in PARSERS.values():
        assert [one.dest for one in parser._actions if re.search(r"lists all|\\(default\\)", str(one.help))] == []
        assert [one.dest for one in parser._actions if one.metavar == "V"] == []


def shown(command: str, option: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COLUMNS", "110")
    with pytest.raises(SystemExit, match="0"):
        cli.main([command, option])
    return capsys.readouterr().out


def test_compile_has_a_short_help_and_a_long_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    short, long = (shown("compile", option, capsys, monkeypatch) for option in ("-h", "--help"))
    common = [
        line.split()[0].rstrip(",") for line in short.partition("options:")[2].splitlines() if re.match("  -", line)
    ]
    assert common == [name for name in COMMANDS["compile"].common if name.startswith("-")] + ["-h", "--help"]
    assert "ptqc compile model.onnx --budget 13% --calibration images/ --preprocessing imagenet -o out/" in short
    assert "`ptqc compile --help` shows all options" in short
    titles = [line.removesuffix(":") for line in long.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert titles == [*(group.value for group in HelpGroup), "examples"]
    options = {option for action in PARSERS["compile"]._actions for option in action.option_strings}
    assert [option for option in options if option not in long] == []


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_command_has_its_options_in_groups(command: str) -> None:
    parser = PARSERS[command]
    assert isinstance(parser, Parser)
    listed = [action for _, actions in parser.shown() for action in actions]
    assert listed == sorted(parser._actions, key=listed.index)
    common = {action.option_strings[0] if action.option_strings else action.dest for action in listed}
    assert set(COMMANDS[command].common) - {"-q"} <= common | {"--quiet"}
    text = parser.help_text()
    assert text.startswith(f"usage: ptqc {command}")
    assert all(line in text for line in COMMANDS[command].examples)
    assert all(len(line) <= 112 for line in text.splitlines())


def test_all_commands_are_listed_in_groups(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown("--help", "-h", capsys, monkeypatch)
    assert re.findall(r"^(\w+):$", text, re.MULTILINE) == [
        *("compile", "judge", "trust", "ship", "housekeeping"),
        "example",
    ]
    assert [name for name in COMMANDS if f"\n  {name} " not in text] == []


@pytest.mark.parametrize("topic", TOPICS)
def test_topics(topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["help", topic]) == 0
    text = capsys.readouterr().out
    known = {"preprocessing": presets.PREPROCESSING, "detectors": presets.DETECTORS}.get(
        topic, {"13%": None, "1%drop": None}
    )
    assert [name for name in known if f"  {name} " not in text] == []
    assert all(len(line) <= 110 for line in text.splitlines())


def test_help_lists_topics_and_shows_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["help"]) == 0
    assert all(f"  {topic} " in capsys.readouterr().out for topic in list(TOPICS)[:1])
    assert cli.main(["help", "verify"]) == 0
    assert capsys.readouterr().out.startswith("usage: ptqc verify FOLDER [options]")


def test_what_topics_print_of_presets_can_be_typed() -> None:
    words = TOPICS["detectors"].text().splitlines()
    (line,) = [words[place + 1] for place, one in enumerate(words) if one.startswith("  detr ")]
    options = parse(["eval", "m.onnx", "--metric", "map", "--data", "x", *line.split()])
    assert (options.boxes, options.box_unit, options.scores, options.overlap) == ("cxcywh", "shares", "softmax", "1")
