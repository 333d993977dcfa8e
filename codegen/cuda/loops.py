"""Loops of the families on a GPU: every turn is a thread."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any

from tvm.tirx.script import builder as T  # noqa: N812

from ptqc.codegen.kernels.writing import Around

# Threads of a block; fewer, by whole warps, where there is less to do.
BLOCK, WARP = 128, 32


class ThreadLoops:
    """See `ptqc.codegen.kernels.writing.Loops`. Blocks belong to one sample, so that indices within it need 32 bits."""

    @contextmanager
    def nest(
        self, batch: Any, sizes: Sequence[int], work: int, around: Around | None = None
    ) -> Iterator[tuple[Any, list[Any]]]:
        """The last size is the fastest: neighbouring threads take neighbouring elements."""
        del work
        assert around is None, "every turn is a thread"
        count = prod(sizes)
        block = min(BLOCK, -(-count // WARP) * WARP)
        blocks = -(-count // block)
        with (
            T.launch_thread("blockIdx.x", T.Cast("int32", batch) * blocks) as place,
            T.launch_thread("threadIdx.x", T.int32(block)) as thread,
        ):
            sample = T.Bind(T.Cast("int64", T.truncdiv(place, blocks)))
            index = T.Bind(T.truncmod(place, blocks) * block + thread)
            with T.If(index < count), T.Then():
                yield sample, _indices(index, sizes)

    @contextmanager
    def each(self, sizes: Sequence[Any]) -> Iterator[list[Any]]:
        """All sizes are known, or there is one that is not."""
        (count,) = sizes if len(sizes) == 1 else (prod(sizes),)
        wide = T.Cast("int64", T.int32(count) if isinstance(count, int) else count)
        blocks = T.Cast("int32", T.truncdiv(wide + (BLOCK - 1), T.int64(BLOCK)))
        with (
            T.launch_thread("blockIdx.x", blocks) as place,
            T.launch_thread("threadIdx.x", T.int32(BLOCK)) as thread,
        ):
            index = T.Bind(place * BLOCK + thread)
            with T.If(T.Cast("int64", index) < wide), T.Then():
                yield _indices(index, sizes)

    def registers(self, size: int, dtype: str) -> Any:
        """A buffer of one thread."""
        return T.alloc_buffer((size,), dtype, scope="local")


def _indices(index: Any, sizes: Sequence[Any]) -> list[Any]:
    results: list[Any] = []
    for size in reversed(sizes[1:]):
        results.append(T.Bind(T.truncmod(index, size)))
        index = T.Bind(T.truncdiv(index, size))
    return [index, *reversed(results)][: len(sizes)]
