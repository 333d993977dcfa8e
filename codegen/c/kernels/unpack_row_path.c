/* Each row is a path through a trellis of 256 states: the last 8 bits of its steps. bits: of two steps. */
PTQC_APART void unpack_row_path(struct reader *reader, int8_t *out, uint32_t stride) {
  const struct weights *const weights = reader->weights;
  const uint8_t *const data = weights->data;
  const int8_t *const table = weights->table;
  const uint32_t more = (weights->bits + 1u) / 2u, less = weights->bits / 2u;
  const uint32_t mask = (1u << more) - 1u, small = (1u << less) - 1u;
  uint32_t place = reader->place, left = weights->row, state = bits_at(data, place) & 255u;
  place += 8u;
  for (; left >= 2u; left -= 2u, place += more + less, out += 2u * stride) {
    const uint32_t word = bits_at(data, place);
    state = (state << more | (word & mask)) & 255u;
    out[0] = table[state];
    state = (state << less | (word >> more & small)) & 255u;
    out[stride] = table[state];
  }
  if (left) {
    state = (state << more | (bits_at(data, place) & mask)) & 255u;
    *out = table[state];
    place += more;
  }
  reader->place = place;
}
