"""What a target for a runtime of others is compared with: the packed file in ONNX Runtime, and the float model."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import islice
from typing import Any, ClassVar, Self

import numpy as np
import onnx
import onnx_ir as ir

from ptqc.calibration.ranges import affine_params
from ptqc.codegen.foreign.qdq_form import open_outputs, qdq_model
from ptqc.codegen.targets import TargetInput
from ptqc.errors import TargetError, VerificationError
from ptqc.execution.agreement import allowed, relative
from ptqc.execution.onnxruntime import Feeds, Runner, tensors_of
from ptqc.formats import UINT8, QuantParams
from ptqc.ir import recorded, zipmaps
from ptqc.ir.external import is_split
from ptqc.losses import OutputLoss
from ptqc.runtime.foreign import RuntimeCheck

# Samples of the calibration split that the ranges of outputs are taken from, and by how much they are widened.
RANGED_SAMPLES, MARGIN = 256, 0.05


class ForeignTarget:
    """What such targets have in common; see `ptqc.codegen.targets.Target`."""

    name: ClassVar[str]

    def check_present(self) -> None:
        """Nothing needs to be installed."""

    def check_sizes(self, row_shapes: Collection[tuple[tuple[int, ...], ...]], model: ir.Model) -> None:
        """Raises TargetError for samples of several sizes: the shapes of the model are fixed."""
        del model
        if len(row_shapes) > 1:
            raise TargetError(
                f"the {self.name} target fixes the shapes of the model, and the samples have {len(row_shapes)} sizes; "
                "give samples of one size (text of one length: --padding and --length)"
            )

    def check_kernels(self, model: ir.Model) -> None:
        """Raises TargetError for a model whose outputs are no tensors, or cannot be compared."""
        if zipmaps.remembered(model):
            raise TargetError(
                f"the {self.name} target gives tensors, and the model ends in a ZipMap; export it without one"
            )
        if stand_ins := recorded.remembered(model):
            name, operator = next(iter(stand_ins.items()))
            raise TargetError(
                f"the {self.name} target takes no models that give something else in every run, and "
                f"{name!r} is the output of a {operator}"
            )

    def gains_by_bfloat16(self, options: object) -> bool:
        """Codes are what these runtimes gain by."""
        del options
        return False

    def multiplies_float8(self) -> bool:
        """No runtime that it is for does."""
        return False

    def fuses_conversions(self) -> bool:
        """The plan is that of the packed file."""
        return False


@dataclass(frozen=True)
class CheckedModel:
    """A QDQ model, and outputs that it is compared with, sample by sample.

    packed: of the packed file. rounded: parameters of the outputs that only the QDQ model rounds. rounding: how far
    outputs may be from what they should be by what else only the QDQ model rounds.
    """

    source: TargetInput
    model: onnx.ModelProto
    packed: Sequence[Feeds]
    rounded: Mapping[str, QuantParams]
    rounding: float = 0.0

    @classmethod
    def of(cls, source: TargetInput, *, rounds_outputs: bool = True, wide: bool = False) -> Self:
        """Build the model. Raises TargetError where it is too large.

        rounds_outputs: that layers give in float, to 8 bits. wide: see `qdq_model`.
        """
        if is_split(source.exported.proto):
            raise TargetError("models of more than 2 GB are written for ONNX Runtime alone")
        runner = Runner(source.exported.proto)
        packed = [tensors_of(runner.run(feeds)) for feeds in source.samples]
        rounded = _output_params(source, runner) if rounds_outputs else {}
        model = qdq_model(source.lowered, source.exported, source.samples[0], packed[0], rounded, wide=wide)
        onnx.checker.check_model(model, full_check=True)
        return cls(source, model, packed, rounded)

    @cached_property
    def wanted(self) -> Sequence[Feeds]:
        """Outputs of the packed file as the QDQ model rounds them."""
        rounded = self.rounded
        return [
            {name: rounded[name].rounded(array) if name in rounded else array for name, array in outputs.items()}
            for outputs in self.packed
        ]

    def distance(self, outputs: Sequence[Feeds]) -> float:
        """How far the output that differs most is from what it should be; 0 where all are equal."""
        pairs = (([one[name] for one in self.wanted], [one[name] for one in outputs]) for name in self.packed[0])
        return max((_distance(*pair) for pair in pairs), default=0.0)

    def check(self, outputs: Sequence[Feeds], where: str) -> None:
        """Raises VerificationError where outputs are further from what they should be than two right executions are.

        Of outputs that are no real numbers the share counts that differs.
        """
        for name in self.packed[0]:
            real, packed, wanted = ([one[name] for one in several] for several in (self.real, self.packed, self.wanted))
            difference = _distance(wanted[: len(outputs)], [one[name] for one in outputs])
            limit = allowed(max(_distance(real, packed), self.rounding))
            if not difference <= limit:
                raise VerificationError(
                    f"{where} gives something else for output {name!r} than the packed file: {difference:.1%} of it "
                    f"(allowed {limit:.1%})"
                )

    @cached_property
    def real(self) -> Sequence[Feeds]:
        """Outputs of the float model."""
        runner = Runner(self.source.model)
        return [tensors_of(runner.run(feeds)) for feeds in self.source.samples]

    def as_run(self, title: str, outputs: Sequence[Feeds], placement: str, note: str = "") -> dict[str, Any]:
        """What running it in a runtime showed; see `RuntimeCheck`."""
        real = self.real
        measure = OutputLoss.of(self.source.kinds, real)
        losses = measure.mean(real, outputs), measure.mean(real, self.packed)
        return asdict(RuntimeCheck(title, note, *losses, measure.unit, len(real), placement))


def _distance(wanted: Sequence[np.ndarray], arrays: Sequence[np.ndarray]) -> float:
    """The relative distance of real numbers; of others, the share that differs."""
    if wanted[0].dtype.kind == "f":
        return relative(wanted, arrays)
    pairs = list(zip(wanted, arrays, strict=True))
    if any(a.shape != b.shape for a, b in pairs):
        return math.inf
    return float(np.mean([np.mean(a != b) for a, b in pairs if a.size] or [0.0]))


def ranged_samples(source: TargetInput) -> Iterator[Feeds]:
    """The calibration samples that ranges are taken from. Raises TargetError where none has the size of the model."""
    shapes = {name: array.shape for name, array in source.samples[0].items()}
    alike = (feeds for feeds in source.calibration if {name: a.shape for name, a in feeds.items()} == shapes)
    first = next(alike, None)
    if first is None:
        raise TargetError("no calibration sample has the size of the samples that the QDQ model is built for")
    yield first
    yield from islice(alike, RANGED_SAMPLES - 1)


def _output_params(source: TargetInput, runner: Runner) -> dict[str, QuantParams]:
    """Parameters of the outputs that layers give in float: what the packed file gives on calibration samples."""
    names = open_outputs(source.lowered)
    if not names:
        return {}
    low, high = dict.fromkeys(names, 0.0), dict.fromkeys(names, 0.0)
    for feeds in ranged_samples(source):
        outputs = runner.run(feeds)
        for name in names:
            low[name] = min(low[name], float(outputs[name].min(initial=0.0)))
            high[name] = max(high[name], float(outputs[name].max(initial=0.0)))
    params = {name: affine_params(low[name] * (1 + MARGIN), high[name] * (1 + MARGIN), 8) for name in names}
    return {name: QuantParams(UINT8, float(scale), int(zero)) for name, (scale, zero) in params.items()}
