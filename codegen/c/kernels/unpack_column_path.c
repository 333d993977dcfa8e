/* Each column is a path through a trellis of 256 states: the last 8 bits of its steps. bits: of two steps. */
PTQC_APART void unpack_column_path(struct reader *reader, int8_t *out, uint32_t stride) {
  const struct weights *const weights = reader->weights;
  const int8_t *const table = weights->table;
  struct reader here = *reader;
  const uint32_t bits = (weights->bits + 1u - (here.row & 1u)) / 2u;
  uint8_t *const end = here.states + weights->row;
  if (here.row == 0) {
    memcpy(here.states, here.next, weights->row);
    here.next += weights->row;
  }
  for (uint8_t *state = here.states; state != end; state++, out += stride) {
    const uint32_t next = ((uint32_t)*state << bits | next_bits(&here, bits)) & 255u;
    *state = (uint8_t)next;
    *out = table[next];
  }
  here.row++;
  *reader = here;
}
