/*
 * Each column is a path through a trellis of 256 states: the last 8 bits of its steps. Bytes of all columns lie side by
 * side, and a row has the 8 bits of each column that begin at its place. bits: of two steps.
 */
PTQC_APART void unpack_column_path(struct reader *reader, uint32_t rows, int8_t *out) {
  const struct weights *const weights = reader->weights;
  const int8_t *const table = weights->table;
  const uint32_t row = weights->row;
  for (; rows; rows--) {
    const uint32_t down = reader->place & 7u, up = 8u - down;
    const uint32_t low = 0x01010101u * (255u >> down), high = ~low;
    const uint8_t *const first = weights->data + (size_t)(reader->place >> 3) * row;
    const uint8_t *const second = down ? first + row : first;
    uint32_t i = 0;
#if defined(PTQC_HELIUM)
    for (; row - i >= 16u; i += 16u) {
      const uint8x16_t before = vshlq_r_u8(vldrbq_u8(first + i), -(int32_t)down);
      const uint8x16_t states = vorrq_u8(before, vshlq_r_u8(vldrbq_u8(second + i), (int32_t)up));
      vstrbq_s8(out + i, vldrbq_gather_offset_s8(table, states));
    }
#endif
    for (; i < row; i += 4u)
      look_up_bytes(table, (four_bytes(first + i) >> down & low) | (four_bytes(second + i) << up & high), out + i);
    out += row;
    reader->place += (weights->bits + (reader->row & 1u)) / 2u;
    reader->row++;
  }
}
