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

/* Goes through a weight, row by row. */
struct reader {
  const struct weights *weights;
  const uint8_t *next;
  uint8_t *states;
  uint32_t buffer;
  uint32_t count;
  uint32_t row;
};

static void open_reader(struct reader *reader, const struct weights *weights, uint8_t *states) {
  reader->weights = weights;
  reader->next = weights->data;
  reader->states = states;
  reader->buffer = reader->count = reader->row = 0;
}

/* Make sure of 16 bits in the buffer; behind a weight lie bytes that count for nothing. */
PTQC_INLINE void refill(struct reader *reader) {
  if (reader->count < 16u) {
    reader->buffer |= ((uint32_t)reader->next[0] | (uint32_t)reader->next[1] << 8) << reader->count;
    reader->next += 2;
    reader->count += 16u;
  }
}

/* The next bits, at most 8. */
PTQC_INLINE uint32_t next_bits(struct reader *reader, uint32_t bits) {
  uint32_t value;
  refill(reader);
  value = reader->buffer & ((1u << bits) - 1u);
  reader->buffer >>= bits;
  reader->count -= bits;
  return value;
}

/* Bytes that a reader keeps its states in. */
PTQC_INLINE uint32_t states_of(const struct weights *weights) {
  return weights->kind == COLUMN_PATH ? weights->row : 0u;
}
