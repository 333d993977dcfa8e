/* Pairs are neighbours in the order (channel, tap); rows are in the order (tap, channel). */
static void unpack_pairs(struct reader *reader, int8_t *out, uint32_t stride) {
  const struct weights *weights = reader->weights;
  struct reader here = *reader;
  const uint32_t taps = weights->taps, channels = weights->row / taps;
  uint32_t tap = 0, channel = 0;
  for (uint32_t i = 0; i < weights->row; i += 2) {
    const int8_t *pair = weights->table + 2u * next_bits(&here, weights->bits);
    for (uint32_t part = 0; part < 2; part++) {
      out[(tap * channels + channel) * stride] = pair[part];
      if (++tap == taps) tap = 0, channel++;
    }
  }
  *reader = here;
}
