/*
 * Uses a static library as a program does, in C and in C++: `program WEIGHTS SAMPLES`, inputs in standard input. Tries
 * what is wrong first, then runs the samples together, one by one on memory that is not aligned, and in four threads at
 * once; prints the instruction set, and writes the outputs to standard output.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model.h"

enum { THREADS = 4, REPEATS = 5, INPUT = MODEL_IN_INPUT_ELEMENTS, OUTPUT = MODEL_OUT_LOGITS_ELEMENTS };

#define CHECK(holds)                                     \
  do {                                                   \
    if (!(holds)) {                                      \
      fprintf(stderr, "%d: %s\n", __LINE__, #holds);     \
      exit(1);                                           \
    }                                                    \
  } while (0)

static const float *images;
static const float *wanted;
static int64_t count;

static void *runs(void *argument) {
  const model_model *const model = (const model_model *)argument;
  void *const workspace = malloc(model_workspace_bytes(model, count));
  float *const logits = (float *)malloc((size_t)count * OUTPUT * sizeof(float));
  int i;
  for (i = 0; i < REPEATS; ++i) {
    CHECK(model_run(model, workspace, count, images, logits) == MODEL_OK);
    CHECK(memcmp(logits, wanted, (size_t)count * OUTPUT * sizeof(float)) == 0);
  }
  free(workspace);
  free(logits);
  return NULL;
}

static void try_what_is_wrong(const model_model *valid, unsigned char *weights) {
  const size_t bytes = MODEL_WEIGHTS_BYTES;
  model_model *model = NULL;
  float logits[OUTPUT];
  CHECK(model_create(&model, weights, bytes - 1, NULL, 1) == MODEL_WRONG_WEIGHTS && model == NULL);
  CHECK(strstr(model_message(MODEL_WRONG_WEIGHTS), "weights.bin") != NULL);
  weights[bytes / 2] ^= 1;
  CHECK(model_create(&model, weights, bytes, NULL, 1) == MODEL_WRONG_WEIGHTS && model == NULL);
  weights[bytes / 2] ^= 1;
  CHECK(model_create(NULL, weights, bytes, NULL, 1) == MODEL_WRONG_ARGUMENT);
  CHECK(model_create(&model, NULL, bytes, NULL, 1) == MODEL_WRONG_ARGUMENT && model == NULL);
  CHECK(model_create(&model, weights, bytes, NULL, -1) == MODEL_WRONG_ARGUMENT && model == NULL);
  CHECK(model_create(&model, weights, bytes, "mmx", 1) == MODEL_NO_INSTRUCTION_SET && model == NULL);
  CHECK(model_run(NULL, NULL, 1, images, logits) == MODEL_WRONG_ARGUMENT);
  CHECK(model_run(valid, NULL, -1, images, logits) == MODEL_WRONG_ARGUMENT);
  CHECK(model_run(valid, NULL, 1, NULL, logits) == MODEL_WRONG_ARGUMENT);
  CHECK(model_run(valid, NULL, 1, images, NULL) == MODEL_WRONG_ARGUMENT);
  CHECK(model_run(valid, NULL, INT64_MAX, images, logits) == MODEL_NO_MEMORY);
  CHECK(model_run(valid, NULL, 0, images, logits) == MODEL_OK);
  CHECK(model_workspace_bytes(valid, -1) == 0 && model_workspace_bytes(valid, INT64_MAX) == 0);
  CHECK(model_workspace_bytes(valid, 2) > model_workspace_bytes(valid, 1));
  CHECK(strcmp(model_message(-1), "unknown status") == 0 && strcmp(model_message(99), "unknown status") == 0);
  model_free(NULL);
}

/* The same where nothing lies better than its type asks for; the weights lie worse and are copied. */
static void run_unaligned(const unsigned char *weights, float *logits) {
  unsigned char *const moved = (unsigned char *)malloc(MODEL_WEIGHTS_BYTES + 1);
  float *const image = (float *)malloc((INPUT + 1) * sizeof(float));
  model_model *model = NULL;
  void *workspace;
  int64_t i;
  memcpy(moved + 1, weights, MODEL_WEIGHTS_BYTES);
  CHECK(model_create(&model, moved + 1, MODEL_WEIGHTS_BYTES, NULL, 2) == MODEL_OK);
  free(moved);
  workspace = malloc(model_workspace_bytes(model, 1) + 1);
  for (i = 0; i < count; ++i) {
    memcpy(image + 1, images + i * INPUT, INPUT * sizeof(float));
    CHECK(model_run(model, (char *)workspace + 1, 1, image + 1, logits + i * OUTPUT) == MODEL_OK);
  }
  model_free(model);
  free(workspace);
  free(image);
}

int main(int argc, char **argv) {
  unsigned char *const weights = (unsigned char *)malloc(MODEL_WEIGHTS_BYTES);
  FILE *const file = fopen(argc == 3 ? argv[1] : "", "rb");
  pthread_t threads[THREADS];
  model_model *model = NULL;
  float *input, *together, *alone;
  int i;
  CHECK(file != NULL && fread(weights, 1, MODEL_WEIGHTS_BYTES, file) == MODEL_WEIGHTS_BYTES);
  fclose(file);
  count = atoi(argv[2]);
  input = (float *)malloc((size_t)count * INPUT * sizeof(float));
  together = (float *)calloc((size_t)count + 1, OUTPUT * sizeof(float));
  alone = (float *)calloc((size_t)count + 1, OUTPUT * sizeof(float));
  CHECK(fread(input, INPUT * sizeof(float), (size_t)count, stdin) == (size_t)count);
  images = input;
  wanted = together;
  CHECK(model_create(&model, weights, MODEL_WEIGHTS_BYTES, NULL, 0) == MODEL_OK);
  try_what_is_wrong(model, weights);
  CHECK(model_run(model, NULL, count, images, together) == MODEL_OK);
  run_unaligned(weights, alone);
  CHECK(memcmp(together, alone, (size_t)count * OUTPUT * sizeof(float)) == 0);
  for (i = 0; i < THREADS; ++i) CHECK(pthread_create(&threads[i], NULL, runs, model) == 0);
  for (i = 0; i < THREADS; ++i) CHECK(pthread_join(threads[i], NULL) == 0);
  fprintf(stderr, "%s\n", model_instruction_set(model));
  CHECK(fwrite(together, OUTPUT * sizeof(float), (size_t)count, stdout) == (size_t)count);
  model_free(model);
  free(weights);
  free(input);
  free(together);
  free(alone);
  return 0;
}
