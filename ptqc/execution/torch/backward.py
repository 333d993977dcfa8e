"""One sample run forward in torch, and backward along any directions of its outputs, with little held at a time.

Gradients are handed over one by one as the sweep reaches them, and not kept.
"""

from collections.abc import Callable, Collection, Mapping

import numpy as np
import torch
from torch import Tensor

from ptqc.execution.onnxruntime import Feeds
from ptqc.execution.torch.graph import TorchGraph
from ptqc.execution.torch.types import tensor_of

# Called with a name, its value and its gradient, which may be changed or let go of afterwards.
Take = Callable[[str, Tensor, Tensor], None]


class Backward:
    """A forward run of one sample, whose inner values are held for sweeps back.

    constants, inner: names whose gradients are wanted, as far as they are of floats. take: gets them, that of a
    constant behind those of all that is made of it. bytes: of all values. Raises Unsupported for a node that torch
    cannot run.
    """

    def __init__(
        self,
        graph: TorchGraph,
        feeds: Feeds,
        constants: Collection[str],
        inner: Collection[str],
        take: Take,
    ) -> None:
        self._take, self._inner, self.bytes = take, frozenset(inner), 0
        leaves = {name: self._leaf(name, graph.constants[name]) for name in constants}
        given = {name: tensor_of(value) for name, value in feeds.items()}
        with torch.enable_grad():
            self._outputs = graph.run(given, replace=leaves, hook=self._watch)

    def along(self, directions: Mapping[str, np.ndarray]) -> None:
        """Sweep back once: gradients of Σ direction · output over the outputs; what no output depends on gets none."""
        reached = {name: value for name, value in self._outputs.items() if name in directions and value.requires_grad}
        if reached:
            along = [tensor_of(directions[name]) for name in reached]
            torch.autograd.backward(list(reached.values()), along, retain_graph=True)

    def _leaf(self, name: str, constant: Tensor) -> Tensor:
        leaf, take = constant.detach().requires_grad_(), self._take

        def taken(leaf: Tensor) -> None:
            take(name, leaf.detach(), leaf.grad)
            leaf.grad = None

        leaf.register_post_accumulate_grad_hook(taken)
        return leaf

    def _watch(self, name: str, value: Tensor) -> Tensor:
        self.bytes += value.nbytes
        if name not in self._inner or not value.is_floating_point():
            return value
        if not value.requires_grad:  # nothing before it is differentiated
            value = value.detach().requires_grad_().view_as(value)
        take, held = self._take, value.detach()  # a hook that held the value itself would never be let go of
        value.register_hook(lambda gradient: take(name, held, gradient))
        return value
