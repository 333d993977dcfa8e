/*
 * Classifies one input with a static library that ptqc made; needs libc alone.
 *
 *   classify weights.bin input.f32
 *
 * input.f32: float32, as they lie in memory (NumPy: `x.astype("float32").tofile("input.f32")`).
 */
#define _POSIX_C_SOURCE 200809L
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "model.h"

/* As model.h calls the input and the output of your network. */
enum { INPUT = MODEL_IN_INPUT_ELEMENTS, CLASSES = MODEL_OUT_LOGITS_ELEMENTS };

static int fail(const char *what, const char *why) {
  fprintf(stderr, "%s: %s\n", what, why);
  return 1;
}

/* A file that stays on disk until its pages are read; several processes share them. */
static const void *map(const char *path, size_t *bytes) {
  struct stat found;
  const int file = open(path, O_RDONLY);
  void *data = MAP_FAILED;
  if (file >= 0 && fstat(file, &found) == 0) {
    *bytes = (size_t)found.st_size;
    data = mmap(NULL, *bytes, PROT_READ, MAP_PRIVATE, file, 0);
  }
  if (file >= 0) close(file);
  return data == MAP_FAILED ? NULL : data;
}

int main(int count, char **values) {
  static float input[INPUT], logits[CLASSES];
  size_t weights_bytes = 0, input_bytes = 0;
  if (count != 3) return fail("usage", "classify weights.bin input.f32");
  const void *const weights = map(values[1], &weights_bytes);
  if (weights == NULL) return fail(values[1], "cannot be read");
  FILE *const file = fopen(values[2], "rb");
  if (file != NULL) input_bytes = fread(input, 1, sizeof input, file);
  if (input_bytes != sizeof input) return fail(values[2], "has not as many numbers as the network takes");
  fclose(file);

  model_model *model;
  int status = model_create(&model, weights, weights_bytes, NULL, 0);
  if (status != MODEL_OK) return fail(values[1], model_message(status));
  status = model_run(model, NULL, 1, input, logits);
  if (status != MODEL_OK) return fail("run", model_message(status));

  int best = 0;
  for (int i = 1; i < CLASSES; ++i)
    if (logits[i] > logits[best]) best = i;
  printf("class %d, logit %.6g, %s\n", best, logits[best], model_instruction_set(model));
  model_free(model);
  return 0;
}
