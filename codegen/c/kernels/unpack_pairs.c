/* Pairs are neighbours in the order (channel, tap); rows are in the order (tap, channel). */
PTQC_APART void unpack_pairs(struct reader *reader, int8_t *out, uint32_t stride) {
  const struct weights *const weights = reader->weights;
  const uint8_t *const data = weights->data;
  const int8_t *const table = weights->table;
  const uint32_t taps = weights->taps, bits = weights->bits, mask = (1u << bits) - 1u;
  const uint32_t next = weights->row / taps * stride;
  uint32_t place = reader->place, tap = 0;
  int8_t *to = out;
  for (uint32_t left = weights->row; left; left -= 2u, place += bits) {
    const int8_t *const pair = table + 2u * (bits_at(data, place) & mask);
    if (taps == 1u) {
      out[0] = pair[0];
      out[stride] = pair[1];
      out += 2u * stride;
      continue;
    }
    for (uint32_t part = 0; part < 2u; part++) {
      *to = pair[part];
      to += next;
      if (++tap == taps) tap = 0, out += stride, to = out;
    }
  }
  reader->place = place;
}
