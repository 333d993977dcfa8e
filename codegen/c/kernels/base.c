#if defined(__GNUC__)
#define PTQC_INLINE static inline __attribute__((unused))
#define PTQC_APART static __attribute__((noinline)) /* its loops need all registers */
#else
#define PTQC_INLINE static inline
#define PTQC_APART static
#endif

/* Four bytes at a place of any alignment. */
PTQC_INLINE uint32_t load4(const void *place) {
  uint32_t word;
  memcpy(&word, place, 4);
  return word;
}

/*
 * Products of 8-bit activations and weights, two at a time: DSP instructions of Arm multiply halves of words.
 * activations_even and _odd, weights_even and _odd: bytes 0 and 2, or 1 and 3, of a word as two halves.
 */
#if defined(__ARM_FEATURE_DSP) && __ARM_FEATURE_DSP && !defined(PTQC_PLAIN)
#define PTQC_DSP 1
PTQC_INLINE uint32_t activations_even(uint32_t word) {
  uint32_t halves;
  __asm__("uxtb16 %0, %1" : "=r"(halves) : "r"(word));
  return halves;
}
PTQC_INLINE uint32_t activations_odd(uint32_t word) {
  uint32_t halves;
  __asm__("uxtb16 %0, %1, ror #8" : "=r"(halves) : "r"(word));
  return halves;
}
PTQC_INLINE uint32_t weights_even(uint32_t word) {
  uint32_t halves;
  __asm__("sxtb16 %0, %1" : "=r"(halves) : "r"(word));
  return halves;
}
PTQC_INLINE uint32_t weights_odd(uint32_t word) {
  uint32_t halves;
  __asm__("sxtb16 %0, %1, ror #8" : "=r"(halves) : "r"(word));
  return halves;
}
PTQC_INLINE int32_t add_products(uint32_t a, uint32_t w, int32_t sum) {
  __asm__("smlad %0, %1, %2, %0" : "+r"(sum) : "r"(a), "r"(w));
  return sum;
}
/* Differences of halves. */
PTQC_INLINE uint32_t less(uint32_t a, uint32_t b) {
  uint32_t halves;
  __asm__("ssub16 %0, %1, %2" : "=r"(halves) : "r"(a), "r"(b));
  return halves;
}
PTQC_INLINE int32_t add_low(uint32_t a, uint32_t w, int32_t sum) {
  __asm__("smlabb %0, %1, %2, %0" : "+r"(sum) : "r"(a), "r"(w));
  return sum;
}
PTQC_INLINE int32_t add_high(uint32_t a, uint32_t w, int32_t sum) {
  __asm__("smlatt %0, %1, %2, %0" : "+r"(sum) : "r"(a), "r"(w));
  return sum;
}
#endif

#if defined(__ARM_FEATURE_MVE) && (__ARM_FEATURE_MVE & 1) && !defined(PTQC_PLAIN)
#define PTQC_HELIUM 1
#include <arm_mve.h>
#endif
