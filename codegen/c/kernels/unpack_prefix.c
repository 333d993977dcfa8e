/* A class: where its codes begin, how many bits behind it say which of them it is, and the mask of these. */
PTQC_INLINE uint32_t class_of(uint32_t first, uint32_t width) {
  return ((1u << width) - 1u) << 24 | (first & 255u) << 8 | width;
}

/* The number of the next code, whose bits are taken off a word. */
PTQC_INLINE uint32_t next_number(uint32_t entry, uint32_t *word) {
  const uint32_t number = add_second_byte(*word & entry >> 24, entry);
  *word = shifted(*word, entry);
  return number;
}

/* Four numbers, in the bytes of a word, as 0, -1, 1, -2, ... */
PTQC_INLINE uint32_t signed_bytes(uint32_t numbers) {
  const uint32_t odd = numbers & 0x01010101u;
  return (numbers >> 1 & 0x7F7F7F7Fu) ^ ((odd << 8) - odd);
}

#if defined(PTQC_HELIUM)
/* 16 codes, whose classes are at `at`. Returns how many bits there are behind these classes. */
PTQC_INLINE uint32_t put_sixteen(const uint8_t *data, const uint32_t *classes, const uint8_t *at, uint32_t place,
                                 int8_t *out) {
  const uint8_t *const bytes = (const uint8_t *)classes;
  const uint16x8_t pairs = vldrbq_u16(at), both = vorrq_u16(vshlq_n_u16(pairs, 2), vshlq_n_u16(pairs, 6));
  const uint8x16_t entry = vandq_u8(vreinterpretq_u8_u16(both), vdupq_n_u8(15u * 4u));
  const uint8x16_t widths = vldrbq_gather_offset_u8(bytes, entry);
  /* Bits behind a class and those before it: of the four codes of a word, and of all words before. */
  const uint8x16_t ends = vreinterpretq_u8_u32(vmulq_n_u32(vreinterpretq_u32_u8(widths), 0x01010101u));
  uint32_t last = place & 7u, none = 0;
  uint32x4_t before = vshlcq_u32(vshrq_n_u32(vreinterpretq_u32_u8(ends), 24), &last, 32);
  uint32x4_t shifted_words;
  uint8x16_t numbers;
  int8x16_t signs;
  before = vaddq_u32(before, vshlcq_u32(before, &none, 32));
  none = 0;
  shifted_words = vshlcq_u32(before, &none, 32);
  none = 0;
  before = vaddq_u32(before, vshlcq_u32(shifted_words, &none, 32));
  numbers = vaddq_u8(vsubq_u8(ends, widths), vreinterpretq_u8_u32(vmulq_n_u32(before, 0x01010101u)));
  numbers = vandq_u8(eight_bits_at(data + (place >> 3), numbers), vldrbq_gather_offset_u8(bytes + 3, entry));
  numbers = vaddq_u8(numbers, vldrbq_gather_offset_u8(bytes + 1, entry));
  signs = vshrq_n_s8(vreinterpretq_s8_u8(vshlq_n_u8(numbers, 7)), 7);
  vstrbq_s8(out, veorq_s8(vreinterpretq_s8_u8(vshrq_n_u8(numbers, 1)), signs));
  return vaddvq_u8(widths);
}
#endif

/* A row. at: its classes; place: of the bits behind them. Returns the place behind the row. */
PTQC_APART uint32_t unpack_codes(const struct weights *weights, const uint32_t *classes, const uint8_t *at,
                                 uint32_t place, int8_t *out) {
  const uint8_t *const data = weights->data;
  uint32_t left = weights->row;
#if defined(PTQC_HELIUM)
  for (; left >= 16u; left -= 16u, at += 8, out += 16) place += put_sixteen(data, classes, at, place, out);
#endif
  for (; left >= 4u; left -= 4u, at += 2, out += 4) {
    const uint32_t four = (uint32_t)at[0] | (uint32_t)at[1] << 8, a = classes[four & 15u], b = classes[four >> 4 & 15u];
    const uint32_t c = classes[four >> 8 & 15u], d = classes[four >> 12];
    uint32_t word = bits_at(data, place), numbers = next_number(a, &word);
    numbers |= next_number(b, &word) << 8;
    numbers |= next_number(c, &word) << 16;
    numbers |= next_number(d, &word) << 24;
    put_bytes(signed_bytes(numbers), out);
    place += (a + b + c + d) & 255u;
  }
  for (uint32_t i = 0; i < left; i++, out++) {
    const uint32_t entry = classes[(uint32_t)at[i / 2u] >> 4u * (i & 1u) & 15u];
    uint32_t word = bits_at(data, place);
    *out = (int8_t)signed_bytes(next_number(entry, &word));
    place += entry & 255u;
  }
  return place;
}

/* Codes for their numbers in a table, of which `below` are negative. */
PTQC_INLINE void look_up_codes(const int8_t *table, uint32_t below, uint32_t count, int8_t *out) {
  uint32_t i = 0;
#if defined(PTQC_HELIUM)
  for (; count - i >= 16u; i += 16u) {
    const uint8x16_t index = vaddq_n_u8(vldrbq_u8((const uint8_t *)out + i), (uint8_t)below);
    vstrbq_s8(out + i, vldrbq_gather_offset_s8(table, index));
  }
#endif
  for (; i < count; i++) out[i] = table[out[i] + (int32_t)below];
}

/*
 * Classes of 4 bits, of each row from a whole byte on, and behind those of all rows the bits that the classes ask for.
 * bits: how many codes of the table have negative numbers.
 */
PTQC_APART void unpack_prefix(struct reader *reader, uint32_t rows, int8_t *out) {
  const struct weights *const weights = reader->weights;
  const uint32_t step = (weights->row + 1u) / 2u;
  uint32_t classes[16], first = 0;
  for (uint32_t i = 0; i < 16u; i++) {
    classes[i] = class_of(first, weights->widths[i]);
    first += 1u << weights->widths[i];
  }
  if (reader->row == 0) reader->place = 8u * four_bytes(weights->data);
  for (; rows; rows--, reader->row++) {
    reader->place = unpack_codes(weights, classes, weights->data + 4u + reader->row * step, reader->place, out);
    if (weights->table) look_up_codes(weights->table, weights->bits, weights->row, out);
    out += weights->row;
  }
}
