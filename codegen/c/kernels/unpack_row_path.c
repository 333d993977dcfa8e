/* Each row is a path through a trellis of 256 states: the last 8 bits of its steps. bits: of two steps. */
PTQC_APART void unpack_row_path(struct reader *reader, int8_t *out, uint32_t stride) {
  const struct weights *weights = reader->weights;
  struct reader here = *reader;
  uint32_t state = next_bits(&here, 8);
  for (uint32_t i = 0; i < weights->row; i++, out += stride) {
    const uint32_t bits = (weights->bits + 1u - (i & 1u)) / 2u;
    state = (state << bits | next_bits(&here, bits)) & 255u;
    *out = weights->table[state];
  }
  *reader = here;
}
