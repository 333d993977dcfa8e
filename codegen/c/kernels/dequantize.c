/* Real numbers of codes. */
static void dequantize(const uint8_t *in, float *out, uint32_t count, float scale, uint8_t zero) {
  for (uint32_t i = 0; i < count; i++) out[i] = (float)((int32_t)in[i] - (int32_t)zero) * scale;
}
