"""What a user can choose about a compile. Defaults are the same for every model."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from enum import IntEnum
from numbers import Integral, Real
from typing import Any, Literal, TypedDict, get_args, get_type_hints

from ptqc.calibration.ranges import Observer, check_method
from ptqc.errors import UsageError
from ptqc.formats import Format
from ptqc.losses import AUTO, NAMES
from ptqc.utils.arguments import one_of, shown, unknown

Activations = Literal["auto", "integer", "float", "float8"]
Loss = str | Mapping[str, str]
Operators = Literal["standard", "onnxruntime"]
CacheKind = Literal["float", "float16", "int8", "int4", "bfp4", "bfp4-sorted"]
KvCache = CacheKind | Mapping[str, CacheKind]
Sparsity = Literal["given", "2:4"]
Scales = Literal["free", "pow2"]
Sensitivity = Literal["outputs", "curvature"]
FloatLayers = Literal["auto", "bfloat16", "float32"]
Pipeline = Literal["light", "advanced"]
NARROWEST, WIDEST = 2, 8
# Weights of at most this many bits cannot saturate the 16-bit sums of CPUs without VNNI.
PORTABLE_BITS = 7


class Phase(IntEnum):
    """Phases of a compile, as far as they read different options."""

    SOLVE = 1
    MEASURE = 2
    FIT = 3


# Options that nothing before a phase reads: what was found by then serves all of their values.
READ_BY_MEASURING, READ_BY_FITTING = {"phase": Phase.MEASURE}, {"phase": Phase.FIT}


@dataclass(frozen=True)
class CompileOptions:
    """Options of `ptqc.compile`.

    samples: the most calibration samples to use. observer: how to choose activation ranges. activations: "auto" puts
    layers on integer kernels as far as `activation_limit` allows, "integer" all that can be, "float" none; "float8"
    stores weights as FP8 (E4M3), and rounds to it what layers read as far as `activation_limit` allows.
    activation_limit: the loss that 8-bit activations may cost, in the unit of the loss; 0 means the default. loss: how
    to compare outputs: a name of `ptqc.losses.NAMES` for all, or names by output, such as {"scores": "logits"}.
    sensitivity: how to find what each choice loses: "outputs" runs the network with it, "curvature" estimates all from
    a few gradients (with torch), which takes less time for large networks. bits: the widths to try for weights.
    formats: the families of formats to try for them; none: all. sparsity: "given" prunes nothing and keeps the zeros
    that the model has; "2:4" makes the weights of two of each four neighbouring inputs zero, where a layer has fours.
    scales: of weights and activations; "pow2" allows only powers of two, with which rounding to the next scale is a
    shift. allow_8bit: use 8-bit weights on integer kernels, too; they can saturate on CPUs without VNNI. seed: of all
    random numbers. pipeline: "advanced" takes the best of more reconstructions and adds gradient steps (with torch),
    each kept only if it lowers the held-back loss. time_limit: seconds; when time gets short, steps that only improve
    the result are left out or use fewer samples; 0 means no limit. cast_double: accept a float64 model and compute in
    float32; its inputs and outputs stay float64. float_layers: the inputs of convolutions that stay in float.
    "bfloat16" rounds them as far as that loses little, "float32" keeps them, and "auto" takes bfloat16 if a native
    library is built for an instruction set that multiplies it faster. inline: write no model-local functions, for
    runtimes that do not inline them; the file is a little larger. operators: "onnxruntime" allows ONNX Runtime's own
    operators: products in float keep weights of 4 or 8 bits packed in memory, and round their inputs to 8 bits, block
    by block; such a file runs nowhere else. rewrites: names of rewrites that installed packages add, which run on the
    normal form; `ptqc passes` lists them. kv_cache: how a decoder keeps keys and values of earlier tokens: "float"
    leaves it as it is; "float16", "int8", "int4", "bfp4" (block floating point) and "bfp4-sorted" (its channels sorted
    by energy) change its inputs and outputs; for all caches, or by input, such as {"past_key_0": "int4"}. A budget such
    as "25%cache" chooses for caches of which nothing is said.
    """

    samples: int = 256
    observer: Observer = field(metadata=READ_BY_MEASURING, default="auto")
    activations: Activations = field(metadata=READ_BY_MEASURING, default="auto")
    activation_limit: float = field(metadata=READ_BY_MEASURING, default=0.0)
    loss: Loss = field(metadata=READ_BY_MEASURING, default=AUTO)
    sensitivity: Sensitivity = field(metadata=READ_BY_MEASURING, default="outputs")
    bits: tuple[int, ...] = (2, 3, 4, 5, 6, 7, 8)
    formats: tuple[str, ...] = ()
    sparsity: Sparsity = "given"
    scales: Scales = "free"
    allow_8bit: bool = field(metadata=READ_BY_MEASURING, default=False)
    seed: int = 0
    pipeline: Pipeline = field(metadata=READ_BY_FITTING, default="light")
    time_limit: float = field(metadata=READ_BY_FITTING, default=0.0)
    cast_double: bool = False
    float_layers: FloatLayers = field(metadata=READ_BY_FITTING, default="auto")
    inline: bool = field(metadata=READ_BY_FITTING, default=False)
    operators: Operators = field(metadata=READ_BY_FITTING, default="standard")
    rewrites: tuple[str, ...] = ()
    kv_cache: KvCache = "float"

    def __post_init__(self) -> None:
        if self.observer != "auto":
            check_method(self.observer)
        one_of("activations", self.activations, get_args(Activations))
        if not set(self.formats) <= set(known := _families()):
            raise unknown("format", set(self.formats) - set(known), known)
        self._check_loss()
        self._check_caches()
        one_of("pipeline", self.pipeline, get_args(Pipeline))
        one_of("float_layers", self.float_layers, get_args(FloatLayers))
        one_of("scales", self.scales, get_args(Scales))
        one_of("sparsity", self.sparsity, get_args(Sparsity))
        one_of("sensitivity", self.sensitivity, get_args(Sensitivity))
        one_of("operators", self.operators, get_args(Operators))
        if self.samples < 2:
            raise UsageError(f"samples is {self.samples}; give at least 2, since one of them is held back")
        if not self.bits or any(not NARROWEST <= b <= WIDEST for b in self.bits):
            raise UsageError(f"bits is {self.bits}; give widths from {NARROWEST} to {WIDEST}")
        if min(self.bits) > self.widest_on_integers and self.has_codes:
            raise UsageError(
                f"bits is {self.bits}, but weights on integer kernels have at most {PORTABLE_BITS} bits unless "
                "allow_8bit is given: give allow_8bit, or narrower widths as well, or activations float"
            )
        self._check_float8()
        if not 0 <= self.activation_limit < math.inf:
            raise UsageError(f"activation_limit is {self.activation_limit}; give a loss of 0 or more")
        if not 0 <= self.time_limit < math.inf:
            raise UsageError(f"time_limit is {self.time_limit:g}; give seconds, or 0 for no limit")
        if self.seed < 0:
            raise UsageError(f"seed is {self.seed}; it cannot be negative")

    def _check_float8(self) -> None:
        """Other numbers than FP8 cannot be asked for as well."""
        others = {"sparsity": "2:4", "operators": "onnxruntime", "float_layers": "bfloat16"}
        asked = [name for name, value in others.items() if getattr(self, name) == value]
        asked += ["formats"] if self.formats else []
        if self.in_float8 and asked:
            told = ", ".join(f"{name} is {getattr(self, name)!r}" for name in asked)
            raise UsageError(f"activations is 'float8' and {told}, which concerns other numbers: give one of the two")

    def _check_loss(self) -> None:
        by_output = {"": self.loss} if isinstance(self.loss, str) else self.loss
        for output, kind in by_output.items():
            one_of(f"loss of output {output!r}" if output else "loss", kind, NAMES)

    def _check_caches(self) -> None:
        by_input = {"": self.kv_cache} if isinstance(self.kv_cache, str) else self.kv_cache
        for name, kind in by_input.items():
            one_of(f"kv_cache of {name!r}" if name else "kv_cache", kind, get_args(CacheKind))

    @property
    def has_codes(self) -> bool:
        """Whether activations may be integer codes."""
        return self.activations in ("auto", "integer")

    @property
    def widest_on_integers(self) -> int:
        """Bits that a weight on an integer kernel has at most."""
        return WIDEST if self.allow_8bit else PORTABLE_BITS

    @property
    def in_blocks(self) -> bool:
        """Whether products in float may keep their weights packed in memory, in an operator of ONNX Runtime's own."""
        return self.operators == "onnxruntime"

    @property
    def in_float8(self) -> bool:
        """Whether layers multiply FP8."""
        return self.activations == "float8"

    @classmethod
    def names(cls) -> list[str]:
        """The options that there are."""
        return [option.name for option in fields(cls)]

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> "CompileOptions":
        """Options from their names and values.

        Raises UsageError for an unknown one, naming the known ones, and for values of the wrong type.
        """
        types = get_type_hints(cls)
        if given.keys() - types:
            raise unknown("option", given.keys() - types, types)
        return replace(cls(), **{name: _declared(name, types[name], value) for name, value in given.items()})

    def to_json(self) -> dict[str, Any]:
        """The document for manifests."""
        document = {**asdict(self), **{name: list(getattr(self, name)) for name in ("bits", "formats", "rewrites")}}
        for name in ("formats", "sensitivity"):  # what was measured before there was a choice serves still
            if getattr(self, name) == getattr(type(self), name):
                del document[name]
        return document

    def until(self, phase: Phase) -> dict[str, Any]:
        """Of the document, what this phase and those before it read."""
        read = {option.name for option in fields(self) if option.metadata.get("phase", Phase.SOLVE) <= phase}
        return {name: value for name, value in self.to_json().items() if name in read}


class Keywords(TypedDict, total=False):
    """The fields of `CompileOptions` as `ptqc.compile` takes them, for type checkers; a test holds the two together."""

    samples: int
    observer: Observer
    activations: Activations
    activation_limit: float
    loss: Loss
    sensitivity: Sensitivity
    bits: tuple[int, ...]
    formats: tuple[str, ...]
    sparsity: Sparsity
    scales: Scales
    allow_8bit: bool
    seed: int
    pipeline: Pipeline
    time_limit: float
    cast_double: bool
    float_layers: FloatLayers
    inline: bool
    operators: Operators
    rewrites: tuple[str, ...]
    kv_cache: KvCache


def _families() -> list[str]:
    """Of formats that weights can be rounded to without anything else that is asked for."""
    widths = range(NARROWEST, WIDEST + 1)
    return [family.family for family in Format.families if family.by_default and family.offered(widths)]


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
