/* table: null where codes are evenly spaced. */
PTQC_INLINE int8_t code_of(const struct weights *weights, const int8_t *table, uint32_t index) {
  return table ? table[index] : (int8_t)(weights->low + (int32_t)(index * weights->step));
}

PTQC_INLINE void unpack_indices(struct reader *reader, const int8_t *table, int8_t *out, uint32_t stride) {
  const struct weights weights = *reader->weights;
  const uint32_t bits = weights.bits, mask = (1u << bits) - 1u;
  uint32_t place = reader->place, left = weights.row;
  if (bits <= 6u)
    for (; left >= 4u; left -= 4u, place += 4u * bits, out += 4u * stride) {
      uint32_t word = bits_at(weights.data, place);
      out[0] = code_of(&weights, table, word & mask);
      word >>= bits;
      out[stride] = code_of(&weights, table, word & mask);
      word >>= bits;
      out[2u * stride] = code_of(&weights, table, word & mask);
      word >>= bits;
      out[3u * stride] = code_of(&weights, table, word & mask);
    }
  for (; left; left--, place += bits, out += stride)
    *out = code_of(&weights, table, bits_at(weights.data, place) & mask);
  reader->place = place;
}

PTQC_APART void unpack_index(struct reader *reader, int8_t *out, uint32_t stride) {
  if (reader->weights->table)
    unpack_indices(reader, reader->weights->table, out, stride);
  else
    unpack_indices(reader, 0, out, stride);
}
