/* The largest code of each window; what lies outside does not count. */
static void largest(const struct window *pool, const uint8_t *in, uint8_t *out) {
  const uint32_t channels = pool->in[2];
  for (int32_t y = 0; y < pool->out[0]; y++)
    for (int32_t x = 0; x < pool->out[1]; x++, out += channels) {
      memset(out, 0, channels);
      for (int32_t i = 0; i < pool->window[0]; i++)
        for (int32_t j = 0; j < pool->window[1]; j++) {
          const int32_t row = y * pool->strides[0] - pool->padding[0] + i * pool->dilations[0];
          const int32_t column = x * pool->strides[1] - pool->padding[1] + j * pool->dilations[1];
          if (row < 0 || row >= pool->in[0] || column < 0 || column >= pool->in[1]) continue;
          const uint8_t *from = in + ((size_t)row * pool->in[1] + (size_t)column) * channels;
          for (uint32_t k = 0; k < channels; k++)
            if (from[k] > out[k]) out[k] = from[k];
        }
    }
}
