"""Reductions and running sums, along axes that an input may give."""

from ptqc.ir.operators.base import Trait, alike

AXES = (1,)
WITHIN = ("ReduceMax", "ReduceMean", "ReduceMin")
SUMS = ("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceProd", "ReduceSum", "ReduceSumSquare")

OPERATORS = (
    *alike(WITHIN, Trait.REDUCES, Trait.KEEPS_SCORES, parameters=AXES),
    *alike(SUMS, Trait.REDUCES, parameters=AXES),
    *alike(["CumProd", "CumSum", "TopK", "Trilu"], parameters=AXES),
)
