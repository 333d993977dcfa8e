/* The mean over all pixels of each channel. factor: from a sum to codes. */
static void mean(const uint8_t *in, uint8_t *out, uint32_t pixels, uint32_t channels, float factor, uint8_t zero_in,
                 uint8_t zero_out, int is_exact) {
  for (uint32_t channel = 0; channel < channels; channel++) {
    int32_t sum = -(int32_t)(pixels * zero_in);
    for (uint32_t pixel = 0; pixel < pixels; pixel++) sum += in[(size_t)pixel * channels + channel];
    out[channel] = requantized(sum, factor, zero_out, is_exact);
  }
}
