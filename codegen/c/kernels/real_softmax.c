/* Softmax of real numbers along an axis. */
static void real_softmax(const float *in, float *out, uint32_t outer, uint32_t size, uint32_t inner) {
  for (uint32_t i = 0; i < outer; i++)
    for (uint32_t k = 0; k < inner; k++) {
      const float *const from = in + (size_t)i * size * inner + k;
      float *const to = out + (size_t)i * size * inner + k;
      float most = from[0], total = 0.0f;
      for (uint32_t j = 1; j < size; j++)
        if (from[(size_t)j * inner] > most) most = from[(size_t)j * inner];
      for (uint32_t j = 0; j < size; j++) {
        to[(size_t)j * inner] = exponential(from[(size_t)j * inner] - most);
        total += to[(size_t)j * inner];
      }
      for (uint32_t j = 0; j < size; j++) to[(size_t)j * inner] /= total;
    }
}
