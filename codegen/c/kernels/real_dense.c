/* Convolutions and matrix products of real numbers. window: rows, columns; in, out: rows, columns, channels. */
struct real_dense {
  struct real_weights weights;
  const float *bias;
  uint16_t in[3], out[3];
  uint16_t groups;
  int16_t padding[2];
  uint16_t window[2], strides[2], dilations[2];
};

static void real_dense(const struct real_dense *layer, const float *in, float *out, uint8_t *scratch) {
  const uint32_t rows = layer->out[2] / layer->groups, channels = layer->in[2] / layer->groups;
  float *const window = (float *)(void *)scratch;
  int8_t *const codes = (int8_t *)(window + layer->weights.codes.row);
  struct reader reader;
  open_reader(&reader, &layer->weights.codes);
  for (uint32_t row = 0; row < layer->out[2]; row++) {
    const uint32_t group = row / rows;
    const struct reader begin = reader;
    for (int32_t y = 0; y < layer->out[0]; y++)
      for (int32_t x = 0; x < layer->out[1]; x++) {
        float *to = window;
        for (int32_t i = 0; i < layer->window[0]; i++)
          for (int32_t j = 0; j < layer->window[1]; j++, to += channels) {
            const int32_t line = y * layer->strides[0] - layer->padding[0] + i * layer->dilations[0];
            const int32_t column = x * layer->strides[1] - layer->padding[1] + j * layer->dilations[1];
            if (line < 0 || line >= layer->in[0] || column < 0 || column >= layer->in[1]) {
              for (uint32_t k = 0; k < channels; k++) to[k] = 0.0f;
            } else {
              const size_t pixel = (size_t)line * layer->in[1] + (size_t)column;
              memcpy(to, in + pixel * layer->in[2] + group * channels, channels * sizeof(float));
            }
          }
        reader = begin;
        out[((size_t)y * layer->out[1] + (size_t)x) * layer->out[2] + row] =
            real_row(&layer->weights, &reader, row, window, codes) + (layer->bias ? layer->bias[row] : 0.0f);
      }
  }
}
