"""What allocation works on: the state of a compile, its budgets, and the file that a plan became.

A kind of budget is a `Constraint`: one file of `ptqc.passes.allocate.constraints`, and a line in `ptqc.budget`.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self, TypeVar

import onnx_ir as ir

from ptqc.codegen.onnxruntime.export import Exported
from ptqc.codegen.targets import Chosen
from ptqc.errors import UsageError
from ptqc.evaluation.scoring import Scoring
from ptqc.ir.lowered import Lowered
from ptqc.ir.plan import Plan
from ptqc.ir.quantized_weight import QuantizedParameters
from ptqc.notes import Note
from ptqc.options import CompileOptions
from ptqc.passes.allocate.allocation import Allocation, Problem
from ptqc.passes.allocate.cost_model import OpLatencies, Timed
from ptqc.passes.quantize.phases import Analysis
from ptqc.passes.quantize.prepare import CanonicalModel, Origin
from ptqc.utils.deadline import Deadline
from ptqc.utils.memory import MemoryPeak
from ptqc.utils.progress import Progress
from ptqc.utils.store import Store

Kind = TypeVar("Kind", bound="Constraint")

BYTES_PER_UNIT = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


@dataclass(frozen=True)
class Quantity:
    """A budget as it is written: 2ms@cpu has the number 2, the unit ms and the target cpu."""

    text: str
    number: float
    unit: str
    target: str = ""

    def bytes(self, suffix: str = "") -> float | None:
        """Bytes, where the unit is one of these with `suffix` behind it, as in MBram; None for another unit."""
        unit = self.unit.upper()
        factor = BYTES_PER_UNIT.get(unit.removesuffix(suffix.upper())) if unit.endswith(suffix.upper()) else None
        return None if factor is None else self.number * factor


@dataclass(frozen=True)
class BudgetReport:
    """What the manifest says of a delivered file and one kind of budget; a note where the budget is missed."""

    document: Mapping[str, Any]
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True)
class Context:
    """What constraints use beside the state of a compile.

    times: of operators, which are then not measured. plan: fixed decisions, which are only checked.
    """

    progress: Progress
    deadline: Deadline
    store: Store
    target: Chosen | None = None
    times: OpLatencies | None = None
    plan: Plan | None = None
    scoring: Scoring | None = None


class Constraint:
    """One kind of budget. A kind overrides the steps that it takes part in; by default a step changes nothing.

    kind: its name. section: of the manifest that it reports in, if it does. examples: how it is
    written, with what that means, for `ptqc help budgets`.
    is_measured: whether measurements depend on it, so that `resolve` cannot change it. names_target: whether @ and a
    target may stand behind it; target: the one that does. revisions: how often it may decide again.
    """

    kind: ClassVar[str]
    section: ClassVar[str] = ""
    examples: ClassVar[Mapping[str, str]]
    is_measured: ClassVar[bool] = False
    names_target: ClassVar[bool] = False
    target: str = ""
    revisions: ClassVar[int] = 1

    @classmethod
    def parse(cls, quantity: Quantity) -> Self | None:
        """Read a budget of this kind; None for another kind. Raises UsageError for an impossible value."""
        raise NotImplementedError

    @classmethod
    def default(cls) -> Self | None:
        """The constraint where no budget of the kind is given; None where nothing is reported then."""
        return None

    def both(self, other: Self) -> Self | None:
        """The constraint that holds where this one and another of the kind do; None where no single one is."""
        del other
        return None

    def for_target(self, target: Chosen | None) -> tuple["Constraint", ...]:
        """The constraints that this one stands for where a target is built."""
        del target
        return (self,)

    def check_request(self, target: Chosen | None, store: Store, *, is_scored: bool) -> None:
        """Refuse, before anything is read, what cannot be asked for together. Raises UsageError."""

    def check(self, prepared: CanonicalModel, options: CompileOptions) -> None:
        """Refuse, before anything is measured, what no file keeps. Raises Infeasible, UsageError."""

    @property
    def chooses_activations(self) -> bool:
        """Whether the activations are chosen for it, so that no other step changes them."""
        return False

    def max_bytes(self, origin: Origin) -> int | None:
        """Bytes that the file may have."""

    def decide(self, job: "CompileState", context: Context) -> "CompileState":
        """Choose activations, or limit formats, so that the file is predicted to keep the budget. Raises Infeasible."""
        del context
        return job

    def search(self, job: "CompileState", context: Context) -> "BudgetedModel | None":
        """Give the file that this constraint's own search finds; None: the search within a size is to find it."""

    def report(self, job: "CompileState", fitted: "QuantizedModel", context: Context) -> BudgetReport | None:
        """Measure the finished file."""

    def revise(self, job: "CompileState", report: BudgetReport, context: Context) -> "CompileState | None":
        """Decide again where the finished file misses the budget and another choice may keep it. Raises Infeasible."""


