"""Targets: what a compile can build beside the ONNX file. A folder here with a `target.py` is one, named like it.

So is a package that an installed distribution names in the group of entry points `ptqc.targets`. Its docstring begins
with what it builds, in the words of `--help`. `target.py` gives `TARGET`, an object with the methods of `Target`.
Beside it, where it has options, `options.py` gives their class as `OPTIONS`, and where ptqc can run what it builds,
`runtime.py` gives `load`; where it has an emulator of what it builds for, `verification.py` gives `emulate` and
`check`.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import Field, dataclass, fields, is_dataclass
from functools import cache, cached_property
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol, TypedDict, TypeVar, runtime_checkable

import ptqc.codegen
from ptqc.errors import TargetError, UsageError
from ptqc.plugins import Plugin, PluginKind, by_name, usable
from ptqc.utils.arguments import one_of, unknown
from ptqc.utils.progress import SILENT_STAGE, Stage

if TYPE_CHECKING:
    import onnx_ir as ir

    from ptqc.codegen.onnxruntime.constants import Bias
    from ptqc.codegen.onnxruntime.export import Exported
    from ptqc.codegen.program.emulated import Emulated
    from ptqc.codegen.program.listing import Listing
    from ptqc.codegen.program.timing import TimedProgram
    from ptqc.codegen.program.verify import Values
    from ptqc.execution.onnxruntime import Feeds
    from ptqc.ir.lowered import Lowered
    from ptqc.ir.quantized_weight import QuantizedWeight
    from ptqc.losses import Kinds
    from ptqc.runtime.library import Library

Options = TypeVar("Options", contravariant=True)

# Options, arguments and keywords that the commands and functions with targets have of their own; a test says so.
_TAKEN = (
    "activation_limit activations allow_8bit allow_missing_target anchors bits box_unit boxes budget cache "
    "calibration cast_double channel_order classes columns crop data detector detector_outputs dump_passes evaluate "
    "executor fill fit float_layers folder for force formats help inline json kv_cache labels layout length loss mean "
    "model no_allow_8bit no_cast_double no_inline no_special_tokens observer operators output outputs overlap "
    "overlong padding padding_side padding_token perfect_score pipeline plan preprocessing progress quiet resample "
    "resize rewrite rewrites runtime samples scale scales scores seed sensitivity sparsity special_tokens std strict "
    "target time_limit times tokenizer unit variances workers"
)
TAKEN = frozenset(_TAKEN.split())
# Metadata of an option that help reads, its default as text and a function of its possible values; argparse takes the
# rest.
DESCRIBED = ("default_text", "values")


class TargetKeywords(TypedDict, total=False):
    """The options of all targets as `ptqc.compile` takes them, for type checkers; a test holds them to the classes."""

    cpu: str
    tune: str | Path
    cpu_library: str
    c_name: str
    c_stream: int | None
    c_frames: int | None
    gpu: str
    verify_in: str
    chips: str
    int4: bool


@dataclass(frozen=True)
class NoOptions:
    """Options of a target that has none."""


@dataclass(frozen=True)
class TargetInput:
    """What a target builds of: a quantized model and samples.

    samples: of the validation split and of one size, to compare outputs on. calibration: of the calibration split, to
    take ranges from. model: the float model. kinds: by output, how its loss is measured. runtime:
    that the plan was solved for.
    """

    lowered: "Lowered"
    exported: "Exported"
    samples: "Sequence[Feeds]"
    calibration: "Sequence[Feeds]"
    model: "ir.Model"
    kinds: "Kinds"
    runtime: str = "onnxruntime"


@dataclass(frozen=True)
class TargetOutput:
    """What a target built. files: by name, for the artifact's folder of the target.

    document: for the manifest. Of `libraries`, as the target cpu has them, summary and report tell all; of another
    document the numbers and texts.
    """

    files: Mapping[str, Path]
    document: Mapping[str, Any]


class Target(Protocol[Options]):
    """What a target does. What it refuses, it refuses with TargetError."""

    def check_options(self, options: Options) -> None:
        """Refuse options that cannot work on this machine. Raises UsageError too."""

    def check_present(self) -> None:
        """Refuse to go on where a package that it needs is not installed."""

    def check_sizes(self, row_shapes: Collection[tuple[tuple[int, ...], ...]], model: "ir.Model") -> None:
        """Refuse samples of a model that it cannot take. row_shapes: those that they have beyond axis 0."""

    def check_kernels(self, model: "ir.Model") -> None:
        """Refuse a model that certainly has a node without a kernel, before anything is measured."""

    def gains_by_bfloat16(self, options: Options) -> bool:
        """Whether it multiplies bfloat16 faster than float32, and is there to do so."""

    def multiplies_float8(self) -> bool:
        """Whether it has kernels for layers of FP8."""

    def fuses_conversions(self) -> bool:
        """Whether conversions between real values and codes are parts of its kernels, and cost no time of their own."""

    def build(
        self,
        source: "TargetInput",
        options: Options,
        store: Path,
        folder: Path,
        stage: Stage = SILENT_STAGE,
    ) -> TargetOutput:
        """Compile a lowered graph, and compare what it computes with the exported file on samples and edge inputs.

        store: a folder of what was built before. folder: an empty one for the files. stage: may be told of steps that
        take long. Raises VerificationError where anything differs.
        """


class Timer(Protocol):
    """What tells the times of a target's libraries.

    is_measured: on this machine; else they are predicted. runtime: what they run in, in words.
    """

    @property
    def is_measured(self) -> bool: ...

    @property
    def runtime(self) -> str: ...

    def __call__(
        self, graphs: "Sequence[tuple[Lowered, Exported]]", samples: "Sequence[Feeds]", store: Path, seconds: float
    ) -> "list[TimedProgram]":
        """Nanoseconds of a library of each graph, with the first sample: measured in turns, on one thread.

        store: a folder of what was built before. seconds: about as long are whole runs timed.
        """


@runtime_checkable
class TimedTarget(Protocol):
    """A target that tells the times of its libraries: what a budget such as 2ms@cpu needs."""

    def timer(self, options: Any) -> Timer:
        """What tells the times. Raises TargetError where they are measured, and this machine cannot run the library."""


@dataclass(frozen=True)
class Footprint:
    """What a network takes of a microcontroller, in bytes.

    constant_bytes, code_bytes, structure_bytes: in flash: arrays, functions, and what describes each call. compiler:
    of the code, in words. arena_bytes, input_and_output_bytes: in memory. peak: the value in whose making most of the
    arena is needed; alive: what for, the largest first.
    """

    constant_bytes: int
    code_bytes: int
    structure_bytes: int
    arena_bytes: int
    input_and_output_bytes: int
    compiler: str
    peak: str
    alive: tuple[tuple[str, int], ...]

    @property
    def flash(self) -> int:
        """All bytes of flash."""
        return self.constant_bytes + self.code_bytes + self.structure_bytes

    @property
    def ram(self) -> int:
        """All bytes of memory, without the stack."""
        return self.arena_bytes + self.input_and_output_bytes


@runtime_checkable
class SizedTarget(Protocol):
    """A target whose networks lie in the flash and memory of microcontrollers: what budgets such as 64KBflash need."""

    def footprint(self, source: TargetInput, options: Any) -> Footprint:
        """What is built of a graph takes. Raises NoKernel, and TargetError where code cannot be compiled."""

    def stored(
        self, weight: "QuantizedWeight", biases: "Sequence[Bias | None]", *, is_depthwise: bool
    ) -> tuple[int, str]:
        """Bytes of a weight and of the biases beside it in flash, and the function that unpacks it, by name."""

    def unpacking_bytes(self, source: TargetInput, options: Any, functions: Collection[str]) -> Mapping[str, int]:
        """Bytes of code of each of these functions."""


@runtime_checkable
class StreamTarget(Protocol):
    """A target that can compute a network frame by frame."""

    def check_frames(self, model: "ir.Model", feeds: "Feeds", options: Any) -> None:
        """Refuse a model that it cannot compute so, before anything is measured. feeds: a sample."""


@dataclass(frozen=True)
class Tool:
    """A program that a target runs if it is installed.

    path: empty where it is missing. use: what it is for. remedy: what follows where it is missing, and how to get
    it.
    """

    name: str
    path: str
    use: str
    remedy: str


@runtime_checkable
class ToolUser(Protocol):
    """A target whose result depends on programs that are installed: `ptqc doctor` lists them."""

    def tools(self) -> Iterable[Tool]:
        """Each with where it is."""


@dataclass(frozen=True)
class Chosen:
    """A target that a compile was asked for. may_be_missing: deliver the rest where it cannot be built.

    has_budgets: whether a budget is of what it builds, so that there is no rest without it.
    """

    name: str
    target: Target[Any]
    options: Any
    may_be_missing: bool = False
    has_budgets: bool = False

    def to_json(self) -> dict[str, Any]:
        """Name and options, as `choose_as_compiled` takes them."""
        options = {option.name: getattr(self.options, option.name) for option in fields(self.options)}
        stored = {name: str(value) if isinstance(value, Path) else value for name, value in options.items()}
        return {"name": self.name, "options": stored}

    @property
    def in_library(self) -> bool:
        """Whether what runs is a native library, of whose kernels conversions to and from codes are parts."""
        return self.target.fuses_conversions()

    @cached_property
    def timer(self) -> Timer:
        """What times what the target builds. Made once, as it may look for a GPU.

        Raises TargetError where that cannot be timed here.
        """
        if not isinstance(self.target, TimedTarget):
            raise TargetError(
                f"what the target {self.name} builds cannot be timed; give the latency without @{self.name}"
            )
        return self.target.timer(self.options)


# In place of a target: the ONNX file alone, also where an earlier compile built more.
NONE = "none"


def names() -> list[str]:
    """The targets that there are, but for those of packages that cannot be used; see `added_room`."""
    return sorted(_rooms())


def _own() -> dict[str, str]:
    """The packages of ptqc's own targets by name."""
    return _targets_in(tuple(ptqc.codegen.__path__))


