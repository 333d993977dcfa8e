/* Pairs are neighbours in the order (channel, tap); rows are in the order (tap, channel). */
PTQC_APART void unpack_pairs(struct reader *reader, uint32_t rows, int8_t *out) {
  const struct weights *const weights = reader->weights;
  const uint8_t *const data = weights->data;
  const int8_t *const table = weights->table;
  const uint32_t taps = weights->taps, bits = weights->bits, mask = (1u << bits) - 1u, row = weights->row;
  uint32_t place = reader->place, left = rows * row / 2u;
  reader->place = place + left * bits;
  if (taps > 1u) {
    const uint32_t channels = row / taps;
    for (; rows; rows--, out += row) {
      int8_t *first = out, *to = out;
      uint32_t tap = 0;
      for (left = row / 2u; left; left--, place += bits) {
        const int8_t *const pair = table + 2u * (bits_at(data, place) & mask);
        for (uint32_t part = 0; part < 2u; part++) {
          *to = pair[part];
          to += channels;
          if (++tap == taps) tap = 0, to = ++first;
        }
      }
    }
    return;
  }
#if defined(PTQC_HELIUM)
  if (bits < 8u) {
    const uint8x16_t places = places_of(place, bits), even = vidupq_n_u8(0, 2);
    for (; left >= 16u; left -= 16u, place += 16u * bits, out += 32) {
      const uint8x16_t index = vandq_u8(eight_bits_at(data + (place >> 3), places), vdupq_n_u8((uint8_t)mask));
      const uint8x16_t pair = vshlq_n_u8(index, 1);
      vstrbq_scatter_offset_s8(out, even, vldrbq_gather_offset_s8(table, pair));
      vstrbq_scatter_offset_s8(out + 1, even, vldrbq_gather_offset_s8(table + 1, pair));
    }
  }
#endif
  if (bits <= 6u)
    for (; left >= 4u; left -= 4u, place += 4u * bits, out += 8) {
      uint32_t word = bits_at(data, place);
      memcpy(out, table + 2u * (word & mask), 2);
      word >>= bits;
      memcpy(out + 2, table + 2u * (word & mask), 2);
      word >>= bits;
      memcpy(out + 4, table + 2u * (word & mask), 2);
      word >>= bits;
      memcpy(out + 6, table + 2u * (word & mask), 2);
    }
  for (; left; left--, place += bits, out += 2) memcpy(out, table + 2u * (bits_at(data, place) & mask), 2);
}
