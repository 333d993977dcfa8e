/* Sums of codes: fused(a, ratio[0], fused(b, ratio[1], ratio[2])). */
static void add(const struct pair *pair, const uint8_t *a, const uint8_t *b, uint8_t *out, const float *ratio) {
  for (uint32_t i = 0; i < pair->sizes[0]; i++)
    for (uint32_t j = 0; j < pair->sizes[1]; j++)
      for (uint32_t k = 0; k < pair->sizes[2]; k++) {
        const uint8_t *p = a + (int32_t)i * pair->first[0] + (int32_t)j * pair->first[1] + (int32_t)k * pair->first[2];
        const uint8_t *q =
            b + (int32_t)i * pair->second[0] + (int32_t)j * pair->second[1] + (int32_t)k * pair->second[2];
        for (uint32_t l = 0; l < pair->sizes[3]; l++, p += pair->first[3], q += pair->second[3])
          *out++ = code(nearest(fused((float)*p, ratio[0], fused((float)*q, ratio[1], ratio[2]))));
      }
}
