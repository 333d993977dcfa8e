/* Elements at some places of an axis. inner: bytes behind the axis; size: of the axis in the input. */
static void take(const void *in, void *out, const uint16_t *places, uint32_t outer, uint32_t size, uint32_t count,
                 uint32_t inner) {
  uint8_t *to = (uint8_t *)out;
  for (uint32_t i = 0; i < outer; i++)
    for (uint32_t j = 0; j < count; j++, to += inner)
      memcpy(to, (const uint8_t *)in + ((size_t)i * size + places[j]) * inner, inner);
}
