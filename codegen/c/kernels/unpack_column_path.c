/* A step of a path. */
PTQC_INLINE void step_on(uint8_t *state, const int8_t *table, uint32_t bits, uint32_t word, int8_t *out) {
  const uint8_t next = (uint8_t)((uint32_t)*state << bits | (word & ((1u << bits) - 1u)));
  *state = next;
  *out = table[next];
}

/* Each column is a path through a trellis of 256 states: the last 8 bits of its steps. bits: of two steps. */
PTQC_APART void unpack_column_path(struct reader *reader, int8_t *out, uint32_t stride) {
  const struct weights *const weights = reader->weights;
  const uint8_t *const data = weights->data;
  const int8_t *const table = weights->table;
  const uint32_t bits = (weights->bits + 1u - (reader->row & 1u)) / 2u;
  uint8_t *state = reader->states, *const end = state + weights->row;
  uint32_t place = reader->place;
  if (reader->row == 0) {
    memcpy(state, data, weights->row);
    place = 8u * weights->row;
  }
  for (; end - state >= 4; state += 4, place += 4u * bits, out += 4u * stride) {
    const uint32_t word = bits_at(data, place);
    step_on(state, table, bits, word, out);
    step_on(state + 1, table, bits, word >> bits, out + stride);
    step_on(state + 2, table, bits, word >> 2u * bits, out + 2u * stride);
    step_on(state + 3, table, bits, word >> 3u * bits, out + 3u * stride);
  }
  for (; state != end; state++, place += bits, out += stride)
    step_on(state, table, bits, bits_at(data, place), out);
  reader->place = place;
  reader->row++;
}
