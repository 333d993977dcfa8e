"""Kernels as plain functions of C: they take pointers of any alignment and numbers, and return 0 or an error."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class PlainKernel:
    """A kernel with its parameters in the order of C: pointers, the last one to its output, then the sizes that vary.

    function: TVM's, which no code of TVM's checks the arguments of.
    """

    function: Any
    pointers: int
    numbers: int

    @classmethod
    def of(cls, function: Any, name: str) -> "PlainKernel":
        """A kernel as `ptqc.codegen.kernels.writing.write` makes it, under another name."""
        import tvm
        from tvm import tirx

        buffers = [value for value in function.params if isinstance(value.ty, tirx.BufferType)]
        others = [value for value in function.params if not isinstance(value.ty, tirx.BufferType)]
        pointers = [tirx.Var(value.name, tvm.ir.PointerType(tvm.ir.PrimType(value.dtype))) for value in buffers]
        views = [tirx.DeclBuffer(value, data=data) for value, data in zip(buffers, pointers, strict=True)]
        sizes = [size for value in buffers for size in value.shape if isinstance(size, tirx.Var)]
        numbers = _distinct([*others, *sizes])
        # TVM packs no function that says how it is called.
        attributes = {"global_symbol": name, "tirx.noalias": True, "calling_conv": 1}
        body = tirx.SeqStmt([*views, function.body, tirx.stmt.Return(tirx.IntImm("int32", 0))])
        plain = tirx.PrimFunc(
            [*pointers, *numbers],
            body,
            tvm.ir.PrimType("int32"),
            tvm.ir.make_node("ir.DictAttrs", **attributes),
        )
        return cls(plain, len(pointers), len(numbers))


def _distinct(values: list[Any]) -> list[Any]:
    result: list[Any] = []
    for value in values:
        if not any(value.same_as(other) for other in result):
            result.append(value)
    return result