@cache
def _targets_in(folders: tuple[str, ...]) -> dict[str, str]:
    rooms = (module.name for module in iter_modules(folders) if module.ispkg)
    return {name: f"ptqc.codegen.{name}" for name in rooms if find_spec(f"ptqc.codegen.{name}.target") is not None}


def _rooms() -> dict[str, str]:
    """The package of each target by its name."""
    return {**dict(usable(PluginKind.TARGET, lambda plugin: (plugin.name, added_room(plugin)))), **_own()}


def added_room(plugin: Plugin) -> str:
    """The package of a target that is added. Raises UsageError where it cannot be loaded or is none."""
    if plugin.name in _own():
        raise plugin.fault("has the name of one of ptqc's own; give another one")
    package = plugin.load()
    if not (isinstance(package, ModuleType) and hasattr(package, "__path__")):
        raise plugin.fault("is not a package: name a folder with target.py, as ptqc.codegen.targets says")
    if find_spec(f"{package.__name__}.target") is None:
        raise plugin.fault("has no target.py")
    try:
        options = _options_in(package.__name__)
    except Exception as error:  # whatever its module raises
        raise plugin.fault(f"cannot be loaded: {type(error).__name__}: {error}") from error
    if not is_dataclass(options):
        raise plugin.fault("has OPTIONS that are not a dataclass")
    for option in fields(options):
        _check_option(plugin, option)
    return package.__name__


