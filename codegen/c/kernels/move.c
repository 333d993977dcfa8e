/* Elements in another order. from, to: bytes from one to the next along each axis; bytes: moved at a time. */
struct move {
  uint32_t sizes[4];
  int32_t from[4], to[4];
  uint32_t bytes;
};

static void move(const struct move *move, const void *in, void *out) {
  for (int32_t i = 0; i < (int32_t)move->sizes[0]; i++)
    for (int32_t j = 0; j < (int32_t)move->sizes[1]; j++)
      for (int32_t k = 0; k < (int32_t)move->sizes[2]; k++) {
        const uint8_t *p = (const uint8_t *)in + i * move->from[0] + j * move->from[1] + k * move->from[2];
        uint8_t *q = (uint8_t *)out + i * move->to[0] + j * move->to[1] + k * move->to[2];
        for (uint32_t l = 0; l < move->sizes[3]; l++, p += move->from[3], q += move->to[3]) memcpy(q, p, move->bytes);
      }
}
