/*
 * What a layer does to its sums, by output channel. Scales of weights are squares of a byte times a unit, or real
 * numbers; biases are 1 or 2 bytes times a unit, or whole numbers in steps of the sums. sums: of the weights of each
 * channel, where they are in flash.
 */
struct channels {
  const int16_t *sums;
  const uint8_t *roots;
  const float *scales;
  const void *bias;
  float unit, bias_unit, scale_in, scale_out; /* scale_out: 0 where the output is real */
  uint8_t bias_bytes, is_shared, zero_in, zero_out, is_exact;
};

/* The nearest whole number, of any size. */
#if PTQC_EXACT_NEAREST
PTQC_INLINE int32_t whole(float value) { return nearest(value); }
#else
static int32_t whole(float value) {
  int32_t down;
  float rest;
  if (value > -4194304.0f && value < 4194303.0f) return nearest(value);
  down = (int32_t)value;
  rest = value - (float)down;
  if (rest == 0.5f || rest == -0.5f) down += (down & 1) ? (rest > 0.0f ? 1 : -1) : 0;
  return down;
}
#endif

/*
 * Where sums of some channels begin, with what the zero point of the input adds, and the factors from sums to codes.
 * starts: the sums of their weights before, unless these are in flash or the zero point adds nothing.
 */
PTQC_APART void open_channels(const struct channels *channels, uint32_t first, uint32_t count, int32_t *starts,
                              float *factors) {
  const int16_t *const sums = channels->sums;
  const uint8_t *const roots = channels->roots;
  const float *const scales = channels->scales;
  const void *const biases = channels->bias;
  const float unit = channels->unit, bias_unit = channels->bias_unit;
  const float scale_in = channels->scale_in, divisor = channels->scale_out > 0.0f ? channels->scale_out : 1.0f;
  const uint32_t is_shared = channels->is_shared, bias_bytes = channels->bias_bytes;
  const int32_t zero = channels->zero_in - PTQC_ACTIVATION_OFFSET;
  for (uint32_t channel = first; channel < first + count; channel++) {
    const uint32_t place = is_shared ? 0u : channel, root = roots ? roots[place] : 0u;
    const float step = rounded(scale_in * (roots ? (float)(root * root) * unit : scales[place]));
    int32_t bias = 0;
    if (bias_bytes == 1u)
      bias = whole((float)((const int8_t *)biases)[channel] * bias_unit / step);
    else if (bias_bytes == 2u)
      bias = whole((float)((const int16_t *)biases)[channel] * bias_unit / step);
    else if (bias_bytes == 4u)
      bias = ((const int32_t *)biases)[channel];
    *starts = zero ? bias - (sums ? sums[channel] : *starts) * zero : bias;
    starts++;
    *factors++ = step / divisor;
  }
}

/* The sum of `count` codes, which lie `stride` bytes apart. */
PTQC_APART int32_t sum_of(const int8_t *codes, uint32_t count, uint32_t stride) {
  int32_t sum = 0;
#if defined(PTQC_DSP)
  if (stride == 1)
    for (; count >= 8; count -= 8, codes += 8)
      sum = add_bytes(load4(codes) ^ 0x80808080u, add_bytes(load4(codes + 4) ^ 0x80808080u, sum - 8 * 128));
#endif
  for (uint32_t i = 0; i < count; i++) sum += codes[i * stride];
  return sum;
}
