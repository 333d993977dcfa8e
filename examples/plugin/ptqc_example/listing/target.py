"""A target: a file that lists the operators of the lowered graph."""

from collections.abc import Collection
from pathlib import Path

import onnx_ir as ir

from ptqc.codegen.targets import NoOptions, Target, TargetInput, TargetOutput
from ptqc.errors import TargetError
from ptqc.utils.progress import SILENT_STAGE, Stage


class Listing:
    """Lists operators, but for Sigmoid, which it has no word for."""

    def check_options(self, options: NoOptions) -> None:
        """There are none."""

    def check_present(self) -> None:
        """Nothing else needs to be installed."""

    def check_sizes(self, row_shapes: Collection[object], model: ir.Model) -> None:
        """Samples of any size will do."""

    def check_kernels(self, model: ir.Model) -> None:
        """Refuse Sigmoid before anything is measured."""
        if any(node.op_type == "Sigmoid" for node in model.graph):
            raise TargetError("listing has no kernel for Sigmoid")

    def gains_by_bfloat16(self, options: NoOptions) -> bool:  # noqa: ARG002
        """A list is no faster."""
        return False

    def multiplies_float8(self) -> bool:
        """A list has any numbers."""
        return True

    def fuses_conversions(self) -> bool:
        """A list takes no time."""
        return True

    def build(
        self,
        source: TargetInput,
        options: NoOptions,  # noqa: ARG002
        store: Path,  # noqa: ARG002
        folder: Path,
        stage: Stage = SILENT_STAGE,  # noqa: ARG002
    ) -> TargetOutput:
        """The list, and how long it is."""
        names = [node.op_type for node in source.lowered.model.graph]
        (folder / "operators.txt").write_text("\n".join(names), encoding="utf-8")
        return TargetOutput({"operators.txt": folder / "operators.txt"}, {"operators": len(names), "order": "as run"})


TARGET: Target[NoOptions] = Listing()
