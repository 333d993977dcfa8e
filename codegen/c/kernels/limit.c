/* Codes within two bounds. */
static void limit(const uint8_t *in, uint8_t *out, uint32_t count, uint8_t low, uint8_t high) {
  for (uint32_t i = 0; i < count; i++) out[i] = in[i] < low ? low : in[i] > high ? high : in[i];
}
