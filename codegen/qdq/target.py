"""Building the target qdq: the QDQ model, compared with the packed file in ONNX Runtime and in others."""

import math
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

from ptqc.calibration.ranges import affine_params
from ptqc.codegen.onnxruntime.verify import take
from ptqc.codegen.qdq.graph import open_outputs, qdq_model
from ptqc.codegen.qdq.options import INSTALLED, RUNTIMES, QdqOptions
from ptqc.codegen.qdq.rules import violations
from ptqc.codegen.qdq.symmetric import for_tensorrt, signed
from ptqc.codegen.targets import Target, TargetInput, TargetOutput
from ptqc.errors import TargetError, VerificationError
from ptqc.execution.agreement import allowed, relative
from ptqc.execution.onnxruntime import Feeds, Runner, tensors_of
from ptqc.formats import UINT8, QuantParams
from ptqc.ir import recorded, reference, zipmaps
from ptqc.ir.external import is_split
from ptqc.ir.lowered import Lowered
from ptqc.losses import OutputLoss
from ptqc.runtime.foreign import ForeignRun, check_installed, is_installed, run_in
from ptqc.runtime.qnn import USUAL_CHIP
from ptqc.utils.progress import SILENT_STAGE, Stage

FILE = "model.onnx"
# Samples of the calibration split that the ranges of outputs are taken from, and by how much they are widened.
RANGED_SAMPLES, MARGIN = 64, 0.05
SHOWN = 3
# Runtimes that nothing here stands for, and the form of a model for them.
UNTRIED: Mapping[str, Callable[[onnx.ModelProto], onnx.ModelProto]] = {"tensorrt": for_tensorrt, "xdna": signed}


class QdqTarget:
    """The target as a compile knows it; see `ptqc.codegen.targets.Target`."""

    def check_options(self, options: QdqOptions) -> None:
        """Raises TargetError where a runtime that is named, or the compiler of a chip, is not installed."""
        for name in (*options.named_runtimes, *(("qnn",) if options.chips else ())):
            check_installed(name)

    def check_present(self) -> None:
        """Nothing else needs to be installed."""

    def check_sizes(self, row_shapes: Collection[tuple[tuple[int, ...], ...]], model: ir.Model) -> None:
        """Raises TargetError for samples of several sizes: the shapes of the model are fixed."""
        del model
        if len(row_shapes) > 1:
            raise TargetError(
                f"the qdq target fixes the shapes of the model, and the samples have {len(row_shapes)} sizes; "
                "give samples of one size (texts of one length: --padding and --length)"
            )

    def check_kernels(self, model: ir.Model) -> None:
        """Raises TargetError for a model whose outputs a QDQ model cannot have, or cannot be compared."""
        if zipmaps.remembered(model):
            raise TargetError("the qdq target gives tensors, and the model ends in a ZipMap; export it without one")
        if stand_ins := recorded.remembered(model):
            name, operator = next(iter(stand_ins.items()))
            raise TargetError(
                "the qdq target takes no models that give something else in every run, and "
                f"{name!r} is the output of a {operator}"
            )

    def gains_by_bfloat16(self, options: QdqOptions) -> bool:
        """Codes are what these runtimes gain by."""
        del options
        return False

    def multiplies_float8(self) -> bool:
        """No runtime that it is for does."""
        return False

    def fuses_conversions(self) -> bool:
        """The plan is that of the packed file."""
        return False

    def build(
        self,
        source: TargetInput,
        options: QdqOptions,
        store: Path,
        folder: Path,
        stage: Stage = SILENT_STAGE,
    ) -> TargetOutput:
        """One model, and a context binary for each chip. Raises VerificationError where it computes something else."""
        del store
        self.check_sizes({tuple(array.shape for array in feeds.values()) for feeds in source.samples}, source.model)
        if is_split(source.exported.proto):
            raise TargetError("the qdq target writes models of up to 2 GB, and this one is larger")
        checked = _Checked.of(source)
        path = folder / FILE
        data = checked.delivered.SerializeToString()
        path.write_bytes(data)
        document: dict[str, object] = {
            "bytes": len(data),
            "bytes_zipped": len(zlib.compress(data, 9)),
            "onnxruntime": checked.in_onnxruntime(),
        }
        files = {FILE: path}
        if source.runtime in UNTRIED:
            document[source.runtime] = checked.by_rules()
        for name in RUNTIMES if source.runtime not in UNTRIED else ():
            document[name] = checked.in_runtime(name, path, options)
            stage.advance(name)
        for chip in options.named_chips:
            context = checked.context(chip, path, folder)
            files[context.name] = context
            document[f"{chip}_bytes"] = context.stat().st_size
            stage.advance(chip)
        return TargetOutput(files, document)


