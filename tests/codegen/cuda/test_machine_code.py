"""What the assembler reports of kernels, and instructions counted in machine code."""

from pathlib import Path

import pytest
from test_cuda_target import needs_nvcc

from ptqc.codegen.cuda.options import ALL
from ptqc.codegen.cuda.toolkit import Toolkit

SOURCE = """
extern "C" __global__ void plain(float* x) { x[threadIdx.x] += 1.0f; }
extern "C" __global__ void products(int* x) {
  __shared__ int room[256];
  room[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  int a = room[threadIdx.x ^ 5], b = a + 1;
  for (int i = 0; i < 2; ++i)
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%4,%4,%4}, {%5,%5}, {%0,%1,%2,%3};"
      : "+r"(x[0]), "+r"(x[1]), "+r"(x[2]), "+r"(x[3]) : "r"(a), "r"(b));
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%4,%4,%4}, {%5,%5}, {%0,%1,%2,%3};"
      : "+f"(((float*)x)[4]), "+f"(((float*)x)[5]), "+f"(((float*)x)[6]), "+f"(((float*)x)[7]) : "r"(a), "r"(b));
}
extern "C" __global__ void sparse(int* x) {
  int a = x[threadIdx.x];
  asm volatile("mma.sp::ordered_metadata.sync.aligned.m16n8k64.row.col.s32.s8.u8.s32 {%0,%1,%2,%3}, {%4,%4,%4,%4}, "
      "{%4,%4,%4,%4}, {%0,%1,%2,%3}, %5, 0;"
      : "+r"(x[0]), "+r"(x[1]), "+r"(x[2]), "+r"(x[3]) : "r"(a), "r"(0x44444444));
}
extern "C" __global__ void __launch_bounds__(1024, 2) many(float* x) {
  float held[80];
  #pragma unroll
  for (int i = 0; i < 80; ++i) held[i] = x[i * 1024 + threadIdx.x];
  __syncthreads();
  #pragma unroll
  for (int i = 0; i < 80; ++i) x[i * 1024 + threadIdx.x] = held[79 - i] * held[(i * 7) % 80];
}
"""


@needs_nvcc
@pytest.mark.parametrize("gpu", ALL.split(","))
def test_each_kernel_has_its_figures(gpu: str, tmp_path: Path) -> None:
    result = Toolkit.require().compile(SOURCE, [gpu], tmp_path, "kernels").codes[gpu]
    assert {name: code.tensor_core_instructions for name, code in result.items()} == {
        "plain": 0,
        "products": 3,
        "sparse": 1,
        "many": 0,
    }
    assert {name: code.shared_bytes for name, code in result.items()} == {
        "plain": 0,
        "products": 1024,
        "sparse": 0,
        "many": 0,
    }
    assert result["plain"].registers < 32
    assert result["plain"].spilled_bytes == 0
    assert result["many"].spilled_bytes > 0
