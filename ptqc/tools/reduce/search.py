"""Which parts of a graph are tried, in which order."""

from collections.abc import Callable
from dataclasses import replace

from ptqc.tools.reduce.cut import Subgraph, Whole
from ptqc.tools.reduce.ddmin import ddmin


def smallest(whole: Whole, fails: Callable[[Subgraph], bool]) -> Subgraph:
    """A small part that fails: nodes are cut off, then bypassed one by one, then outputs left out.

    fails: whether a part fails; the whole does.
    """
    cut = Subgraph(ddmin(whole.all().nodes, lambda nodes: fails(Subgraph(nodes))))
    while (shorter := next(filter(fails, whole.bypasses(cut)), None)) is not None:
        cut = shorter
    for name in whole.outputs(cut):
        without = replace(cut, hidden=cut.hidden | {name})
        if whole.outputs(without) != whole.outputs(cut) and fails(without):
            cut = without
    return cut
