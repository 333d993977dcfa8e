/* Real numbers within two bounds. */
static void real_limit(const float *in, float *out, uint32_t count, float low, float high) {
  for (uint32_t i = 0; i < count; i++) out[i] = in[i] < low ? low : in[i] > high ? high : in[i];
}
