"""Targets: what a compile can build beside the ONNX file. A folder here with a `target.py` is one, named like it."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, Protocol

import onnx_ir as ir

import ptqc.codegen
from ptqc.codegen.onnxruntime.export import Exported
from ptqc.errors import UsageError
from ptqc.execute.onnxruntime import Feeds
from ptqc.lowered import Lowered
from ptqc.options import TargetOptions


@dataclass(frozen=True)
class Native:
    """What a target built. files: by name, for the artifact's folder of the target. document: for the manifest."""

    files: Mapping[str, bytes]
    document: Mapping[str, Any]


class Target(Protocol):
    """What `target.py` of a target gives as `TARGET`. What it refuses, it refuses with TargetError."""

    def check_options(self, options: TargetOptions) -> None:
        """Refuse options that cannot work on this machine. Raises UsageError too."""

    def check_present(self) -> None:
        """Refuse to go on where a package that it needs is not installed."""

    def check_sizes(self, row_shapes: Collection[object]) -> None:
        """Refuse samples that it cannot take. row_shapes: those that they have beyond axis 0."""

    def check_kernels(self, model: ir.Model) -> None:
        """Refuse a model that certainly has a node without a kernel, before anything is measured."""

    def gains_by_bfloat16(self, options: TargetOptions) -> bool:
        """Whether it multiplies bfloat16 faster than float32, and is there to do so."""

    def build(
        self,
        lowered: Lowered,
        exported: Exported,
        samples: Sequence[Feeds],
        options: TargetOptions,
        store: Path,
    ) -> Native:
        """Compile a lowered graph, and compare what it computes with the exported file on samples and edge inputs.

        store: a folder of what was built before. Raises VerificationError where anything differs.
        """


def names() -> list[str]:
    """The targets that there are."""
    rooms = (module.name for module in iter_modules(ptqc.codegen.__path__) if module.ispkg)
    return sorted(name for name in rooms if find_spec(f"ptqc.codegen.{name}.target") is not None)


def target_named(name: str) -> Target:
    """A target. Raises UsageError for an unknown name."""
    if name not in names():
        raise UsageError(f"target is {name!r}; known: {', '.join(names())}")
    found: Target = import_module(f"ptqc.codegen.{name}.target").TARGET
    return found