def _check_option(plugin: Plugin, option: Field[Any]) -> None:
    """Raises UsageError for an option that cannot stand beside ptqc's own on the command line and in calls."""
    if option.name in TAKEN:
        raise plugin.fault(f"has the option {option.name!r}, which ptqc has as well; give it another name")
    from argparse import ArgumentParser

    try:
        words = {name: value for name, value in option.metadata.items() if name not in DESCRIBED}
        ArgumentParser().add_argument(f"--{option.name.replace('_', '-')}", **words)
    except Exception as error:  # whatever argparse says of what it is given
        raise plugin.fault(
            f"has the option {option.name!r} with metadata that argparse does not take: {type(error).__name__}: {error}"
        ) from error


def built_in_options() -> dict[str, list[Field[Any]]]:
    """The options of ptqc's own targets by name; several targets may have one of a name."""
    result: dict[str, list[Field[Any]]] = {}
    for _, package in sorted(_own().items()):
        for option in fields(_options_in(package)):
            result.setdefault(option.name, []).append(option)
    return result


def room(name: str) -> str:
    """The package of a target. Raises UsageError for an unknown name, and for one that cannot be used."""
    if name in (own := _own()):
        return own[name]
    rooms = _rooms()
    if name not in rooms:
        if name in (added := by_name(PluginKind.TARGET)):
            added_room(added[name])
        one_of("target", name, tuple(sorted(rooms)))
    return rooms[name]


def title_of(name: str) -> str:
    """What a target builds: the first line of its package's docstring."""
    line = (import_module(room(name)).__doc__ or "").partition("\n")[0].removesuffix(".")
    return line[:1].lower() + line[1:]


def options_of(name: str) -> type[Any]:
    """The class of a target's options: frozen, with `help` and `metavar` of each for the command line as metadata."""
    return _options_in(room(name))


