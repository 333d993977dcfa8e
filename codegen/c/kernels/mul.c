/* Products of codes. zeros: of both and of the output. */
static void mul(const struct pair *pair, const uint8_t *a, const uint8_t *b, uint8_t *out, const uint8_t *zeros,
                float factor) {
  for (uint32_t i = 0; i < pair->sizes[0]; i++)
    for (uint32_t j = 0; j < pair->sizes[1]; j++)
      for (uint32_t k = 0; k < pair->sizes[2]; k++) {
        const uint8_t *p = a + (int32_t)i * pair->first[0] + (int32_t)j * pair->first[1] + (int32_t)k * pair->first[2];
        const uint8_t *q =
            b + (int32_t)i * pair->second[0] + (int32_t)j * pair->second[1] + (int32_t)k * pair->second[2];
        for (uint32_t l = 0; l < pair->sizes[3]; l++, p += pair->first[3], q += pair->second[3]) {
          const int32_t product = (*p - zeros[0]) * (*q - zeros[1]);
          *out++ = code(nearest(rounded((float)product * factor) + (float)zeros[2]));
        }
      }
}
