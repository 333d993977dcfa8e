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
  uint8_t *states;
  uint32_t place, row;
};

static void open_reader(struct reader *reader, const struct weights *weights, uint8_t *states) {
  reader->weights = weights;
  reader->states = states;
  reader->place = reader->row = 0;
}

/* The next 25 bits at least; behind a weight lie bytes that count for nothing. */
PTQC_INLINE uint32_t bits_at(const uint8_t *data, uint32_t place) {
  data += place >> 3;
  return ((uint32_t)data[0] | (uint32_t)data[1] << 8 | (uint32_t)data[2] << 16 | (uint32_t)data[3] << 24) >> (place & 7u);
}

/* Bytes that a reader keeps its states in. */
PTQC_INLINE uint32_t states_of(const struct weights *weights) {
  return weights->kind == COLUMN_PATH ? weights->row : 0u;
}
