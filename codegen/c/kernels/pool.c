/* A window over pixels of codes. */
struct window {
  uint16_t in[3], out[3];
  int16_t padding[2];
  uint16_t window[2], strides[2], dilations[2];
};
