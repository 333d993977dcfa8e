"""Caches of keys and values: inputs of a decoder that one of its outputs continues."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import onnx_ir as ir

# Ways to name what is continued, and what continues it, the longest first.
NAMES = (("past_key_values", "present"), ("past", "present"))
AXES = 4


@dataclass(frozen=True)
class Cache:
    """Keys or values of one layer: (texts, heads, places, channels), handed on from `past` to `present`."""

    past: ir.Value
    present: ir.Value

    @property
    def name(self) -> str:
        """That of the input."""
        return str(self.past.name)

    @property
    def channels(self) -> int | None:
        """Of one head; None where the model leaves them open."""
        size = None if self.past.shape is None else self.past.shape[-1]
        return size if isinstance(size, int) else None


def find_caches(model: ir.Model) -> list[Cache]:
    """All caches of a model, in the order of its inputs."""
    return list(_found(model.graph.inputs, model.graph.outputs))


def _found(inputs: Sequence[ir.Value], outputs: Sequence[ir.Value]) -> Iterator[Cache]:
    by_name = {str(value.name): value for value in outputs}
    for past in inputs:
        names = (str(past.name).replace(*pair) for pair in NAMES)
        present = next((by_name[name] for name in names if name != past.name and name in by_name), None)
        if present is not None and present.dtype == past.dtype and _rank(past) == _rank(present) == AXES:
            yield Cache(past, present)


def _rank(value: ir.Value) -> int | None:
    return None if value.shape is None else value.shape.rank()
