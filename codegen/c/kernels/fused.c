/* x * y + z, rounded once. */
PTQC_INLINE float fused(float x, float y, float z) {
#if defined(__ARM_FEATURE_FMA) && !defined(__aarch64__)
  __asm__("vfma.f32 %0, %1, %2" : "+t"(z) : "t"(x), "t"(y));
  return z;
#else
  return (float)((double)x * (double)y + (double)z);
#endif
}
