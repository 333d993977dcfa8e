"""A kind of budget takes one class and a line in `ptqc.budget`, as docs/contributing/extending.md says."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import pytest
from compiling import compiled, residual, samples

from ptqc import budget
from ptqc.errors import Missed, UsageError
from ptqc.notes import Level, Note
from ptqc.options import CompileOptions
from ptqc.passes.allocate.state import BudgetReport, CompileState, Constraint, Context, Quantity, QuantizedModel
from ptqc.passes.quantize.prepare import CanonicalModel, Origin


@dataclass(frozen=True)
class SavedBytes(Constraint):
    """How many bytes the file saves at least, written 300saved."""

    value: int
    kind: ClassVar[str] = "saved bytes"
    section: ClassVar[str] = "saved"
    forms: ClassVar[tuple[str, ...]] = ("bytes that are saved (300saved)",)

    @classmethod
    def parse(cls, quantity: Quantity) -> Self | None:
        return cls(int(quantity.number)) if quantity.unit == "saved" else None

    def check(self, prepared: CanonicalModel, options: CompileOptions) -> None:
        del options
        if self.value >= prepared.origin.size:
            raise UsageError(f"the budget {self} saves more than there is")

    def max_bytes(self, origin: Origin) -> int:
        return origin.size - self.value

    def report(self, job: CompileState, fitted: QuantizedModel, context: Context) -> BudgetReport:
        del context
        saved = job.prepared.origin.size - fitted.exported.size
        notes = [Note("saved", "", f"only {saved} bytes are saved", Level.WARNING)] if saved < self.value else []
        return BudgetReport({"saved": saved, "of": str(self)}, tuple(notes))

    def __str__(self) -> str:
        return f"{self.value}saved"


@pytest.fixture(autouse=True)
def added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "CONSTRAINTS", (*budget.CONSTRAINTS, SavedBytes))


def test_it_is_met_beside_another_kind_and_reported(tmp_path: Path) -> None:
    size = len(residual().SerializeToString())
    wanted = size * 7 // 10
    artifact = compiled(residual(), samples(3, 8, 8), tmp_path, (f"{wanted}saved", "50%"), bits=(2, 4, 7), samples=16)
    assert artifact.manifest["saved"] == {"saved": size - artifact.path.stat().st_size, "of": f"{wanted}saved"}
    assert wanted <= artifact.manifest["saved"]["saved"] < size
    assert artifact.manifest["allocation"]["limit"] == size - wanted


def test_it_refuses_early(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="99999999saved saves more than there is"):
        compiled(residual(), samples(3, 8, 8), tmp_path, "99999999saved")


def test_strict_refuses_a_file_that_misses_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SavedBytes, "max_bytes", lambda *_: None)
    with pytest.raises(Missed, match="bytes are saved; without strict the file is delivered"):
        compiled(residual(), samples(3, 8, 8), tmp_path, "57000saved", bits=(7,), samples=16, strict=True)


def test_two_of_the_kind_are_refused() -> None:
    with pytest.raises(UsageError, match=r"the budgets 1saved and 2saved are both of saved bytes"):
        budget.parse_budgets(["1saved", "2saved"])
