/* A function of each code. */
static void look_up(const uint8_t *in, uint8_t *out, uint32_t count, const uint8_t *table) {
  for (uint32_t i = 0; i < count; i++) out[i] = table[in[i]];
}
