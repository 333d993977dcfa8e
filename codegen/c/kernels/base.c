#if defined(__GNUC__)
#define PTQC_INLINE static inline __attribute__((unused))
#define PTQC_APART static __attribute__((noinline, unused)) /* its loops need all registers */
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
PTQC_INLINE int32_t add_low(uint32_t a, uint32_t w, int32_t sum) {
  __asm__("smlabb %0, %1, %2, %0" : "+r"(sum) : "r"(a), "r"(w));
  return sum;
}
PTQC_INLINE int32_t add_high(uint32_t a, uint32_t w, int32_t sum) {
  __asm__("smlatt %0, %1, %2, %0" : "+r"(sum) : "r"(a), "r"(w));
  return sum;
}
/* A sum and the four bytes of a word. */
PTQC_INLINE int32_t add_bytes(uint32_t word, int32_t sum) {
  __asm__("usada8 %0, %1, %2, %0" : "+r"(sum) : "r"(word), "r"(0));
  return sum;
}
/* A word shifted down by the lowest byte of another one, below 32. */
PTQC_INLINE uint32_t shifted(uint32_t word, uint32_t by) {
  uint32_t result;
  __asm__("lsr %0, %1, %2" : "=r"(result) : "r"(word), "r"(by));
  return result;
}
/* A number and the second byte of a word. */
PTQC_INLINE uint32_t add_second_byte(uint32_t number, uint32_t word) {
  __asm__("uxtab %0, %0, %1, ror #8" : "+r"(number) : "r"(word));
  return number;
}
#else
PTQC_INLINE uint32_t shifted(uint32_t word, uint32_t by) { return word >> (by & 31u); }
PTQC_INLINE uint32_t add_second_byte(uint32_t number, uint32_t word) { return number + (word >> 8 & 255u); }
#endif

#if defined(__ARM_FEATURE_MVE) && (__ARM_FEATURE_MVE & 2) && !defined(PTQC_PLAIN) && !defined(PTQC_WITHOUT_FPU)
#define PTQC_HELIUM 1
#include <arm_mve.h>
/* Helium multiplies signed bytes: 128 is taken from activations, and from the zero point of the input. */
#define PTQC_ACTIVATION_OFFSET 128
#else
#define PTQC_ACTIVATION_OFFSET 0
#endif

/* Copy or set a few bytes. */
#if defined(PTQC_HELIUM)
PTQC_INLINE void copy(uint8_t *to, const uint8_t *from, uint32_t count) {
  __asm__ volatile(
      "wlstp.8 lr, %[count], 2f\n"
      "1:\n\t"
      "vldrb.8 q0, [%[from]], #16\n\t"
      "vstrb.8 q0, [%[to]], #16\n\t"
      "letp lr, 1b\n"
      "2:"
      : [to] "+r"(to), [from] "+r"(from)
      : [count] "r"(count)
      : "q0", "lr", "memory");
}
PTQC_INLINE void fill(uint8_t *to, uint8_t value, uint32_t count) {
  __asm__ volatile(
      "wlstp.8 lr, %[count], 2f\n"
      "1:\n\t"
      "vstrb.8 %q[value], [%[to]], #16\n\t"
      "letp lr, 1b\n"
      "2:"
      : [to] "+r"(to)
      : [count] "r"(count), [value] "w"(vdupq_n_u8(value))
      : "lr", "memory");
}
#else
PTQC_INLINE void copy(uint8_t *to, const uint8_t *from, uint32_t count) { memcpy(to, from, count); }
PTQC_INLINE void fill(uint8_t *to, uint8_t value, uint32_t count) { memset(to, value, count); }
#endif
