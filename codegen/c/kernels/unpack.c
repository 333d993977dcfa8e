/* How a weight lies in flash. row: codes of one output channel. */
enum { RAW, INDEX, PAIRS, PREFIX, COLUMN_PATH, ROW_PATH };

struct weights {
  const uint8_t *data;
  const int8_t *table;
  const uint8_t *widths;
  uint16_t row, taps;
  uint8_t kind, bits;
  int8_t low;
  uint8_t step;
};

/* Goes through a weight, row by row. place: of its next bit. */
struct reader {
  const struct weights *weights;
  uint32_t place, row;
};

static void open_reader(struct reader *reader, const struct weights *weights) {
  reader->weights = weights;
  reader->place = reader->row = 0;
}

/* Four bytes as a number, the first one lowest. */
PTQC_INLINE uint32_t four_bytes(const uint8_t *data) {
  return (uint32_t)data[0] | (uint32_t)data[1] << 8 | (uint32_t)data[2] << 16 | (uint32_t)data[3] << 24;
}

/* The next 25 bits at least; behind a weight lie bytes that count for nothing. */
PTQC_INLINE uint32_t bits_at(const uint8_t *data, uint32_t place) {
  return four_bytes(data + (place >> 3)) >> (place & 7u);
}

#if defined(PTQC_HELIUM)
/* Where 16 numbers of some bits begin, in bits behind the byte in which the first one does. */
PTQC_INLINE uint8x16_t places_of(uint32_t place, uint32_t bits) {
  return vaddq_n_u8(vmulq_n_u8(vidupq_n_u8(0, 1), (uint8_t)bits), (uint8_t)(place & 7u));
}

/* The 8 bits at each of these places. */
PTQC_INLINE uint8x16_t eight_bits_at(const uint8_t *data, uint8x16_t places) {
  const uint8x16_t bytes = vshrq_n_u8(places, 3);
  const int8x16_t down = vreinterpretq_s8_u8(vsubq_u8(vshlq_n_u8(bytes, 3), places));
  return vorrq_u8(vshlq_u8(vldrbq_gather_offset_u8(data, bytes), down),
                  vshlq_u8(vldrbq_gather_offset_u8(data + 1, bytes), vaddq_n_s8(down, 8)));
}
#endif

/* Four bytes of a word, the lowest first. */
PTQC_INLINE void put_bytes(uint32_t word, int8_t *out) {
#if defined(__ARMEL__)
  memcpy(out, &word, 4);
#else
  out[0] = (int8_t)word;
  out[1] = (int8_t)(word >> 8);
  out[2] = (int8_t)(word >> 16);
  out[3] = (int8_t)(word >> 24);
#endif
}

/* What a table says of the four bytes of a word. */
PTQC_INLINE void look_up_bytes(const int8_t *table, uint32_t word, int8_t *out) {
  out[0] = table[word & 255u];
  out[1] = table[word >> 8 & 255u];
  out[2] = table[word >> 16 & 255u];
  out[3] = table[word >> 24];
}

/* Each kind is unpacked by the function of its name: the next rows. Up to three bytes behind them are overwritten. */
