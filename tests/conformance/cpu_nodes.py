"""Which of onnx's node tests the cpu target takes, and why it refuses the others.

Only kernels are chosen; nothing is linked. `python tests/conformance/cpu_nodes.py [NAME…]` prints one line for each
test, tab-separated: name, reason (nothing where it is taken); then how many there are of each reason.
"""

import json
import re
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from onnx_nodes import parts

sys.path.insert(0, str(Path(__file__).resolve().parent))

import onnx_ir as ir
from onnx_nodes import SAMPLES, Case, _finite, cases, feeds_of, is_counted, quick

import ptqc
from ptqc.codegen.cpu import isa
from ptqc.codegen.cpu.backend import CpuBackend
from ptqc.codegen.kernels import lowering
from ptqc.codegen.kernels.process import JOB, LOWERED, Work
from ptqc.codegen.program.batching import Batching, Seen
from ptqc.errors import PtqcError, TargetError
from ptqc.formats import Format
from ptqc.ir.lowered import Lowered

TAKEN = "taken"
# What differs from node to node in a reason.
NAMES = re.compile(r"(for \w+|input|places|axis of|the input) \S+?(?=:| |$)")


@contextmanager
def choosing_only() -> Iterator[None]:
    """Let the target stop once it has chosen kernels."""
    with mock.patch.object(Work, "run", _choose):
        yield


def _choose(_work: Work, folder: Path, *_what: object) -> None:
    """What the process that runs TVM does first. Raises NoKernel, or TargetError where all is well."""
    job = json.loads((folder / JOB).read_text())
    formats = {name: Format.parse(form) for name, form in job["formats"].items()}
    lowered = Lowered(ir.load(folder / LOWERED), formats, {}, {}, job["layer_constants"])
    backend = CpuBackend(isa.named(job["isa"]))
    lowering.program(lowered, Seen.from_json(job["values"]), backend, Batching(**job["batching"]))
    raise TargetError(TAKEN)


def reason_of(case: Case) -> str:
    """Why the cpu target refuses a test; nothing where it takes it. Raises PtqcError where the ONNX file is refused."""
    model, inputs, _ = parts(case)
    feeds = feeds_of(model, inputs)
    samples = [{name: _finite(value) for name, value in feeds.items()}] * SAMPLES
    with tempfile.TemporaryDirectory(prefix="ptqc-") as name, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder = Path(name)
        (folder / "model.onnx").write_bytes(model.SerializeToString())
        with quick(), choosing_only():
            artifact = ptqc.compile(
                folder / "model.onnx",
                calibration=samples,
                output=folder / "out",
                cache=folder / "cache",
                cast_double=True,
                target="cpu",
                allow_missing_target=True,
            )
        reason = str(artifact.manifest["targets"]["cpu"]["missing"])
    return "" if reason == TAKEN else reason.partition("; --allow")[0]


def main(names: Sequence[str]) -> None:
    """Print reasons, and how many there are of each."""
    reasons: Counter[str] = Counter()
    for name in names:
        try:
            reason = reason_of(cases()[name])
        except PtqcError:
            continue  # no ONNX file, so no library
        print(name, reason, sep="\t", flush=True)
        reasons[NAMES.sub(r"\1 …", reason)] += 1
    total = reasons.total()
    print(f"taken: {reasons.pop('', 0)} of {total}")
    for reason, count in reasons.most_common():
        print(count, reason, sep="\t")


if __name__ == "__main__":
    main(sys.argv[1:] or [name for name, case in cases().items() if is_counted(case)])
