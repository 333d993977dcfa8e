"""Building the target litert: the TFLite model, compared with the packed file in LiteRT."""

import zlib
from pathlib import Path
from typing import ClassVar

import onnx_ir as ir

from ptqc.codegen.foreign.comparison import CheckedModel, ForeignTarget
from ptqc.codegen.litert.graph import tflite_graph, without_rule
from ptqc.codegen.litert.operators import RULES
from ptqc.codegen.targets import NoOptions, Target, TargetInput, TargetOutput
from ptqc.ir.operators import Trait, named
from ptqc.runtime.foreign import check_installed, run_in
from ptqc.runtime.litert import FAST, REFERENCE
from ptqc.utils.progress import SILENT_STAGE, Stage

FILE = "model.tflite"


class LiteRtTarget(ForeignTarget):
    """The target as a compile knows it; see `ptqc.codegen.targets.Target`."""

    name: ClassVar[str] = "litert"

    def check_options(self, options: NoOptions) -> None:
        """There are none."""

    def check_present(self) -> None:
        """Raises TargetError where LiteRT is not installed."""
        check_installed(self.name)

    def check_kernels(self, model: ir.Model) -> None:
        """Raises TargetError for an operator without a rule too; what depends on constants alone needs none."""
        super().check_kernels(model)
        variable = set(model.graph.inputs)
        for node in model.graph:
            has_graphs = not named(Trait.BODIES).isdisjoint({node.op_type})
            if has_graphs or not variable.isdisjoint(value for value in node.inputs if value is not None):
                if node.domain or node.op_type not in RULES:
                    raise without_rule(node.op_type, str(node.name or node.outputs[0].name))
                if node.op_type != "Shape":  # shapes are fixed
                    variable.update(node.outputs)

    def build(
        self,
        source: TargetInput,
        options: NoOptions,
        store: Path,
        folder: Path,
        stage: Stage = SILENT_STAGE,
    ) -> TargetOutput:
        """One model. Raises TargetError for an operator without a rule, VerificationError where outputs differ."""
        from ptqc.codegen.litert.flatbuffer import serialized  # imports LiteRT's schema

        del options, store, stage
        self.check_sizes({tuple(array.shape for array in feeds.values()) for feeds in source.samples}, source.model)
        checked = CheckedModel.of(source)
        data = serialized(tflite_graph(checked.model, RULES))
        path = folder / FILE
        path.write_bytes(data)
        document: dict[str, object] = {"bytes": len(data), "bytes_zipped": len(zlib.compress(data, 9))}
        run = run_in("litert", path, source.samples, kernels=FAST)
        checked.check(run.outputs, run.name)
        runtimes = {"litert": checked.as_run(run.name, run.outputs, str(run.placement))}
        run = run_in("litert", path, source.samples, kernels=REFERENCE)
        checked.check(run.outputs, f"{run.name}, with reference kernels,")
        title = f"{run.name}, reference kernels"
        runtimes["litert_reference"] = checked.as_run(title, run.outputs, str(run.placement))
        document["runtimes"] = runtimes
        return TargetOutput({FILE: path}, document)


TARGET: Target[NoOptions] = LiteRtTarget()
