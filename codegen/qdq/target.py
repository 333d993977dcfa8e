"""Building the target qdq: the QDQ model, compared with the packed file in ONNX Runtime and in others."""

import zlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import onnx
import onnxruntime as ort

from ptqc.codegen.foreign.comparison import CheckedModel, ForeignTarget, ranged_samples
from ptqc.codegen.onnxruntime.verify import take
from ptqc.codegen.qdq.int4 import with_int4
from ptqc.codegen.qdq.options import INSTALLED, RUNTIMES, QdqOptions
from ptqc.codegen.qdq.rules import CONTROL_FLOW, EIGHT_BITS, WIDE, QdqGraph, violations
from ptqc.codegen.qdq.symmetric import for_tensorrt, signed
from ptqc.codegen.qdq.wide import ValueRange, WideGraph, widths_of, with_16_bits
from ptqc.codegen.targets import Target, TargetInput, TargetOutput
from ptqc.errors import TargetError, VerificationError
from ptqc.execution.onnxruntime import Runner, session_options, tensors_of
from ptqc.formats import QuantParams
from ptqc.ir import reference
from ptqc.ir.lowered import Lowered
from ptqc.ir.runtimes import RULES
from ptqc.runtime.foreign import ForeignRun, RuntimeCheck, check_installed, is_installed, run_in, runtime_named
from ptqc.runtime.qnn import USUAL_CHIP
from ptqc.utils.progress import SILENT_STAGE, Stage

FILE = "model.onnx"
SHOWN = 3
# Where channels differ much in size, 16 bits for all of them move outputs by so much, as those of yolox_nano by 4 %.
ROUNDING_16 = 0.05
RUNTIME = f"ONNX Runtime {ort.__version__}"
# Runtimes that nothing here stands for, and the form of a model for them.
UNTRIED: Mapping[str, Callable[[onnx.ModelProto], onnx.ModelProto]] = {"tensorrt": for_tensorrt, "xdna": signed}


class QdqTarget(ForeignTarget):
    """The target as a compile knows it; see `ptqc.codegen.targets.Target`."""

    name: ClassVar[str] = "qdq"

    def check_options(self, options: QdqOptions) -> None:
        """Raises TargetError where a runtime that is named, or the compiler of a chip, is not installed."""
        for name in (*options.named_runtimes, *(("qnn",) if options.chips else ())):
            check_installed(name)

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
        if source.runtime in UNTRIED and (options.named_runtimes or options.chips or options.int4):
            raise TargetError(
                f"a model for {source.runtime} has its own form: leave --verify-in, --chips and --int4 out"
            )
        is_wide = RULES[source.runtime].wide
        checked = _CheckedQdq.of(source, rounds_outputs=source.runtime not in UNTRIED, wide=is_wide)
        checked = checked.with_16_bits() if is_wide else checked
        checked = replace(checked, model=with_int4(checked.model)) if options.int4 else checked
        if broken := violations(checked.model, "onnxruntime"):
            raise VerificationError(f"the QDQ model breaks a rule: {broken[0]}")
        path = folder / FILE
        data = checked.delivered.SerializeToString()
        path.write_bytes(data)
        document: dict[str, object] = {
            "bytes": len(data),
            "bytes_zipped": len(zlib.compress(data, 9)),
        }
        if widths := widths_of(checked.model):
            document["activations"] = widths
        files, runtimes = {FILE: path}, {"onnxruntime": checked.in_onnxruntime()}
        if source.runtime in UNTRIED:
            runtimes[source.runtime] = asdict(RuntimeCheck(source.runtime, checked.by_rules()))
        for name in RUNTIMES if source.runtime not in UNTRIED else ():
            runtimes[name] = checked.in_runtime(name, path, options)
            stage.advance(name)
        document["runtimes"] = runtimes
        for chip in options.named_chips:
            context = checked.context(chip, path, folder)
            files[context.name] = context
            document[f"{chip}_bytes"] = context.stat().st_size
            stage.advance(chip)
        return TargetOutput(files, document)


