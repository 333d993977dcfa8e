/* Four indices of at most 6 bits, as the bytes of a word: two in each half of it, and then one. */
PTQC_INLINE uint32_t indices_at(const uint8_t *data, uint32_t place, uint32_t bits) {
  const uint32_t mask = (1u << bits) - 1u, one = mask | mask << 16, two = (1u << 2u * bits) - 1u;
  uint32_t word = bits_at(data, place);
  word = (word & two) | (word << (16u - 2u * bits) & two << 16);
  return (word & one) | (word << (8u - bits) & one << 8);
}

/* Indices into a list, or of evenly spaced codes: the lowest one and multiples of a step. */
PTQC_APART void unpack_index(struct reader *reader, uint32_t rows, int8_t *out) {
  const struct weights *const weights = reader->weights;
  const uint8_t *const data = weights->data;
  const int8_t *const table = weights->table, *const end = out + (size_t)rows * weights->row;
  const uint32_t bits = weights->bits, step = weights->step, lows = 0x01010101u * (uint32_t)(weights->low + 128);
  uint32_t place = reader->place;
  reader->place = place + rows * weights->row * bits;
#if defined(PTQC_HELIUM)
  const uint8x16_t places = places_of(place, bits), masks = vdupq_n_u8((uint8_t)((1u << bits) - 1u));
  for (; end - out >= 16; out += 16, place += 16u * bits) {
    const uint8x16_t index = vandq_u8(eight_bits_at(data + (place >> 3), places), masks);
    const uint8x16_t spaced = vaddq_n_u8(vmulq_n_u8(index, (uint8_t)step), (uint8_t)weights->low);
    vstrbq_s8(out, table ? vldrbq_gather_offset_s8(table, index) : vreinterpretq_s8_u8(spaced));
  }
#endif
  if (table)
    for (; out < end; out += 4, place += 4u * bits) look_up_bytes(table, indices_at(data, place, bits), out);
  else /* from 0 on no byte reaches the next one */
    for (; out < end; out += 4, place += 4u * bits)
      put_bytes((indices_at(data, place, bits) * step + lows) ^ 0x80808080u, out);
}