def _options_in(package: str) -> type[Any]:
    if find_spec(f"{package}.options") is None:
        return NoOptions
    options: type[Any] = import_module(f"{package}.options").OPTIONS
    return options


def target_named(name: str) -> Target[Any]:
    """A target. Raises UsageError for an unknown name, and for one of a package that cannot be used."""
    package = room(name)
    try:
        target: Target[Any] = import_module(f"{package}.target").TARGET
    except Exception as error:
        plugin = by_name(PluginKind.TARGET).get(name)
        if plugin is None:
            raise
        raise plugin.fault(f"cannot be loaded: {type(error).__name__}: {error}") from error
    return target


def choose(
    name: str | None,
    requested: Mapping[str, object],
    known: Collection[str] = (),
    *,
    may_be_missing: bool = False,
) -> Chosen | None:
    """A target by name with the options given by name; None without one, and for "none".

    known: other options that there are.

    Raises UsageError for an unknown target or option, and for an option of a target that was not asked for.
    """
    if name in (None, NONE):
        _check_none(requested, known)
        return None
    if name not in by_name(PluginKind.TARGET):
        one_of("target", name, (*names(), NONE))
    target, options = target_named(name), options_of(name)
    own = [option.name for option in fields(options)]
    if strange := requested.keys() - own:
        raise unknown("option", strange, [*known, *own])
    return Chosen(name, target, options(**requested), may_be_missing)


def choose_as_compiled(
    name: str | None,
    requested: Mapping[str, object],
    known: Collection[str],
    earlier: Mapping[str, Any],
    needed: Collection[str],
    *,
    may_be_missing: bool,
) -> Chosen | None:
    """The target of an earlier compile with its options, unless another one or other options are given.

    Native libraries, which take minutes, are built again only if they are asked for. earlier: the manifest; needed:
    targets that budgets name. Raises UsageError as `choose` does.
    """
    before = earlier.get("target")  # that of earlier versions is not known
    if before is None or before["name"] not in names() or name not in (None, before["name"]):
        return choose(name, requested, known, may_be_missing=may_be_missing)
    is_missing = name is None and "missing" in earlier["targets"][before["name"]]
    declared = {option.name for option in fields(options_of(before["name"]))}  # an earlier version had others
    options = {**{key: value for key, value in before["options"].items() if key in declared}, **requested}
    chosen = choose(before["name"], options, known, may_be_missing=may_be_missing or is_missing)
    assert chosen is not None
    is_asked_for = name is not None or requested or chosen.name in needed
    return chosen if is_asked_for or not chosen.in_library else None


def _check_none(requested: Mapping[str, object], known: Collection[str]) -> None:
    """Raises UsageError where options are given without a target."""
    owners: dict[str, list[str]] = {}
    for name in names():
        for own in fields(options_of(name)):
            owners.setdefault(own.name, []).append(name)
    if strange := requested.keys() - owners.keys():
        raise unknown("option", strange, known, owners)
    for option in sorted(requested):
        owning = " or ".join(owners[option])
        raise UsageError(f"{option} is an option of the target {owning}; give target {owning} too")


def load(name: str, folder: Path, threads: int = 0, isa: str = "") -> "Library":
    """What a target built, ready to run; see `ptqc.artifact.folder.Artifact.native`.

    Raises TargetError where ptqc cannot run what this target builds.
    """
    if not can_load(name):
        raise TargetError(f"ptqc does not run what the target {name} builds; run model.onnx")
    library: Library = import_module(f"{room(name)}.runtime").load(folder, threads, isa)
    return library


def can_load(name: str) -> bool:
    """Whether ptqc can run what a target builds."""
    return find_spec(f"{room(name)}.runtime") is not None


def emulate(name: str, folder: Path, listing: "Listing", runs: "Iterable[Values]") -> "Emulated":
    """Compare what a target built with what ONNX Runtime computed, where nothing that it is for can be had.

    runs: values of ONNX Runtime, inputs included, by name in the lowered graph. Raises TargetError where that cannot be
    done here either.
    """
    emulated: Emulated = import_module(f"{room(name)}.verification").emulate(folder, listing, runs)
    return emulated


def check_emulated(name: str, folder: Path, document: Mapping[str, Any]) -> None:
    """Raises VerificationError where what an emulator runs is not what was delivered. document: of the manifest."""
    import_module(f"{room(name)}.verification").check(folder, document)
