"""Small quantized networks as C, compared on this machine with what ONNX Runtime computes."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from lowering import Quantized, quantized

from ptqc.codegen.c import boards, emulation, verify
from ptqc.codegen.c.arena import plan
from ptqc.codegen.c.network import NetworkCalls
from ptqc.codegen.c.options import COptions
from ptqc.codegen.c.session import CallSession
from ptqc.codegen.c.source import CSource
from ptqc.codegen.c.target import network_for, wanted
from ptqc.codegen.onnxruntime.export import export
from ptqc.codegen.program.batching import run_by_run
from ptqc.codegen.targets import TargetInput
from ptqc.execution.onnxruntime import Feeds
from ptqc.losses.recognition import states_of
from ptqc.utils.progress import SILENT_STAGE

HAS_COMPILER = pytest.mark.skipif(
    not any(map(shutil.which, verify.COMPILERS)), reason="needs a C compiler (Debian: apt install gcc)"
)


@dataclass(frozen=True)
class Case:
    """A network in C, and what it is compared with."""

    text: CSource
    samples: Sequence[Feeds]
    values: Sequence[dict[str, np.ndarray]]
    outputs: list[dict[str, np.ndarray]] = field(default_factory=list)

    @property
    def session(self) -> CallSession:
        return CallSession.of(self.network.stream, self.samples)

    @property
    def network(self) -> NetworkCalls:
        return self.text.network

    def compare(self, folder: Path, *flags: str, program: str = "") -> verify.CComparison:
        """Compile with these flags, run all samples and compare every value. Raises VerificationError."""
        folder.mkdir(parents=True, exist_ok=True)
        built = verify.compiled(self.text, folder, flags or ("-O1", *verify.SANITIZERS), program)
        comparison = verify.CComparison()
        self.outputs[:] = verify.compare_session(self.text, built, self.session, self.values, comparison)
        return comparison

    def run_on_boards(self, folder: Path) -> None:
        """Run after `compare` on emulated boards, if there are any. Raises VerificationError where outputs differ."""
        if emulation.missing() is not None:
            return
        for name, content in self.text.files().items():
            (folder / name).write_text(content, encoding="utf-8")
        for name, run in boards.emulate(self.text, self.session.calls, self.outputs, folder, SILENT_STAGE).items():
            assert "missing" not in run, f"{name}: {run['missing']}"


@dataclass(frozen=True)
class Changed(CSource):
    """The C of a network in which one text stands for another."""

    old: str = ""
    new: str = ""

    def files(self) -> dict[str, str]:
        texts = super().files()
        assert any(self.old in text for text in texts.values()), self.old
        return {name: text.replace(self.old, self.new) for name, text in texts.items()}


def case(
    quantized_model: Quantized, feeds: Sequence[Feeds], name: str = "net", options: COptions | None = None
) -> Case:
    """The C of a lowered graph. Raises NoKernel, TargetError."""
    lowered = quantized_model.lowered
    source = TargetInput(lowered, export(lowered, quantized_model.model), feeds, feeds, quantized_model.model, {})
    _, samples = run_by_run(lowered.model, source.exported, feeds)
    network = network_for(source, samples, options)
    windows = list(CallSession.of(network.stream, samples).windows.values())
    values = [dict(each) for each in wanted(source, windows)]
    states = states_of(quantized_model.model)
    return Case(CSource(name, network, plan(network.steps), states), samples, values)


def of_model(model: ir.Model, feeds: Sequence[Feeds], name: str = "net", options: COptions | None = None) -> Case:
    """The C of a float model, quantized the plainest way."""
    return case(quantized(model, feeds), feeds, name, options)
