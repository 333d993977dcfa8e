"""FP8 (E4M3) on a GPU: instructions where a chip has them, the same numbers without them elsewhere.

Chips from compute capability 8.9 on round to FP8 and multiply it. For older ones nvcc compiles the other branch: a code
becomes float16 by moving its bits, 2⁻⁸ too small (the exponent's bias is 15 there and 7 here), which is exact for all
codes but those of NaN; products of float16 are exact in float32, and 2¹⁶ takes both factors back.
"""

from collections.abc import Sequence
from typing import Any

from tvm.tirx.script import builder as T  # noqa: N812

_CODE = """
// The nearest code, halves to even; 448 beyond it; 127 of what is no number.
__forceinline__ __device__ unsigned char ptqc_e4m3(float x) {
#if __CUDA_ARCH__ >= 890
  unsigned short both;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(both) : "f"(0.0f), "f"(x));
  return both;
#else
  const unsigned bits = __float_as_uint(x), size = bits & 0x7FFFFFFFu, sign = bits >> 24 & 0x80u;
  if (size > 0x7F800000u) return 0x7F;
  if (size >= 0x43E00000u) return sign | 0x7E;                                        // from 448 on
  if (size < 0x3C800000u) return sign | __float2uint_rn(__uint_as_float(size) * 512.0f);  // steps of 2^-9 below 2^-6
  return sign | ((size + 0x7FFFFu + (size >> 20 & 1u) >> 20) - (120u << 3));
#endif
}
"""
_PRODUCTS = """
#if __CUDA_ARCH__ < 890
// Two of four codes as float16, 2^-8 too small: `which` puts them into the upper bytes of both.
__forceinline__ __device__ unsigned ptqc_e4m3_pair(unsigned four, unsigned which) {
  const unsigned moved = __byte_perm(four, 0, which);
  return moved & 0x80008000u | moved >> 1 & 0x3F803F80u;
}
__forceinline__ __device__ void ptqc_add_half_products(float (&d)[4], unsigned a0, unsigned a1, unsigned b) {
  const unsigned lower = 0x1404, upper = 0x3424;
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(ptqc_e4m3_pair(a0, lower)), "r"(ptqc_e4m3_pair(a1, lower)), "r"(ptqc_e4m3_pair(a0, upper)),
        "r"(ptqc_e4m3_pair(a1, upper)), "r"(ptqc_e4m3_pair(b, lower)), "r"(ptqc_e4m3_pair(b, upper)));
}
#endif
// c += a · b of a warp, with a (16, 32) and b (32, 8).
__forceinline__ __device__ void ptqc_add_e4m3_products(
    float& c0, float& c1, float& c2, float& c3,
    unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
  float d[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#if __CUDA_ARCH__ >= 890
  asm volatile("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  const float scale = 1.0f;
#else
  ptqc_add_half_products(d, a0, a1, b0);
  ptqc_add_half_products(d, a2, a3, b1);
  const float scale = 65536.0f;
#endif
  c0 = __fmaf_rn(d[0], scale, c0);
  c1 = __fmaf_rn(d[1], scale, c1);
  c2 = __fmaf_rn(d[2], scale, c2);
  c3 = __fmaf_rn(d[3], scale, c3);
}
"""


def code(value: Any) -> Any:
    """The code (uint8) nearest to a float32, halves to even, beyond 448 that of 448."""
    return T.cuda.func_call("ptqc_e4m3", value, source_code=_CODE, return_type="uint8")


def add_products(sums: Sequence[Any], inputs: Sequence[Any], weights: Sequence[Any]) -> None:
    """Products of a warp, 16 rows and 8 columns of 32 numbers each, added to its sums (float32).

    The tensor core sums them from zero, since it keeps few digits of what it sums; their sum is added as float32.
    """
    T.evaluate(T.cuda.func_call("ptqc_add_e4m3_products", *sums, *inputs, *weights, source_code=_PRODUCTS))
