/*
 * What a layer does to its sums, by output channel. Scales of weights are squares of a byte times a unit, or real
 * numbers; biases are 1 or 2 bytes times a unit, or whole numbers in steps of the sums.
 */
struct channels {
  const uint8_t *roots;
  const float *scales;
  const void *bias;
  float unit, bias_unit, scale_in, scale_out; /* scale_out: 0 where the output is real */
  uint8_t bias_bytes, is_shared, zero_in, zero_out, is_exact;
};

/* The nearest whole number, of any size. */
static int32_t whole(float value) {
  int32_t down;
  float rest;
  if (value > -4194304.0f && value < 4194303.0f) return nearest(value);
  down = (int32_t)value;
  rest = value - (float)down;
  if (rest == 0.5f || rest == -0.5f) down += (down & 1) ? (rest > 0.0f ? 1 : -1) : 0;
  return down;
}

/* Where the sum of a channel begins, with what the zero point of the input adds, and the factor from sums to codes. */
PTQC_APART void open_channel(const struct channels *channels, uint32_t channel, int32_t weights, int32_t *start,
                         float *factor) {
  const uint32_t place = channels->is_shared ? 0u : channel;
  const uint32_t root = channels->roots ? channels->roots[place] : 0u;
  const float scale = channels->roots ? (float)(root * root) * channels->unit : channels->scales[place];
  const float step = rounded(channels->scale_in * scale);
  int32_t bias = 0;
  switch (channels->bias_bytes) {
    case 1: bias = whole((float)((const int8_t *)channels->bias)[channel] * channels->bias_unit / step); break;
    case 2: bias = whole((float)((const int16_t *)channels->bias)[channel] * channels->bias_unit / step); break;
    case 4: bias = ((const int32_t *)channels->bias)[channel]; break;
    default: break;
  }
  *start = bias - weights * channels->zero_in;
  *factor = channels->scale_out > 0.0f ? step / channels->scale_out : step;
}

/* The sum of the weights of a row. */
PTQC_APART int32_t sum_of(const int8_t *row, uint32_t count, uint32_t stride) {
  int32_t sum = 0;
#if defined(PTQC_DSP)
  if (stride == 1)
    for (; count >= 4; count -= 4, row += 4) {
      const uint32_t word = load4(row);
      sum = add_products(0x10001u, weights_even(word), sum);
      sum = add_products(0x10001u, weights_odd(word), sum);
    }
#endif
  for (uint32_t i = 0; i < count; i++) sum += row[i * stride];
  return sum;
}
