"""Reductions and running sums, along axes that an input may give."""

from ptqc.operators.base import alike

AXES = (1,)
MEANS = ("ReduceMax", "ReduceMean", "ReduceMin")
SUMS = ("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceProd", "ReduceSum", "ReduceSumSquare")

OPERATORS = alike((*MEANS, *SUMS, "CumProd", "CumSum", "TopK", "Trilu"), parameters=AXES)
