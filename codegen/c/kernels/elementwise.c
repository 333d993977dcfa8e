/* Two tensors whose sizes may be repeated: axes of the output, and steps of both inputs along them. */
struct pair {
  uint32_t sizes[4];
  int32_t first[4], second[4];
};
