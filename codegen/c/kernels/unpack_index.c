/* Indices into a list, or of evenly spaced codes: the lowest one and multiples of a step. */
PTQC_APART void unpack_index(struct reader *reader, uint32_t rows, int8_t *out) {
  const struct weights *const weights = reader->weights;
  const uint8_t *const data = weights->data;
  const int8_t *const table = weights->table;
  const uint32_t bits = weights->bits, mask = (1u << bits) - 1u, count = rows * weights->row, step = weights->step;
  const uint32_t lows = 0x01010101u * (uint32_t)(weights->low + 128);
  /* Four indices become the bytes of a word: two in each half of it, and then one. */
  const uint32_t two = (1u << 2u * bits) - 1u, first = mask | mask << 16, second = first << bits;
  uint32_t place = reader->place, i = 0;
  reader->place = place + count * bits;
#if defined(PTQC_HELIUM)
  const uint8x16_t places = places_of(place, bits), masks = vdupq_n_u8((uint8_t)mask);
  for (; count - i >= 16u; i += 16u, place += 16u * bits) {
    const uint8x16_t index = vandq_u8(eight_bits_at(data + (place >> 3), places), masks);
    const uint8x16_t spaced = vmlaq_n_u8(vdupq_n_u8((uint8_t)weights->low), index, (uint8_t)step);
    vstrbq_s8(out + i, table ? vldrbq_gather_offset_s8(table, index) : vreinterpretq_s8_u8(spaced));
  }
#endif
  for (; i < count; i += 4u, place += 4u * bits) {
    uint32_t word = bits_at(data, place);
    if (bits <= 6u)
      word = (word & two) | (word & two << 2u * bits) << (16u - 2u * bits);
    else
      word = (word & two) | (bits_at(data, place + 2u * bits) & two) << 16;
    word = (word & first) | (word & second) << (8u - bits);
    if (table)
      look_up_bytes(table, word, out + i);
    else /* from 0 on no byte reaches the next one */
      put_bytes((word * step + lows) ^ 0x80808080u, out + i);
  }
}
