PTQC_APART void unpack_index(struct reader *reader, int8_t *out, uint32_t stride) {
  const struct weights *const weights = reader->weights;
  const int8_t *const table = weights->table;
  const uint32_t bits = weights->bits, step = weights->step;
  const int32_t low = weights->low;
  struct reader here = *reader;
  int8_t *const end = out + (size_t)weights->row * stride;
  if (table)
    for (; out != end; out += stride) *out = table[next_bits(&here, bits)];
  else
    for (; out != end; out += stride) *out = (int8_t)(low + (int32_t)(next_bits(&here, bits) * step));
  *reader = here;
}
