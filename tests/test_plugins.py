"""What packages add: each kind is found, named with its package, and refused where it cannot be used."""

import inspect
import sys
from dataclasses import fields
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import ptqc
from ptqc import plugins
from ptqc.calibration.ranges import RangeObserver, added_method, choose_range
from ptqc.cli.main import main
from ptqc.cli.parser import parsers
from ptqc.codegen import targets
from ptqc.errors import UsageError
from ptqc.formats import Format
from ptqc.formats.families import added_family
from ptqc.ir.operators import OPERATORS
from ptqc.ir.operators.registry import added_operator
from ptqc.options import CompileOptions
from ptqc.passes.registry import check_extensions, examined, used
from ptqc.plugins import Plugin, PluginKind, added, by_name, usable
from ptqc.tools.doctor import Judgement, examine

sys.path.append(str(Path(__file__).resolve().parent.parent / "examples" / "plugin"))


def half(observed: RangeObserver, bits: int) -> tuple[float, float]:  # noqa: ARG001
    return observed.low / 2, observed.high / 2


def reversed_range(observed: RangeObserver, bits: int) -> tuple[float, float]:  # noqa: ARG001
    return observed.high, observed.low


def no_range(observed: RangeObserver, bits: int) -> tuple[float, float]:  # noqa: ARG001
    raise ZeroDivisionError("no bins")


class Unfinished(Format):
    """A format that lacks everything."""

    family = "unfinished"


RELU = OPERATORS["Relu"]
EXAMPLES = {
    "ptqc.rewrites": {"drop-idle-clip": "ptqc_example.drop_idle_clip:DropIdleClip"},
    "ptqc.formats": {"e5m2": "ptqc_example.e5m2:E5M2"},
    "ptqc.operators": {"HardSwish": "ptqc_example.hard_swish:HARD_SWISH"},
    "ptqc.observers": {"three-sigma": "ptqc_example.three_sigma:three_sigma"},
    "ptqc.targets": {"listing": "ptqc_example.listing"},
}


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, str]]:
    """Entry points by group, name and value; a test adds its own. All are of one package."""
    groups: dict[str, dict[str, str]] = {}

    def found(group: str) -> list[Any]:
        of_package = {"name": "some-package", "version": "2.1"}
        return [
            SimpleNamespace(name=name, value=value, dist=SimpleNamespace(**of_package))
            for name, value in groups.get(group, {}).items()
        ]

    monkeypatch.setattr(plugins, "entry_points", found)
    return groups


def test_each_kind_is_found_and_named_with_its_package(installed: dict[str, dict[str, str]]) -> None:
    installed.update(EXAMPLES)
    result = list(examined())
    assert [error for _, error in result] == [None] * len(PluginKind)
    assert {str(plugin.kind) for plugin, _ in result} == {str(kind) for kind in PluginKind}
    check_extensions()
    record = {finding.what: finding for finding in examine().findings}
    assert record["observer three-sigma"].found == "added by some-package 2.1"
    assert record["target listing"].state == Judgement.OK
    assert record["--target listing"].found == "a list of the operators"


def test_formats_and_operators_count_always_and_others_by_name(installed: dict[str, dict[str, str]]) -> None:
    installed.update(EXAMPLES)
    plain = [one["name"] for one in used(CompileOptions().to_json())]
    assert plain == ["e5m2", "HardSwish"]
    options = CompileOptions(observer="three-sigma", rewrites=("drop-idle-clip",)).to_json()
    every = used(options, ["listing"])
    assert {one["kind"] for one in every} == {str(kind) for kind in PluginKind}
    assert {one["package"] for one in every} == {"some-package 2.1"}


