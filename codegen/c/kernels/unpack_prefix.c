/* A class of 4 bits, and behind it the place of the code in the class. */
static void unpack_prefix(struct reader *reader, int8_t *out, uint32_t stride) {
  const struct weights *weights = reader->weights;
  struct reader here = *reader;
  uint16_t first[16];
  uint32_t place = 0;
  for (uint32_t class = 0; class < 16; class++) {
    first[class] = (uint16_t)place;
    place += 1u << weights->widths[class];
  }
  for (uint32_t i = 0; i < weights->row; i++, out += stride) {
    const uint32_t class = next_bits(&here, 4);
    const uint32_t index = first[class] + next_bits(&here, weights->widths[class]);
    if (weights->table)
      *out = weights->table[index];
    else /* by size: 0, 1, -1, 2, ... */
      *out = (int8_t)((index & 1u) ? (int32_t)((index + 1u) >> 1) : -(int32_t)(index >> 1));
  }
  *reader = here;
}
