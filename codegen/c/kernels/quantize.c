/* Codes of real numbers; of NaN 0. */
static void quantize(const float *in, uint8_t *out, uint32_t count, float scale, uint8_t zero) {
  for (uint32_t i = 0; i < count; i++) out[i] = in[i] != in[i] ? 0 : code(nearest(rounded(in[i] / scale)) + zero);
}
