/*
 * Runs a network that ptqc compiled on one sample, prints the class, and compares the outputs with those that
 * model.onnx gave when it was compiled. sample.py writes sample.h.
 */
#include <stdint.h>

#include "sample.h"

/* Of host.c or board.c. */
void print(const char *text);

static void print_number(uint32_t number) {
  char text[11];
  char *digit = text + sizeof text - 1;
  *digit = '\0';
  do *--digit = (char)('0' + number % 10u);
  while (number /= 10u);
  print(digit);
}

/* Elements of an output that are farther from the expected ones than allowed; not-a-number is always too far. */
#define DIFFERENT(output, elements, allowed)                                                 \
  for (uint32_t i = 0; i < (elements); ++i) {                                                \
    const float distance = (float)output[i] - (float)expected_##output[i];                   \
    different += !(-(allowed) <= distance && distance <= (allowed));                         \
  }

int main(void) {
  uint32_t best = 0, different = 0;
  if (RUN_NETWORK) return 1;
  for (uint32_t i = 1; i < SCORES_ELEMENTS; ++i)
    if (SCORES[i] > SCORES[best]) best = i;
  COMPARE_OUTPUTS
  print("class ");
  print_number(best);
  print(", ");
  print_number(different);
  print(" outputs differ\n");
  return different != 0;
}
