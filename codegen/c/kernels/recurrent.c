/* Recurrent layers go through a sequence with a state. sizes: steps, batch, inputs, units; inputs and recurrence:
 * rows of all gates of a direction; bias: of both. */
struct recurrent {
  struct real_weights inputs, recurrence;
  const float *bias;
  uint16_t steps, width, units;
  uint8_t is_reversed;
};

static void products(const struct real_weights *weights, const float *x, float *out, uint32_t rows, uint8_t *scratch) {
  struct reader reader;
  open_reader(&reader, &weights->codes);
  for (uint32_t i = 0; i < rows; i++) out[i] += real_row(weights, &reader, i, x, (int8_t *)scratch);
}
