/* A class of 4 bits, and behind it the place of the code in the class. */
PTQC_APART void unpack_prefix(struct reader *reader, int8_t *out, uint32_t stride) {
  const struct weights *const weights = reader->weights;
  const int8_t *const table = weights->table;
  struct reader here = *reader;
  int8_t *const end = out + (size_t)weights->row * stride;
  uint16_t classes[16]; /* the first code of each, and how many bits follow it */
  uint32_t place = 0;
  for (uint32_t class = 0; class < 16; class++) {
    classes[class] = (uint16_t)(place << 4 | weights->widths[class]);
    place += 1u << weights->widths[class];
  }
  for (; out != end; out += stride) {
    refill(&here);
    const uint32_t class = classes[here.buffer & 15u], width = class & 15u;
    const uint32_t index = (class >> 4) + (here.buffer >> 4 & ((1u << width) - 1u));
    here.buffer >>= 4u + width;
    here.count -= 4u + width;
    if (table)
      *out = table[index];
    else /* by size: 0, 1, -1, 2, ... */
      *out = (int8_t)((index & 1u) ? (int32_t)((index + 1u) >> 1) : -(int32_t)(index >> 1));
  }
  *reader = here;
}
