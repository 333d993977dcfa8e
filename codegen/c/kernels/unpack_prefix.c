/* The code that begins a word. by size: 0, 1, -1, 2, ... */
PTQC_INLINE int8_t first_code(const int8_t *table, uint32_t class, uint32_t word) {
  const uint32_t index = (class >> 16) + (word >> 4 & (class >> 8 & 255u));
  const int32_t size = (int32_t)((index + 1u) >> 1);
  return table ? table[index] : (int8_t)((index & 1u) ? size : -size);
}

PTQC_INLINE void unpack_prefixes(struct reader *reader, const int8_t *table, int8_t *out, uint32_t stride) {
  const struct weights *const weights = reader->weights;
  const uint8_t *const data = weights->data;
  uint32_t classes[16]; /* the first index of each, the mask of the bits that follow, and how many bits there are */
  uint32_t place = reader->place, first = 0, left = weights->row;
  for (uint32_t class = 0; class < 16u; class++) {
    const uint32_t width = weights->widths[class], count = 1u << width;
    classes[class] = first << 16 | (count - 1u) << 8 | (4u + width);
    first += count;
  }
  for (; left >= 2u; left -= 2u, out += 2u * stride) {
    const uint32_t word = bits_at(data, place), class = classes[word & 15u], bits = class & 255u;
    const uint32_t next = word >> bits, other = classes[next & 15u];
    out[0] = first_code(table, class, word);
    out[stride] = first_code(table, other, next);
    place += bits + (other & 255u);
  }
  if (left) {
    const uint32_t word = bits_at(data, place), class = classes[word & 15u];
    *out = first_code(table, class, word);
    place += class & 255u;
  }
  reader->place = place;
}

/* A class of 4 bits, and behind it the place of the code in the class. */
PTQC_APART void unpack_prefix(struct reader *reader, int8_t *out, uint32_t stride) {
  if (reader->weights->table)
    unpack_prefixes(reader, reader->weights->table, out, stride);
  else
    unpack_prefixes(reader, 0, out, stride);
}