@dataclass(frozen=True)
class _Checked:
    """A QDQ model, and outputs that it is compared with, sample by sample.

    packed: of the packed file. rounded: parameters of the outputs that only the QDQ model rounds.
    """

    source: TargetInput
    model: onnx.ModelProto
    packed: Sequence[Feeds]
    rounded: Mapping[str, QuantParams]

    @classmethod
    def of(cls, source: TargetInput) -> "_Checked":
        """Build the model. Raises VerificationError where it breaks a rule that every runtime has."""
        runner = Runner(source.exported.proto)
        packed = [tensors_of(runner.run(feeds)) for feeds in source.samples]
        rounded = {} if source.runtime in UNTRIED else _output_params(source, runner)
        model = qdq_model(source.lowered, source.exported, source.samples[0], packed[0], rounded)
        onnx.checker.check_model(model, full_check=True)
        if broken := violations(model, "onnxruntime"):
            raise VerificationError(f"the QDQ model breaks a rule: {broken[0]}")
        return cls(source, model, packed, rounded)

    def in_onnxruntime(self) -> str:
        """How it agrees with the packed file in ONNX Runtime. Raises VerificationError where it does not."""
        runner = Runner(self.model)
        wanted = [_rounded(outputs, self.rounded) for outputs in self.packed]
        outputs = [tensors_of(runner.run(feeds)) for feeds in self.source.samples]
        distance = max(_distances(wanted, outputs), default=0.0)
        if distance:  # float parts and tables round otherwise
            self._check(outputs, "ONNX Runtime")
        expected = _expected(self.source.lowered, self.rounded)
        missed = take(self.model, expected).missed
        told = f"outputs within {distance:.1e} of their size" if distance else "outputs equal"
        return (
            f"{told} on {len(outputs)} samples; {len(expected) - len(missed)} of {len(expected)} operators on integers"
        )

    @cached_property
    def delivered(self) -> onnx.ModelProto:
        """The model in the form of the runtime that the plan was solved for."""
        form = UNTRIED.get(self.source.runtime)
        return self.model if form is None else form(self.model)

    def by_rules(self) -> str:
        """What can be said of a form that no runtime here takes. Raises VerificationError where it breaks a rule."""
        onnx.checker.check_model(self.delivered, full_check=True)
        if broken := violations(self.delivered, self.source.runtime):
            raise VerificationError(f"the QDQ model breaks a rule of {self.source.runtime}: {broken[0]}")
        runner = Runner(self.delivered)
        self._check([tensors_of(runner.run(feeds)) for feeds in self.source.samples], "ONNX Runtime")
        return "not run; breaks none of its rules, and computes the same in ONNX Runtime up to rounding"

    def in_runtime(self, name: str, path: Path, options: QdqOptions) -> str:
        """What running it elsewhere showed. Raises VerificationError where it computes something else there.

        Raises TargetError where a runtime that the user named does not take it.
        """
        if options.runtimes != INSTALLED and name not in options.named_runtimes:
            return "not verified: not asked for"
        if not is_installed(name):
            return f"not verified: pip install 'ptqc[{name}]'"
        try:
            run = run_in(name, path, self.source.samples)
        except TargetError as error:
            if name in options.named_runtimes:
                raise
            return f"not verified: {error}"
        self._check(run.outputs, run.name)
        where = f" (emulator of {USUAL_CHIP})" if name == "qnn" else ""
        return f"{run.name}{where}: {self._loss(run)}; {run.placement}{self._reasons(name, run)}"

    def context(self, chip: str, path: Path, folder: Path) -> Path:
        """The context binary for a chip, under its name in the artifact."""
        run = run_in("qnn", path, self.source.samples[:1], folder, chip=chip)
        self._check(run.outputs, f"{run.name} for {chip}")
        (written,) = run.files.values()
        return written.rename(folder / f"{chip}.bin")

    def _check(self, outputs: Sequence[Feeds], where: str) -> None:
        """Raise VerificationError where outputs are further from the packed file's than two right executions are."""
        for name, array in self.packed[0].items():
            if array.dtype.kind != "f":
                continue
            real, ours = ([sample[name] for sample in several] for several in (self._real, self.packed))
            difference = relative(ours[: len(outputs)], [sample[name] for sample in outputs])
            limit = allowed(relative(real, ours))
            if not difference <= limit:
                raise VerificationError(
                    f"{where} gives something else for output {name!r} than ONNX Runtime: {difference:.1%} of its size "
                    f"away (allowed {limit:.1%})"
                )

    @cached_property
    def _real(self) -> Sequence[Feeds]:
        runner = Runner(self.source.model)
        return [tensors_of(runner.run(feeds)) for feeds in self.source.samples]

    def _loss(self, run: ForeignRun) -> str:
        """The loss there beside that in ONNX Runtime."""
        real = self._real
        measure = OutputLoss.of(self.source.kinds, real)
        here, there = measure.mean(real, self.packed), measure.mean(real, run.outputs)
        return f"loss {there:.3g} {measure.unit} on {len(real)} samples, {here:.3g} in ONNX Runtime"

    def _reasons(self, name: str, run: ForeignRun) -> str:
        """Why it is not all on integers there, as far as rules say."""
        if not (run.placement.others or run.placement.elsewhere):
            return ""
        return "".join(f"; {one}" for one in violations(self.model, name)[:SHOWN])


