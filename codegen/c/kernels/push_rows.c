/* New rows behind those that stay, of which the oldest go, in `blocks` blocks. stay, added: bytes of a block. */
static void push_rows(uint8_t *state, const void *rows, uint32_t blocks, size_t stay, size_t added) {
  const uint8_t *from = (const uint8_t *)rows;
  for (; blocks; blocks--, state += stay + added, from += added) {
    memmove(state, state + added, stay);
    memcpy(state + stay, from, added);
  }
}
