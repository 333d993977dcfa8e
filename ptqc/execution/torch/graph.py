"""Running an `onnx_ir.Model` in torch: the whole graph or any piece of it, with gradients."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from ptqc.errors import Unsupported
from ptqc.execution.onnxruntime import Feeds
from ptqc.execution.torch.operators import CHECKS, OPERATORS
from ptqc.execution.torch.types import DTYPES, tensor_of

Hook = Callable[[str, Tensor], Tensor]


def unsupported(model: ir.Model) -> list[ir.Node]:
    """The nodes of the main graph that cannot be run in torch, in order."""
    return [node for node in model.graph if refusal(node) is not None]


def refusal(node: ir.Node) -> str | None:
    """Why a node cannot be run in torch; None if it can."""
    if node.op_type != "Constant" and (node.domain or node.op_type not in OPERATORS):
        domain = f" (of the domain {node.domain})" if node.domain else ""
        return f"{_label(node)}{domain} is not known; known are {', '.join(sorted(OPERATORS))}"
    for value in (*node.inputs, *node.outputs):
        if value is not None and value.dtype is not None and value.dtype not in DTYPES:
            return f"{_label(node)} has to do with {value.name!r} of type {value.dtype}, which torch lacks"
    reason = CHECKS[node.op_type](node) if node.op_type in CHECKS else None
    return None if reason is None else f"{_label(node)} cannot be run: {reason}"


def _label(node: ir.Node) -> str:
    return f"the {node.op_type} that gives {next(value.name for value in node.outputs if value.name)!r}"


@dataclass(frozen=True)
class _Step:
    """One node to run, and the values that no later one reads."""

    node: ir.Node
    reads: tuple[str | None, ...]
    gives: tuple[str, ...]
    released: tuple[str, ...]


class TorchGraph:
    """A model whose nodes run in torch one by one.

    The model is one in normal form, of opset 13 or later. Its initializers are copied to `constants`, name -> tensor
    without gradient. Nodes that torch cannot run (`unsupported`) matter only where a run needs them.
    """

    def __init__(self, model: ir.Model) -> None:
        self.inputs = [str(value.name) for value in model.graph.inputs]
        self.outputs = [str(value.name) for value in model.graph.outputs]
        self.constants = dict(_constants(model))
        self._producers = {str(value.name): node for node in model.graph for value in node.outputs if value.name}
        self._order = {node: index for index, node in enumerate(model.graph)}
        self._plan = lru_cache(maxsize=None)(self._make_plan)

    def run(
        self,
        feeds: Mapping[str, Tensor],
        taps: Sequence[str] | None = None,
        *,
        replace: Mapping[str, Tensor] | None = None,
        hook: Hook | None = None,
    ) -> dict[str, Tensor]:
        """Values of the taps (default: the graph's outputs); only what they need is computed.

        feeds: values of graph inputs or of any inner values, whose nodes then do not run.
        replace: tensors that stand for constants.
        hook: called with the name and value of every activation, feeds included; its readers see what it returns.
        Values are let go as soon as nothing reads them any more.
        Raises Unsupported for a needed node that torch cannot run, ValueError for a name that is unknown or missing;
        what torch itself raises carries a note that names the node.
        """
        names = tuple(self.outputs if taps is None else taps)
        replace = replace or {}
        self._check_names(feeds, names, replace)
        constants = {**self.constants, **replace}
        values = {name: value if hook is None else hook(name, value) for name, value in feeds.items()}
        for step in self._plan(frozenset(feeds), names):
            for name, value in zip(step.gives, _outputs(step, values, constants), strict=False):
                values[name] = value if hook is None else hook(name, value)
            for name in step.released:
                values.pop(name, None)
        return {name: values[name] if name in values else constants[name] for name in names}

    def _check_names(self, feeds: Iterable[str], taps: Iterable[str], replace: Iterable[str]) -> None:
        known = {*self.inputs, *self._producers, *self.constants}
        if unknown := [name for name in (*feeds, *taps) if name not in known]:
            raise ValueError(f"the graph has no values named {unknown}")
        if strange := [name for name in replace if name not in self.constants]:
            raise ValueError(f"only constants can be replaced, and these are none: {strange}")

    def _make_plan(self, fed: frozenset[str], taps: tuple[str, ...]) -> list[_Step]:
        steps: list[_Step] = []
        later = set(taps)
        for node in sorted(self._needed(fed, taps), key=self._order.__getitem__, reverse=True):
            reads = tuple(None if value is None else str(value.name) for value in node.inputs)
            gives = tuple(str(value.name or "") for value in node.outputs)
            touched = {name for name in (*reads, *gives) if name is not None}
            steps.append(_Step(node, reads, gives, tuple(touched - later - self.constants.keys())))
            later |= touched
        return steps[::-1]

    def _needed(self, fed: frozenset[str], taps: tuple[str, ...]) -> set[ir.Node]:
        """The nodes that the taps depend on, as far back as the given values."""
        needed: set[ir.Node] = set()
        names = [name for name in taps if name not in fed]
        while names:
            name = names.pop()
            node = self._producers.get(name)
            if name in self.constants or node in needed:
                continue
            if node is None:
                raise ValueError(f"the input {name!r} is needed for {list(taps)} and is not given")
            if (reason := refusal(node)) is not None:
                raise Unsupported(reason)
            needed.add(node)
            names += [str(v.name) for v in node.inputs if v is not None and v.name not in fed]
        return needed


def _constants(model: ir.Model) -> Iterable[tuple[str, Tensor]]:
    """Initializers and values of Constant nodes, as far as torch has their types."""
    result = (value for node in model.graph if node.op_type == "Constant" for value in node.outputs)
    for value in (*model.graph.initializers.values(), *result):
        if (tensor := ir.convenience.get_const_tensor(value)) is not None and tensor.dtype in DTYPES:
            yield str(value.name), tensor_of(tensor.numpy())


def _outputs(step: _Step, values: Mapping[str, Tensor], constants: Mapping[str, Tensor]) -> Sequence[Tensor]:
    inputs = [None if name is None else values[name] if name in values else constants[name] for name in step.reads]
    try:
        outputs = OPERATORS[step.node.op_type](step.node, *inputs)
    except Exception as error:
        error.add_note(f"in {_label(step.node)}")
        raise
    return (outputs,) if isinstance(outputs, Tensor) else outputs


# One sample run forward in torch, and backward along any directions of its outputs, with little held at a time.
#
# Gradients are handed over one by one as the sweep reaches them, and not kept.

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
        result = {name: tensor_of(value) for name, value in feeds.items()}
        with torch.enable_grad():
            self._outputs = graph.run(result, replace=leaves, hook=self._watch)

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


# How many threads torch uses.


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Rounding of sums, and with it the delivered bytes, depends on the number of threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