def _output_params(source: TargetInput, runner: Runner) -> dict[str, QuantParams]:
    """Parameters of the outputs that layers give in float: what the packed file gives on calibration samples."""
    names = open_outputs(source.lowered)
    if not names:
        return {}
    shapes = {name: array.shape for name, array in source.samples[0].items()}
    low, high = dict.fromkeys(names, 0.0), dict.fromkeys(names, 0.0)
    count = 0
    for feeds in source.calibration:
        if count == RANGED_SAMPLES or {name: array.shape for name, array in feeds.items()} != shapes:
            continue
        count += 1
        outputs = runner.run(feeds)
        for name in names:
            low[name] = min(low[name], float(outputs[name].min(initial=0.0)))
            high[name] = max(high[name], float(outputs[name].max(initial=0.0)))
    if not count:
        raise TargetError("no calibration sample has the size of the samples that the QDQ model is built for")
    params = {name: affine_params(low[name] * (1 + MARGIN), high[name] * (1 + MARGIN), 8) for name in names}
    return {name: QuantParams(UINT8, float(scale), int(zero)) for name, (scale, zero) in params.items()}


def _rounded(outputs: Feeds, rounded: Mapping[str, QuantParams]) -> dict[str, np.ndarray]:
    """Outputs of the packed file as the QDQ model gives them."""
    return {name: rounded[name].rounded(array) if name in rounded else array for name, array in outputs.items()}


def _distances(wanted: Sequence[Feeds], outputs: Sequence[Feeds]) -> Iterator[float]:
    """How far each output is from what it should be, relatively; 0 where it is equal."""
    for name in wanted[0]:
        pairs = [(one[name], other[name]) for one, other in zip(wanted, outputs, strict=True)]
        if all(np.array_equal(*pair, equal_nan=pair[0].dtype.kind == "f") for pair in pairs):
            yield 0.0
        elif pairs[0][0].dtype.kind in "fiu":
            yield relative(*zip(*pairs, strict=True))
        else:
            yield math.inf


def _expected(lowered: Lowered, rounded: Mapping[str, QuantParams]) -> dict[str, tuple[str, str]]:
    """The operators that should be integer kernels in ONNX Runtime; see `verify.take`."""
    steps = reference.steps(lowered)
    codes = {name: f"{name}{lowered.mark}codes" for name in rounded}
    return {step.output: (step.node.op_type, codes.get(step.output, step.output)) for step in steps}


TARGET: Target[QdqOptions] = QdqTarget()
