"""What a user can choose about a compile. Defaults are the same for every model.

A field of `CompileOptions` is the one declaration of an option: name, type, default, help, and the phase that reads it.
The command line, the keywords of `ptqc.compile`, those that `ptqc.resolve` takes, the keys of stored measurements and
the reference in the documentation follow from it. Type checkers need its type once more, in `Keywords`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from enum import IntEnum
from numbers import Integral, Real
from typing import Any, Literal, TypedDict, TypeVar, get_args, get_origin, get_type_hints

from ptqc.errors import UsageError
from ptqc.ir.runtimes import RULES, RuntimeRules
from ptqc.utils.arguments import one_of, shown, unknown
from ptqc.utils.deadline import parse_seconds
from ptqc.utils.signatures import wrapped

Activations = Literal["auto", "integer", "float", "float8"]
Loss = str | Mapping[str, str]
RangeMethodName = str  # "auto", or a method of `ptqc.calibration.ranges`
Operators = Literal["standard", "onnxruntime", "dequantize"]
CacheKind = Literal["float", "float16", "int8", "int4", "bfp4", "bfp4-sorted"]
KvCache = CacheKind | Mapping[str, CacheKind]
Sparsity = Literal["given", "2:4"]
Scales = Literal["free", "pow2"]
Runtime = Literal["onnxruntime", "arm", "openvino", "qnn", "litert", "tensorrt", "xdna", "c"]
Sensitivity = Literal["outputs", "curvature"]
FloatLayers = Literal["auto", "bfloat16", "float32"]
Pipeline = Literal["light", "advanced"]
NARROWEST, WIDEST = 2, 8

T = TypeVar("T")


class Phase(IntEnum):
    """The first phase of a compile whose stored results depend on an option; `ptqc resolve` can change those of FIT."""

    SOLVE = 1  # the candidates of every weight, and everything before them
    MEASURE = 2  # sensitivities, and the choice of activations
    FIT = 3  # allocation, reconstruction, the file


def option(
    default: T,
    text: str,
    *,
    phase: Phase = Phase.SOLVE,
    group: str = "quantization",
    metavar: str = "",
    per: str = "",
    flag: str = "",
    parse: Callable[[str], object] | None = None,
    values: Callable[[], tuple[str, ...]] | None = None,
) -> T:
    """Declare an option. text: its help. group: the title under which help lists it.

    per: what its values are named by, where there may be several: "output" or "input". flag: its name on the command
    line, where that differs; it may then be given several times. parse: reads its value from text. values: the possible
    ones, where its type does not list them.
    """
    about = {"help": text, "phase": phase, "group": group, "metavar": metavar, "per": per, "flag": flag}
    about |= {"parse": parse, "values": values}
    declared: T = field(default=default, metadata=about)
    return declared


def widths(text: str) -> tuple[int, ...]:
    """Read "2,3,4". Raises ValueError."""
    if not text.replace(",", "0").isdecimal() or "" in text.split(","):
        raise ValueError(f"{text!r} is not a list of widths such as 2,3,4")
    return tuple(int(width) for width in text.split(","))


def names(text: str) -> tuple[str, ...]:
    """Read "int,codebook"."""
    return tuple(text.split(","))


def families() -> tuple[str, ...]:
    """Families of formats that weights can be rounded to without any other option."""
    from ptqc.formats import Coded, Format

    bits = range(NARROWEST, WIDEST + 1)
    possible = [family for family in Format.families if family.by_default or issubclass(family, Coded)]
    return tuple(family.family for family in possible if family.offered(bits))


def _observers() -> tuple[str, ...]:
    from ptqc.calibration.ranges import known_methods  # loads NumPy, which the command line does not wait for

    return ("auto", *known_methods())


def _losses() -> tuple[str, ...]:
    from ptqc.losses import NAMES

    return NAMES


def one_of_each(option: str, value: str | Mapping[str, str], per: str, known: tuple[str, ...]) -> None:
    """Raises UsageError for a value, for all or for one that is named, that is none of the known ones."""
    for name, kind in {"": value}.items() if isinstance(value, str) else value.items():
        one_of(f"{option} of {per} {name!r}" if name else option, kind, known)


@dataclass(frozen=True)
class CompileOptions:
    """Options of `ptqc.compile`."""

    samples: int = option(256, "use at most this many calibration samples", group="data", metavar="N")
    observer: RangeMethodName = option(
        "auto",
        "how to choose the ranges of activations; auto takes, for each, the method that loses least",
        phase=Phase.MEASURE,
        metavar="METHOD",
        values=_observers,
    )
    activations: Activations = option(
        "auto",
        "8-bit activations: auto (as many as --activation-limit allows), integer (wherever there is a kernel), float "
        "(none), or float8 (FP8 E4M3 weights and, within the limit, activations, for GPUs that multiply FP8: with "
        "--target cuda or other compilers)",
        phase=Phase.MEASURE,
        metavar="KIND",
    )
    activation_limit: float = option(
        0.0,
        "the most loss that 8-bit activations may add, in the unit of the loss; 0: a limit that suits the unit",
        phase=Phase.MEASURE,
        metavar="LOSS",
    )
    loss: Loss = option(
        "auto",
        "how to compare outputs with those of the float model: for all outputs, or OUTPUT=KIND once per output; kl "
        "means logits or probabilities, whichever the output has, and mse means regression",
        phase=Phase.MEASURE,
        metavar="[OUTPUT=]KIND",
        per="output",
        values=_losses,
    )
    sensitivity: Sensitivity = option(
        "outputs",
        "how to find what each choice loses: outputs (run the network with it) or curvature (estimate all from a few "
        "gradients; faster for large networks; needs ptqc[torch])",
        phase=Phase.MEASURE,
        metavar="HOW",
    )
    bits: tuple[int, ...] = option((2, 3, 4, 5, 6, 7, 8), "bit widths to try for weights", metavar="N,…", parse=widths)
    formats: tuple[str, ...] = option(
        (),
        "families of weight formats to try (default: all that suit the model). In models of 131,072 weights or more, "
        "tcq (trellis codes) takes the place of codebook and pairs, except for weights with heavy tails; entropy (for "
        "32,768 to 67 million weights) takes that of int5 to int7, codebook4, pairs8 and tcq5 in layers of 16,384 "
        "weights or more; safe (8 bits, no pair of which saturates) is tried with --allow-8bit. With int and codebook "
        "alone, weights of up to 4 bits stay packed in the memory of a native library",
        metavar="NAME,…",
        parse=names,
        values=families,
    )
    sparsity: Sparsity = option(
        "given",
        "given (keep the zeros that the model has, and add none) or 2:4 (set two weights of every four neighbouring "
        "input channels to zero)",
        metavar="KIND",
    )
    scales: Scales = option(
        "free",
        "free, or pow2: powers of two only, for weights and activations, for hardware that rescales with a shift "
        "instead of a multiplier; costs accuracy",
        metavar="KIND",
    )
    runtime: Runtime = option(
        "onnxruntime",
        "the runtime that the plan is made for: onnxruntime, or arm (the same file on Arm processors, where 8-bit "
        "weights are exact: implies --allow-8bit); with --target qdq or litert: openvino, litert (everything on "
        "integers), qnn (16 bits where 8 lose too much), tensorrt (symmetric, at layers and additions), xdna "
        "(symmetric everywhere, scales that are powers of two); with --target c: c (everything on integers, weights "
        "of up to 8 bits)",
        group="targets",
        metavar="RUNTIME",
        flag="for",
    )
    allow_8bit: bool = option(
        False,
        "allow 8-bit weights on integer kernels; in layers with an even number of inputs, they are chosen so that "
        "no CPU saturates",
    )
    seed: int = option(
        0,
        "seed of what is drawn: the places in each sample that weights are fitted to, signs of rotations, gradients, "
        "synthetic samples; which samples are used does not depend on it",
        metavar="N",
        group="running",
    )
    pipeline: Pipeline = option(
        "light",
        "light, or advanced: more reconstructions and, if torch is installed, gradient steps, where these lower the "
        "loss on held-back samples",
        phase=Phase.FIT,
        metavar="KIND",
    )
    time_limit: float = option(
        0.0,
        "90s, 5m or 1h (in Python: seconds; 0: no limit): after this time, begin nothing that only improves the "
        "result; a limit too short for a usable file is refused",
        phase=Phase.FIT,
        group="limits",
        metavar="TIME",
        parse=parse_seconds,
    )
    cast_double: bool = option(
        False,
        "accept a float64 model: it will compute in float32, and its inputs and outputs stay float64",
        group="running",
    )
    float_layers: FloatLayers = option(
        "auto",
        "how convolutions that stay in float read their inputs: as float32, as bfloat16 (where that loses little), or "
        "auto: bfloat16 if the cpu target is built for processors that multiply it faster",
        phase=Phase.FIT,
        metavar="TYPE",
    )
    inline: bool = option(
        False,
        "write no model-local functions, for runtimes that do not inline them; the file is a little larger",
        phase=Phase.FIT,
        group="targets",
    )
    operators: Operators = option(
        "standard",
        "standard; onnxruntime: float matmuls and embeddings may use ONNX Runtime's MatMulNBits and "
        "GatherBlockQuantized, whose weights of 4 or 8 bits stay packed in memory; such a file runs only in ONNX "
        "Runtime; or dequantize: float matmuls read weights of 4 or 8 bits through DequantizeLinear, a standard "
        "operator, and ONNX Runtime 1.25 or newer keeps them packed",
        phase=Phase.FIT,
        group="targets",
        metavar="SET",
    )
    rewrites: tuple[str, ...] = option(
        (),
        "apply a graph rewrite that an installed package adds (see `ptqc passes`); may be repeated",
        metavar="NAME",
        flag="rewrite",
    )
    kv_cache: KvCache = option(
        "float",
        "how a decoder stores keys and values of earlier tokens: float (unchanged), float16, int8, int4, bfp4 (block "
        "floating point) or bfp4-sorted (channels sorted by energy), all of which change its inputs and outputs; for "
        "all caches, or INPUT=KIND once per input; a budget such as 25%cache chooses for all other caches",
        metavar="[INPUT=]KIND",
        per="input",
        values=lambda: get_args(CacheKind),
    )

    def __post_init__(self) -> None:
        self._check_names()
        for name, kind in get_type_hints(type(self)).items():
            if get_origin(kind) is Literal:
                one_of(name, getattr(self, name), get_args(kind))
        if self.samples < 2:
            raise UsageError(f"samples is {self.samples}; give at least 2, since one of them is held back")
        if not self.bits or any(not NARROWEST <= b <= WIDEST for b in self.bits):
            raise UsageError(f"bits is {self.bits}; give widths from {NARROWEST} to {WIDEST}")
        self._check_portable()
        self._check_float8()
        if not 0 <= self.activation_limit < math.inf:
            raise UsageError(f"activation_limit is {self.activation_limit}; give a loss of 0 or more")
        if not 0 <= self.time_limit < math.inf:
            raise UsageError(f"time_limit is {self.time_limit:g}; give seconds, or 0 for no limit")
        if self.seed < 0:
            raise UsageError(f"seed is {self.seed}; it cannot be negative")

    def _check_portable(self) -> None:
        """Wider weights on integer kernels have to be asked for."""
        from ptqc.formats import PORTABLE_BITS

        if min(self.bits) > PORTABLE_BITS and self.has_codes and not self.allow_8bit:
            raise UsageError(
                f"bits is {self.bits}, but weights on integer kernels have at most {PORTABLE_BITS} bits unless "
                "allow_8bit is given: give allow_8bit, or narrower widths as well, or activations float"
            )

    def _check_float8(self) -> None:
        """Other numbers than FP8 cannot be asked for as well."""
        others = {"sparsity": ("2:4",), "operators": ("onnxruntime", "dequantize"), "float_layers": ("bfloat16",)}
        requested = [name for name, values in others.items() if getattr(self, name) in values]
        requested += ["formats"] if self.formats else []
        if self.in_float8 and requested:
            message = ", ".join(f"{name} is {getattr(self, name)!r}" for name in requested)
            raise UsageError(
                f"activations is 'float8' and {message}, which concerns other formats: give one of the two"
            )

    def _check_names(self) -> None:
        """Names that others register; their modules load ONNX Runtime, which the command line does not wait for."""
        from ptqc.calibration.ranges import check_method

        if self.observer != "auto":
            check_method(self.observer)
        if wrong := set(self.formats) - set(known := families()):
            raise unknown("format", wrong, known)
        one_of_each("loss", self.loss, "output", possible_values("loss"))
        one_of_each("kv_cache", self.kv_cache, "input", possible_values("kv_cache"))

    @property
    def rules(self) -> RuntimeRules:
        """What the runtime demands that the plan is solved for."""
        return RULES[self.runtime]

    @property
    def has_codes(self) -> bool:
        """Whether activations may be integer codes."""
        return self.activations in ("auto", "integer")

    @property
    def in_blocks(self) -> bool:
        """Whether products in float may keep their weights packed in memory."""
        return self.operators != "standard"

    @property
    def in_float8(self) -> bool:
        """Whether layers multiply FP8."""
        return self.activations == "float8"

    @classmethod
    def names(cls, first: Phase = Phase.SOLVE) -> list[str]:
        """The options that nothing before a phase reads."""
        return [option.name for option in fields(cls) if option.metadata["phase"] >= first]

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "CompileOptions":
        """Options from their names and values.

        Raises UsageError for an unknown one, naming the known ones, and for values of the wrong type.
        """
        types = get_type_hints(cls)
        if values.keys() - types:
            raise unknown("option", values.keys() - types, types)
        declared = {name: _declared(name, types[name], value) for name, value in values.items()}
        runtime = declared.get("runtime", cls.runtime)
        one_of("runtime", runtime, tuple(RULES))
        return replace(cls(), **{**RULES[runtime].defaults, **declared})

    def to_json(self) -> dict[str, Any]:
        """The document for manifests."""
        document = {**asdict(self), **{name: list(getattr(self, name)) for name in ("bits", "formats", "rewrites")}}
        for name in ("formats", "runtime", "sensitivity"):  # what was measured before there was a choice serves still
            if getattr(self, name) == getattr(type(self), name):
                del document[name]
        return document

    def until(self, phase: Phase) -> dict[str, Any]:
        """Of the document, what this phase and those before it read."""
        read = {option.name for option in fields(self) if option.metadata["phase"] <= phase}
        return {name: value for name, value in self.to_json().items() if name in read}


def possible_values(name: str) -> tuple[str, ...]:
    """The values that an option takes, where these have names; help lists them."""
    kind = get_type_hints(CompileOptions)[name]
    if get_origin(kind) is Literal:
        return get_args(kind)
    values: Callable[[], tuple[str, ...]] | None = CompileOptions.__dataclass_fields__[name].metadata["values"]
    return values() if values else ()


_ENTRIES = "\n".join(wrapped(f"{one.name}: {one.metadata['help']}.", "    ") for one in fields(CompileOptions))
CompileOptions.__doc__ = f"{CompileOptions.__doc__}\n\nArgs:\n{_ENTRIES}\n"


class FitKeywords(TypedDict, total=False):
    """The options that `ptqc.resolve` takes, for type checkers: those of `Phase.FIT`."""

    pipeline: Pipeline
    time_limit: float
    float_layers: FloatLayers
    inline: bool
    operators: Operators


class Keywords(FitKeywords, total=False):
    """All fields of `CompileOptions` as `ptqc.compile` takes them; a test holds them together."""

    samples: int
    observer: RangeMethodName
    activations: Activations
    activation_limit: float
    loss: Loss
    sensitivity: Sensitivity
    bits: tuple[int, ...]
    formats: tuple[str, ...]
    sparsity: Sparsity
    scales: Scales
    runtime: Runtime
    allow_8bit: bool
    seed: int
    cast_double: bool
    rewrites: tuple[str, ...]
    kv_cache: KvCache


def _declared(name: str, kind: object, value: Any) -> Any:
    """A number, a flag or widths as the field has them; what else it may be, the field itself checks."""
    if kind is bool and not isinstance(value, bool):
        raise UsageError(f"{name} is {shown(value)}; give True or False")
    if kind is int:
        return _whole(name, value)
    if kind is float:
        if isinstance(value, bool) or not isinstance(value, Real):
            raise UsageError(f"{name} is {shown(value)}; give a number")
        return float(value)
    if kind == tuple[int, ...]:
        if not isinstance(value, Sequence) or isinstance(value, str):
            raise UsageError(f"{name} is {shown(value)}; give widths, as in (2, 4, 8)")
        return tuple(_whole(name, width) for width in value)
    if kind == tuple[str, ...]:
        if not isinstance(value, Sequence) or isinstance(value, str) or not all(isinstance(x, str) for x in value):
            raise UsageError(f"{name} is {shown(value)}; give a list of names")
        return tuple(value)
    return value


def _whole(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise UsageError(f"{name} is {shown(value)}; give a whole number")
    return int(value)