class _CheckedQdq(CheckedModel):
    """The QDQ model beside what it is compared with."""

    def in_onnxruntime(self) -> dict[str, Any]:
        """How it agrees with the packed file in ONNX Runtime. Raises VerificationError where it does not."""
        runner = Runner(self.model, options=session_options(optimize=not self.rounds_wide))
        outputs = [tensors_of(runner.run(feeds)) for feeds in self.source.samples]
        if distance := self.distance(outputs):  # float parts and tables round otherwise
            self.check(outputs, "ONNX Runtime")
        expected = _expected(self.source.lowered, self.rounded)
        missed = take(self.model, expected).missed
        agreement = f"outputs {f'within {distance:.1e} of' if distance else 'equal'} the packed file's"
        on_integers = f"{len(expected) - len(missed)} of {len(expected)} operators on integers"
        return self.as_run(RUNTIME, outputs, on_integers, agreement)

    @cached_property
    def rounds_wide(self) -> bool:
        """Whether there are codes of 16 bits: ONNX Runtime, if it optimizes, rounds them to 8 in front of a MatMul."""
        graph = QdqGraph(self.model)
        return any(graph.code_type(node) in WIDE for node in graph.conversions())

    def with_16_bits(self) -> Self:
        """The same with what is left in real values on codes of 16 bits."""
        graph = WideGraph.of(self.model)
        if not graph.wide:
            return self
        ranges = {name: ValueRange() for name in graph.unrounded}
        inner = ranges.keys() - {value.name for value in (*self.model.graph.input, *self.model.graph.output)}
        runner = Runner(self.model, sorted(inner), options=session_options(optimize=False))
        for feeds in ranged_samples(self.source):
            values = {**feeds, **runner.run(feeds)}
            for name, each in ranges.items():
                each.update(np.asarray(values[name]))
        return replace(self, rounding=ROUNDING_16, model=with_16_bits(graph, ranges))

    @cached_property
    def delivered(self) -> onnx.ModelProto:
        """The model in the form of the runtime that the plan was solved for. Raises TargetError for control flow."""
        runtime, form = self.source.runtime, UNTRIED.get(self.source.runtime)
        if form is None:
            return self.model
        if broken := [one for one in violations(self.model, runtime) if one.rule == CONTROL_FLOW]:
            raise TargetError(f"the QDQ model breaks a rule of {runtime}: {broken[0]}")
        return form(self.model)

    def by_rules(self) -> str:
        """What can be said of a form that no runtime here takes. Raises TargetError where it breaks a rule."""
        onnx.checker.check_model(self.delivered, full_check=True)
        if broken := violations(self.delivered, self.source.runtime):
            raise TargetError(f"the QDQ model breaks a rule of {self.source.runtime}: {broken[0]}")
        runner = Runner(self.delivered)
        self.check([tensors_of(runner.run(feeds)) for feeds in self.source.samples], "ONNX Runtime")
        return "not run; breaks none of its rules, and computes the same in ONNX Runtime up to rounding"

    def in_runtime(self, name: str, path: Path, options: QdqOptions) -> dict[str, Any]:
        """What running it elsewhere showed. Raises VerificationError where it computes something else there.

        Raises TargetError where a runtime that the user named does not take it.
        """
        if options.verify_in != INSTALLED and name not in options.named_runtimes:
            return self._unverified(name, "not asked for")
        if not is_installed(name):
            return self._unverified(name, f"pip install 'ptqc[{name}]'")
        try:
            self._check_not_garbage(name)
            run = run_in(name, path, self.source.samples)
        except TargetError as error:
            if name in options.named_runtimes:
                raise
            return self._unverified(name, str(error))
        self.check(run.outputs, run.name)
        where = f" (emulator of {USUAL_CHIP})" if name == "qnn" else ""
        return self.as_run(f"{run.name}{where}", run.outputs, str(run.placement), self._reasons(name, run))

    @staticmethod
    def _unverified(name: str, reason: str) -> dict[str, Any]:
        return asdict(RuntimeCheck(runtime_named(name).title, f"not verified: {reason}"))

    def _check_not_garbage(self, name: str) -> None:
        """Raises TargetError where a runtime would compute garbage without a message."""
        if broken := [one for one in violations(self.model, name) if one.rule == EIGHT_BITS]:
            raise TargetError(f"it takes no activations of 16 bits: {broken[0]}")

    def context(self, chip: str, path: Path, folder: Path) -> Path:
        """The context binary for a chip, under its name in the artifact."""
        run = run_in("qnn", path, self.source.samples[:1], folder, chip=chip)
        self.check(run.outputs, f"{run.name} for {chip}")
        (written,) = run.files.values()
        return written.rename(folder / f"{chip}.bin")

    def _reasons(self, name: str, run: ForeignRun) -> str:
        """Why it is not all on integers there, as far as rules say."""
        if not (run.placement.others or run.placement.elsewhere):
            return ""
        return "; ".join(map(str, violations(self.model, name)[:SHOWN]))


def _expected(lowered: Lowered, rounded: Mapping[str, QuantParams]) -> dict[str, tuple[str, str]]:
    """The operators that should be integer kernels in ONNX Runtime; see `verify.take`."""
    steps = reference.steps(lowered)
    codes = {name: f"{name}{lowered.mark}codes" for name in rounded}
    return {step.output: (step.node.op_type, codes.get(step.output, step.output)) for step in steps}


TARGET: Target[QdqOptions] = QdqTarget()
