/*
 * Each row is a path through a trellis of 256 states: the last 8 bits of its steps. Steps to odd places take `less`
 * bits, those to even places `more`. bits: of two steps.
 */
PTQC_APART void unpack_row_path(struct reader *reader, uint32_t rows, int8_t *out) {
  const struct weights *const weights = reader->weights;
  const int8_t *const table = weights->table;
  const uint32_t bits = weights->bits, more = (bits + 1u) / 2u, less = bits / 2u, row = weights->row;
  for (; rows; rows--) {
    uint32_t place = reader->place, i = 0;
    reader->place = place + row / 2u * less + (row - 1u) / 2u * more + 8u;
#if defined(PTQC_HELIUM)
    const uint8x16_t pairs = vshrq_n_u8(vidupq_n_u8(0, 1), 1), odd = vandq_u8(vidupq_n_u8(0, 1), vdupq_n_u8(1));
    const uint8x16_t before = vaddq_n_u8(vmulq_n_u8(pairs, (uint8_t)bits), (uint8_t)(place & 7u));
    const uint8x16_t places = vaddq_u8(before, vmulq_n_u8(odd, (uint8_t)less));
    for (; row - i >= 16u; i += 16u, place += 8u * bits)
      vstrbq_s8(out + i, vldrbq_gather_offset_s8(table, eight_bits_at(weights->data + (place >> 3), places)));
#endif
    for (; i < row; i += 4u, place += 2u * bits) {
      const uint32_t word = bits_at(weights->data, place), next = word >> bits;
      out[i] = table[word & 255u];
      out[i + 1u] = table[word >> less & 255u];
      out[i + 2u] = table[next & 255u];
      out[i + 3u] = table[next >> less & 255u];
    }
    out += row;
  }
}
