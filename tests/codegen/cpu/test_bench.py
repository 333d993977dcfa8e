"""The time of every kernel is told, with what it computes and moves."""

import json

import pytest

pytest.importorskip("tvm.tirx", reason="the cpu target needs Apache TVM")

from compiling import quick
from compiling import residual as model

import ptqc
from ptqc.artifact.bench import bench
from ptqc.artifact.folder import Artifact
from ptqc.cli.main import main


@pytest.mark.long
def test_every_kernel_is_timed(artifact: Artifact) -> None:
    result = bench(artifact.folder, rounds=2)
    assert result.threads == 1
    assert result.seconds > 0
    assert all(timing.seconds > 0 and timing.bytes > 0 for timing in result.timings)
    dense = [timing.call for timing in result.timings if timing.call.family == "dense"]
    assert dense
    assert all(call.operations > 0 for call in dense)
    own = {"x", *(name for node in model().graph.node for name in node.output)}
    assert {timing.name for timing in result.timings} <= own


def test_the_slowest_come_first(artifact: Artifact, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", str(artifact.folder), "--threads", "1"]) == 0
    heading, *rows, _, total = capsys.readouterr().out.rstrip().split("\n")
    assert heading.split()[:3] == ["value", "kernel", "µs"]
    shares = [float(row.split()[-1]) for row in rows]
    assert shares == sorted(shares, reverse=True)
    assert f"{len(rows)} kernels take" in total


def test_the_library_stands_beside_its_file(artifact: Artifact) -> None:
    with quick():
        file, library = ptqc.compare(artifact.folder).models
    parts = [artifact.folder / "cpu" / f"{artifact.native().isa}.so", artifact.folder / "cpu" / "weights.bin"]
    assert library.bytes == sum(part.stat().st_size for part in parts)
    assert library.runtime == f"native library, {artifact.native().isa}"
    assert file.runtime.startswith("ONNX Runtime")
    assert library.sqnr_db is not None
    assert library.sqnr_db > 40


def test_json(artifact: Artifact, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", str(artifact.folder), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["runtime"] == f"native library, {artifact.native().isa}"
    assert all(kernel["microseconds"] > 0 for kernel in result["kernels"])
