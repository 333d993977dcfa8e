/* Pairs are neighbours in the order (channel, tap); rows are in the order (tap, channel). */
PTQC_APART void unpack_pairs(struct reader *reader, int8_t *out, uint32_t stride) {
  const struct weights *const weights = reader->weights;
  const int8_t *const table = weights->table;
  struct reader here = *reader;
  const uint32_t taps = weights->taps, bits = weights->bits, next = weights->row / taps * stride;
  int8_t *const end = out + (size_t)weights->row * stride;
  if (taps == 1) {
    for (; out != end; out += 2u * stride) {
      const int8_t *const pair = table + 2u * next_bits(&here, bits);
      out[0] = pair[0];
      out[stride] = pair[1];
    }
  } else {
    uint32_t tap = 0;
    int8_t *to = out;
    for (uint32_t i = 0; i < weights->row; i += 2u) {
      const int8_t *const pair = table + 2u * next_bits(&here, bits);
      for (uint32_t part = 0; part < 2u; part++) {
        *to = pair[part];
        to += next;
        if (++tap == taps) tap = 0, out += stride, to = out;
      }
    }
  }
  *reader = here;
}