def test_an_observer_is_taken_by_its_name(installed: dict[str, dict[str, str]]) -> None:
    installed["ptqc.observers"] = {"half": f"{__name__}:half"}
    observer = RangeObserver()
    observer.update([-2.0, 6.0])  # type: ignore[arg-type]
    assert choose_range(observer, "half") == (-1.0, 3.0)
    assert CompileOptions(observer="half").observer == "half"
    with pytest.raises(UsageError, match=r"unknown observer hlaf .did you mean half"):
        CompileOptions(observer="hlaf")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("reversed", "reversed_range", r"gave \[6, -2\]; give two finite numbers"),
        ("none", "no_range", "failed: ZeroDivisionError: no bins"),
        ("text", "EXAMPLES", "is not a function"),
        ("mse", "half", "has the name of one of ptqc's own"),
        ("lost", "lost", "cannot be loaded: AttributeError"),
    ],
)
def test_an_observer_that_fails_names_its_package(
    name: str, value: str, message: str, installed: dict[str, dict[str, str]]
) -> None:
    installed["ptqc.observers"] = {name: f"{__name__}:{value}"}
    observer = RangeObserver()
    observer.update([-2.0, 6.0])  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=message) as raised:
        added_method(by_name(PluginKind.OBSERVER)[name])(observer, 8)
    assert f"observer '{name}' of some-package 2.1 ({__name__}:{value})" in str(raised.value)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("unfinished", f"{__name__}:Unfinished", "lacks decode, members, pack, unpack"),
        ("other", "ptqc_example.e5m2:E5M2", "has to have its family as name"),
        ("text", f"{__name__}:EXAMPLES", "is not a format"),
        ("gone", "no_such_package:Format", "cannot be loaded: ModuleNotFoundError"),
    ],
)
def test_a_format_that_cannot_be_used_stops_a_compile(
    name: str, value: str, message: str, installed: dict[str, dict[str, str]]
) -> None:
    """What reads models and artifacts goes on without it."""
    installed["ptqc.formats"] = {name: value}
    assert usable(PluginKind.FORMAT, added_family) == ()
    with pytest.raises(UsageError, match=message):
        check_extensions()
    lacking = [finding for finding in examine().findings if finding.state == Judgement.LACK]
    assert [finding.remedy for finding in lacking] == ["fix or uninstall some-package 2.1"]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [("Elu", "RELU", "says something of Relu"), ("Relu", "EXAMPLES", "is not an operator")],
)
def test_an_operator_that_cannot_be_used_is_refused(
    name: str, value: str, message: str, installed: dict[str, dict[str, str]]
) -> None:
    installed["ptqc.operators"] = {name: f"{__name__}:{value}"}
    with pytest.raises(UsageError, match=message):
        added_operator(by_name(PluginKind.OPERATOR)[name])


def test_a_target_that_cannot_be_used_stops_only_who_asks_for_it(
    installed: dict[str, dict[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bare_target").mkdir()
    (tmp_path / "bare_target" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    installed["ptqc.targets"] = {"bare": "bare_target", "cpu": "ptqc_example.listing", "gone": "no_such_package"}
    assert "bare" not in targets.names()
    assert targets.room("cpu") == "ptqc.codegen.cpu"
    for name, message in {"bare": "has no target.py", "gone": "cannot be loaded", "lost": "target is 'lost'"}.items():
        with pytest.raises(UsageError, match=message):
            targets.target_named(name)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("seed: int = field(default=0, metadata={'help': 'of mine'})", "has the option 'seed', which ptqc has as well"),
        ("mine: int = field(default=0, metadata={'helps': 'x'})", "'mine' with metadata that argparse does not take"),
    ],
)
def test_an_option_that_the_command_line_cannot_take_is_told(
    options: str,
    message: str,
    installed: dict[str, dict[str, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    name = tmp_path.name
    (tmp_path / name).mkdir()
    for file in ("__init__.py", "target.py"):
        (tmp_path / name / file).touch()
    (tmp_path / name / "options.py").write_text(
        f"from dataclasses import dataclass, field\n\n\n@dataclass(frozen=True)\nclass OPTIONS:\n    {options}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    installed["ptqc.targets"] = {"mine": name}
    with pytest.raises(UsageError, match=message):
        targets.target_named("mine")
    with pytest.raises(SystemExit, match="0"):
        main(["compile", "--help"])
    assert "--target" in capsys.readouterr().out


def test_the_names_that_are_taken_are_those_of_commands_and_functions() -> None:
    _, commands = parsers()
    of_targets = {option.name for name in targets.names() for option in fields(targets.options_of(name))}
    result = {name for function in (ptqc.compile, ptqc.resolve) for name in inspect.signature(function).parameters}
    for parser in commands.values():
        actions = parser._actions
        if any(action.dest == "target" for action in actions):
            result |= {action.dest for action in actions}
            options = [option for action in actions for option in action.option_strings if option.startswith("--")]
            result |= {option.removeprefix("--").replace("-", "_") for option in options}
    assert result - of_targets - {"given"} == targets.TAKEN


def test_two_packages_with_one_name_are_both_named(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [
        SimpleNamespace(name="half", value=f"{__name__}:half", dist=SimpleNamespace(name=package, version="1.0"))
        for package in ("one", "other")
    ]
    monkeypatch.setattr(plugins, "entry_points", lambda group: points)  # noqa: ARG005
    with pytest.raises(UsageError, match=r"of one 1\.0 .* is added by other 1\.0 as well"):
        by_name(PluginKind.OBSERVER)["half"].load()


def test_a_package_without_metadata_is_told_as_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [EntryPoint("half", f"{__name__}:half", PluginKind.OBSERVER.group)]
    monkeypatch.setattr(plugins, "entry_points", lambda group: points)  # noqa: ARG005
    assert added(PluginKind.OBSERVER) == (
        Plugin(PluginKind.OBSERVER, "half", f"{__name__}:half", "an unknown package"),
    )
