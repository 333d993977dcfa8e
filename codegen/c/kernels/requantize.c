/*
 * Codes of sums: round(float32(sum) * factor) + zero, halves to even, within 0 and 255: the integers of the ONNX file.
 * With a floating-point unit as they are defined. Without one, in whole numbers: the product of 24 digits of the
 * factor and the sum, rounded once. That this gives the same codes was shown for every channel when this was written,
 * for all sums that its weights can give; layers of which it was not have is_exact 0.
 */
#if defined(PTQC_WITHOUT_FPU) || (defined(__arm__) && !defined(__ARM_FP)) || (defined(__riscv) && !defined(__riscv_flen))
#define PTQC_FPU 0
#else
#define PTQC_FPU 1
#endif

#if defined(__GNUC__) && defined(__ARM_FP) && !defined(__aarch64__)
#define PTQC_EXACT_NEAREST 1 /* of numbers of any size */
PTQC_INLINE int32_t nearest(float value) {
  float result;
  int32_t bits;
  __asm__("vcvtr.s32.f32 %0, %1" : "=t"(result) : "t"(value));
  memcpy(&bits, &result, 4);
  return bits;
}
#else
#define PTQC_EXACT_NEAREST 0
PTQC_INLINE int32_t nearest(float value) {
  const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to whole numbers */
  int32_t bits;
  float result;
  if (!(value > -4194304.0f)) return -4194304; /* NaN, too */
  if (value > 4194303.0f) return 4194303;
  result = value + magic;
  memcpy(&bits, &result, 4);
  return bits - 0x4B400000;
}
#endif

/* A product that is rounded to float32 before anything is added to it. */
PTQC_INLINE float rounded(float value) {
#if defined(__GNUC__) && defined(__ARM_FP) && !defined(__aarch64__)
  __asm__("" : "+t"(value));
  return value;
#else
  volatile float result = value;
  return result;
#endif
}

PTQC_INLINE uint8_t code(int32_t value) {
#if defined(PTQC_DSP)
  uint32_t result;
  __asm__("usat %0, #8, %1" : "=r"(result) : "r"(value));
  return (uint8_t)result;
#else
  return (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value);
#endif
}

#if !PTQC_FPU
static int32_t scaled(int32_t sum, float factor) {
  uint32_t bits, shift;
  uint64_t product, whole, rest, half;
  memcpy(&bits, &factor, 4);
  shift = 150u - (bits >> 23);
  product = (uint64_t)(sum < 0 ? 0u - (uint32_t)sum : (uint32_t)sum) * ((bits & 0x7FFFFFu) | 0x800000u);
  if (shift > 62u) return 0;
  whole = product >> shift;
  rest = product & (((uint64_t)1 << shift) - 1u);
  half = (uint64_t)1 << (shift - 1u);
  if (rest > half || (rest == half && (whole & 1u))) whole++;
  if (whole > 65535u) whole = 65535u;
  return sum < 0 ? -(int32_t)whole : (int32_t)whole;
}
#endif

#if defined(PTQC_HELIUM)
/* Sums in steps of the output. */
PTQC_INLINE float32x4_t steps_of(int32x4_t sums, float32x4_t factors) { return vmulq_f32(vcvtq_f32_s32(sums), factors); }

PTQC_INLINE uint32x4_t codes_of(float32x4_t steps, int32_t zero) {
  const int32x4_t codes = vqaddq_n_s32(vcvtnq_s32_f32(steps), zero);
  return vreinterpretq_u32_s32(vminq_s32(vmaxq_s32(codes, vdupq_n_s32(0)), vdupq_n_s32(255)));
}
#endif

PTQC_INLINE uint8_t requantized(int32_t sum, float factor, int32_t zero, int is_exact) {
#if !PTQC_FPU
  if (is_exact) return code(scaled(sum, factor) + zero);
#endif
  (void)is_exact;
  return code(nearest(rounded((float)sum * factor)) + zero);
}
