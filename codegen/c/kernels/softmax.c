/* Softmax of codes along an axis. powers: of e, by the distance to the largest code. steps: codes between 0 and 1. */
static void softmax(const uint8_t *in, uint8_t *out, uint32_t outer, uint32_t size, uint32_t inner,
                    const float *powers, float steps, uint8_t zero) {
  for (uint32_t i = 0; i < outer; i++)
    for (uint32_t k = 0; k < inner; k++) {
      const uint8_t *from = in + (size_t)i * size * inner + k;
      uint8_t *to = out + (size_t)i * size * inner + k;
      uint32_t most = 0;
      float total = 0.0f;
      for (uint32_t j = 0; j < size; j++)
        if (from[(size_t)j * inner] > most) most = from[(size_t)j * inner];
      for (uint32_t j = 0; j < size; j++) total += powers[from[(size_t)j * inner] + 255u - most];
      for (uint32_t j = 0; j < size; j++) {
        const double magic = 6755399441055744.0; /* 1.5 * 2^52: adding it rounds to whole numbers */
        volatile double whole = (double)powers[from[(size_t)j * inner] + 255u - most] * (double)steps / (double)total;
        whole = whole + magic;
        to[(size_t)j * inner] = code((int32_t)(whole - magic) + zero);
      }
    }
}