@dataclass(frozen=True)
class Budgets:
    """At most one constraint of each kind. strict: raise in place of delivering a file that misses one."""

    constraints: tuple[Constraint, ...] = ()
    strict: bool = False

    def __iter__(self) -> Iterator[Constraint]:
        return iter(self.constraints)

    def check_request(self, target: Chosen | None, store: Store, *, is_scored: bool) -> None:
        """Refuse, before anything is read, what cannot be asked for together. Raises UsageError."""
        for one in self.constraints:
            one.check_request(target, store, is_scored=is_scored)

    def for_target(self, target: Chosen | None) -> "Budgets":
        """The budgets as they are meant where a target is built. Raises UsageError for two of a kind."""
        constraints = tuple(each for one in self.constraints for each in one.for_target(target))
        for kind, count in Counter(one.kind for one in constraints).items():
            if count > 1:
                raise UsageError(f"the budgets include several of {kind}; give one")
        return replace(self, constraints=constraints)

    def get(self, kind: type[Kind]) -> Kind | None:
        """The constraint of a kind."""
        return next((one for one in self.constraints if isinstance(one, kind)), None)

    @property
    def choose_activations(self) -> bool:
        """Whether the activations are chosen for one of them."""
        return any(one.chooses_activations for one in self.constraints)

    def max_bytes(self, origin: Origin) -> int | None:
        """Bytes that a file of the model may have; None without a limit."""
        limits = (one.max_bytes(origin) for one in self.constraints)
        return min((limit for limit in limits if limit is not None), default=None)


@dataclass(frozen=True)
class CompileState:
    """What was measured of a model, and what is asked of its file.

    entry: name of the measurements in the store. started: on the monotonic clock. timed: where a latency is asked for.
    memory: the most that was held so far.
    """

    prepared: CanonicalModel
    analysis: Analysis
    options: CompileOptions
    notes: tuple[Note, ...]
    entry: str
    budgets: Budgets
    started: float
    timed: Timed | None = None
    memory: MemoryPeak = field(default_factory=MemoryPeak)

    @property
    def limit(self) -> int | None:
        """Bytes that the file may have; None without a budget."""
        return self.budgets.max_bytes(self.prepared.origin)

    @property
    def model(self) -> ir.Model:
        """The float model in normal form."""
        return self.analysis.model


@dataclass(frozen=True)
class PackedModel:
    """The numbers of a plan, its lowered graph, and its file."""

    tuned: QuantizedParameters
    lowered: Lowered
    exported: Exported

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self.exported.size


@dataclass(frozen=True)
class AllocatedPlan:
    """A plan, the allocation that it follows from, and the problem that was solved for it."""

    plan: Plan
    allocation: Allocation
    problem: Problem


@dataclass(frozen=True)
class QuantizedModel:
    """The delivered file and everything that led to it."""

    allocated: AllocatedPlan
    packed: PackedModel
    notes: tuple[Note, ...] = ()

    @property
    def plan(self) -> Plan:
        """The plan of the file."""
        return self.allocated.plan

    @property
    def allocation(self) -> Allocation:
        """What the solver chose."""
        return self.allocated.allocation

    @property
    def problem(self) -> Problem:
        """The problem that was solved."""
        return self.allocated.problem

    @property
    def tuned(self) -> QuantizedParameters:
        """The numbers of the file."""
        return self.packed.tuned

    @property
    def lowered(self) -> Lowered:
        """The graph of the file."""
        return self.packed.lowered

    @property
    def exported(self) -> Exported:
        """The file."""
        return self.packed.exported

    @property
    def predicted_size(self) -> int:
        """Bytes of the file as the integer program counted them."""
        return self.problem.size(self.plan.formats)


@dataclass(frozen=True)
class BudgetedModel:
    """A file within its budgets. job: with the activations that it has. reports: by kind of budget."""

    job: CompileState
    fitted: QuantizedModel
    reports: Mapping[str, BudgetReport] = field(default_factory=dict)
