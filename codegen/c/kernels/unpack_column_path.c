/* Each column is a path through a trellis of 256 states: the last 8 bits of its steps. bits: of two steps. */
static void unpack_column_path(struct reader *reader, int8_t *out, uint32_t stride) {
  const struct weights *weights = reader->weights;
  struct reader here = *reader;
  const uint32_t bits = (weights->bits + 1u - (here.row & 1u)) / 2u;
  if (here.row == 0) {
    memcpy(here.states, here.next, weights->row);
    here.next += weights->row;
  }
  for (uint32_t i = 0; i < weights->row; i++, out += stride) {
    here.states[i] = (uint8_t)((uint32_t)here.states[i] << bits | next_bits(&here, bits));
    *out = weights->table[here.states[i]];
  }
  here.row++;
  *reader = here;
}
