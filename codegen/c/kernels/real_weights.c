/* Weights that multiply real numbers: codes and scales, of each row or of each column, or the numbers themselves. */
enum { OF_ALL, OF_ROWS, OF_COLUMNS };

struct real_weights {
  struct weights codes;
  const float *scale;
  const float *values;
  uint8_t scales;
};

/* One row times x. row: memory for its codes. */
static float real_row(const struct real_weights *weights, struct reader *reader, uint32_t number, const float *x,
                      int8_t *row) {
  const uint32_t count = weights->codes.row;
  const int8_t *codes = row;
  float sum = 0.0f;
  if (weights->values) {
    for (uint32_t i = 0; i < count; i++) sum += weights->values[(size_t)number * count + i] * x[i];
    return sum;
  }
  if (weights->codes.kind == RAW)
    codes = (const int8_t *)weights->codes.data + (size_t)number * count;
  else
    unpack_rows(reader, 1, row);
  if (weights->scales == OF_COLUMNS) {
    for (uint32_t i = 0; i < count; i++) sum += (float)codes[i] * weights->scale[i] * x[i];
    return sum;
  }
  for (uint32_t i = 0; i < count; i++) sum += (float)codes[i] * x[i];
  return sum * weights->scale[weights->scales == OF_ROWS ? number : 0u];
}
