/* Sums along an axis times a factor. */
static void real_mean(const float *in, float *out, uint32_t outer, uint32_t size, uint32_t inner, float factor) {
  for (uint32_t i = 0; i < outer; i++)
    for (uint32_t k = 0; k < inner; k++) {
      float sum = 0.0f;
      for (uint32_t j = 0; j < size; j++) sum += in[((size_t)i * size + j) * inner + k];
      *out++ = sum * factor;
    }
}
