"""What a user can choose about a compile. Defaults are the same for every model."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal, TypedDict, get_args, get_type_hints

from ptqc.arguments import shown, unknown
from ptqc.calibration.ranges import Observer
from ptqc.errors import UsageError
from ptqc.losses import AUTO, NAMES

Activations = Literal["auto", "integer", "float"]
Loss = str | Mapping[str, str]
FloatLayers = Literal["auto", "bfloat16", "float32"]
Pipeline = Literal["light", "advanced"]
Tuning = Literal["quick", "full"]
InstructionSet = Literal["host", "portable", "avx2", "avx-vnni", "avx512-vnni", "avx512-vbmi", "avx512-bf16", "aarch64"]
DEFAULT_CPU, NOT_TUNED = "host", "off"
NARROWEST, WIDEST = 2, 8
# Weights of at most this many bits cannot saturate the 16-bit sums of CPUs without VNNI.
PORTABLE_BITS = 7


@dataclass(frozen=True)
class CompileOptions:
    """Options of `ptqc.compile`.

    samples: calibration samples used at most. observer: how activation ranges are chosen. activations: "auto" puts
    layers on integer kernels as far as `activation_limit` allows, "integer" all that can be, "float" none.
    activation_limit: loss that 8-bit activations may cost, in the unit of the loss; 0 takes the default. loss: how
    outputs are compared: a name of `ptqc.losses.NAMES` for all, or names by output, as {"scores": "logits"}.
    bits: widths tried for weights. 8-bit weights on integer kernels can saturate on CPUs without VNNI, so they are used
    there only with allow_8bit. seed: of all draws. pipeline: "advanced" takes the best of more reconstructions and adds
    gradient steps (with torch), each kept only where it lowers the held-back loss. time_limit: seconds, for which what
    improves the result is left out or done on fewer samples; 0: none. cast_double: compile a float64 model, in float32
    inside; its inputs and outputs stay float64. float_layers: what convolutions that stay in float read. "bfloat16":
    values rounded to it, as far as that loses little; "float32": values as they are; "auto": bfloat16 where a native
    library is built for an instruction set that multiplies it faster. inline: write no model-local functions, for
    runtimes that do not inline them; the file is a little larger. rewrites: names of rewrites that installed packages
    add, which run on the normal form; `ptqc passes` lists them.
    """

    samples: int = 256
    observer: Observer = "auto"
    activations: Activations = "auto"
    activation_limit: float = 0.0
    loss: Loss = AUTO
    bits: tuple[int, ...] = (2, 3, 4, 5, 6, 7, 8)
    allow_8bit: bool = False
    seed: int = 0
    pipeline: Pipeline = "light"
    time_limit: float = 0.0
    cast_double: bool = False
    float_layers: FloatLayers = "auto"
    inline: bool = False
    rewrites: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _one_of("observer", self.observer, get_args(Observer))
        _one_of("activations", self.activations, get_args(Activations))
        self._check_loss()
        _one_of("pipeline", self.pipeline, get_args(Pipeline))
        _one_of("float_layers", self.float_layers, get_args(FloatLayers))
        if self.samples < 2:
            raise UsageError(f"samples is {self.samples}; at least 2 are needed, one of them held back")
        if not self.bits or any(not NARROWEST <= b <= WIDEST for b in self.bits):
            raise UsageError(f"bits is {self.bits}; give widths from {NARROWEST} to {WIDEST}")
        if min(self.bits) > self.widest_on_integers and self.activations != "float":
            raise UsageError(
                f"bits is {self.bits}, but weights on integer kernels take at most {PORTABLE_BITS} bits unless "
                "allow_8bit is given: give it, narrower widths as well, or activations float"
            )
        if not 0 <= self.activation_limit < math.inf:
            raise UsageError(f"activation_limit is {self.activation_limit}; give a loss of 0 or more")
        if not 0 <= self.time_limit < math.inf:
            raise UsageError(f"time_limit is {self.time_limit:g}; give seconds, or 0 for no limit")
        if self.seed < 0:
            raise UsageError(f"seed is {self.seed}; it cannot be negative")

    def _check_loss(self) -> None:
        by_output = {"": self.loss} if isinstance(self.loss, str) else self.loss
        for output, kind in by_output.items():
            _one_of(f"loss of output {output!r}" if output else "loss", kind, NAMES)

    @property
    def widest_on_integers(self) -> int:
        """Bits that a weight on an integer kernel has at most."""
        return WIDEST if self.allow_8bit else PORTABLE_BITS

    @classmethod
    def of(cls, given: Mapping[str, Any], others: Iterable[str] = ()) -> "CompileOptions":
        """Options by name. others: names that may have been meant, too.

        Raises UsageError for an unknown one, naming the known ones, and for values of the wrong type.
        """
        types = get_type_hints(cls)
        if given.keys() - types:
            raise unknown("option", given.keys() - types, types, others)
        return replace(cls(), **{name: _declared(name, types[name], value) for name, value in given.items()})

    def to_json(self) -> dict[str, Any]:
        """For manifests and store keys."""
        return {**asdict(self), "bits": list(self.bits), "rewrites": list(self.rewrites)}


class Keywords(TypedDict, total=False):
    """The fields of `CompileOptions` as `ptqc.compile` takes them, for type checkers; a test holds the two together."""

    samples: int
    observer: Observer
    activations: Activations
    activation_limit: float
    loss: Loss
    bits: tuple[int, ...]
    allow_8bit: bool
    seed: int
    pipeline: Pipeline
    time_limit: float
    cast_double: bool
    float_layers: FloatLayers
    inline: bool
    rewrites: tuple[str, ...]


@dataclass(frozen=True)
class TargetOptions:
    """What is built beside the ONNX file.

    target: a target of `ptqc.codegen.targets`: "cpu" adds a native library that TVM emits; None nothing. cpu: its
    instruction set, or several separated by commas, each of which gets a library; "host": the best that this machine
    has, "portable": one that every machine of its kind of the last ten years has. allow_missing_target: deliver the
    rest where the target cannot be built. tune: "quick" or "full" times a few or all of the ways to cut each kernel's
    loops on this machine and takes the fastest; "off" none; a folder: takes what an earlier compile recorded there.
    """

    target: str | None = None
    cpu: str = DEFAULT_CPU
    allow_missing_target: bool = False
    tune: str | Path = NOT_TUNED

    def __post_init__(self) -> None:
        if not isinstance(self.cpu, str):
            raise UsageError(f"cpu is {shown(self.cpu)}; give names of instruction sets, separated by commas")
        for name in self.cpu.split(","):
            _one_of("cpu", name, get_args(InstructionSet))
        if not isinstance(self.tune, str | Path) or not str(self.tune):
            raise UsageError(f"tune is {self.tune!r}; give off, quick, full, or a folder that a tuned compile wrote")
        if self.tune != NOT_TUNED and self.target is None:
            raise UsageError(f"tune is {str(self.tune)!r}, but without a target there are no kernels; give target cpu")


def _one_of(name: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        raise UsageError(f"{name} is {value!r}; known: {', '.join(known)}")


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
