static void unpack_index(struct reader *reader, int8_t *out, uint32_t stride) {
  const struct weights *weights = reader->weights;
  struct reader here = *reader;
  const uint32_t bits = weights->bits;
  for (uint32_t i = 0; i < weights->row; i++, out += stride) {
    const uint32_t index = next_bits(&here, bits);
    *out = weights->table ? weights->table[index] : (int8_t)((int32_t)weights->low + (int32_t)(index * weights->step));
  }
  *reader = here;
}
