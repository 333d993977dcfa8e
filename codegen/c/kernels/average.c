/* Means of windows, added up as real numbers in the order of the taps. counts_padding: divide by the whole window. */
static void average(const struct window *pool, const uint8_t *in, uint8_t *out, float scale_in, uint8_t zero_in,
                    float scale_out, uint8_t zero_out, int counts_padding) {
  const uint32_t channels = pool->in[2];
  for (int32_t y = 0; y < pool->out[0]; y++)
    for (int32_t x = 0; x < pool->out[1]; x++, out += channels)
      for (uint32_t k = 0; k < channels; k++) {
        float sum = 0.0f;
        int32_t count = 0;
        for (int32_t i = 0; i < pool->window[0]; i++)
          for (int32_t j = 0; j < pool->window[1]; j++) {
            const int32_t row = y * pool->strides[0] - pool->padding[0] + i;
            const int32_t column = x * pool->strides[1] - pool->padding[1] + j;
            if (row < 0 || row >= pool->in[0] || column < 0 || column >= pool->in[1]) continue;
            const uint8_t value = in[((size_t)row * pool->in[1] + (size_t)column) * channels + k];
            sum += rounded((float)((int32_t)value - (int32_t)zero_in) * scale_in);
            count++;
          }
        if (counts_padding) count = (int32_t)pool->window[0] * pool->window[1];
        out[k] = code(nearest(rounded(rounded(sum / (float)count) / scale_out) + (float)zero_out));
      }
}
