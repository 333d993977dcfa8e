/*
 * Convolutions of each channel for itself, a few channels at a time. block: channels whose weights are unpacked at a
 * time; weights that are not packed lie as (tap, channel).
 */
struct depthwise {
  struct weights weights;
  struct channels channels;
  uint16_t in[3], out[3];
  uint16_t block;
  int16_t padding[2];
  uint16_t window[2], strides[2], dilations[2];
};

#if defined(PTQC_HELIUM)
/*
 * A pixel of at most 16 channels. Products widen twice, so that a vector of sums has every fourth channel. `starts` and
 * `factors` can be read up to the next multiple of 16.
 */
PTQC_APART void sixteen_channels(const uint8_t *const *places, uint32_t taps, const int8_t *codes, uint32_t stride,
                                 const int32_t *starts, const float *factors, uint32_t channel, uint32_t count,
                                 int32_t zero, uint8_t *out) {
  const uint8x16_t offset = vdupq_n_u8(PTQC_ACTIVATION_OFFSET);
  const mve_pred16_t some = vctp8q(count - channel);
  const int32x4x4_t start = vld4q_s32(starts + channel);
  int32x4_t a = start.val[0], b = start.val[1], c = start.val[2], d = start.val[3];
  float32x4x4_t factor;
  int16x8_t even, odd;
  codes += channel;
  for (uint32_t tap = 0; tap < taps; tap++, codes += stride) {
    const int8x16_t x = vreinterpretq_s8_u8(veorq_u8(vldrbq_z_u8(places[tap] + channel, some), offset));
    const int8x16_t w = vldrbq_z_s8(codes, some);
    even = vmullbq_int_s8(x, w);
    odd = vmulltq_int_s8(x, w);
    a = vaddq_s32(a, vmovlbq_s16(even));
    b = vaddq_s32(b, vmovlbq_s16(odd));
    c = vaddq_s32(c, vmovltq_s16(even));
    d = vaddq_s32(d, vmovltq_s16(odd));
  }
  factor = vld4q_f32(factors + channel);
  a = vcvtnq_s32_f32(steps_of(a, factor.val[0]));
  b = vcvtnq_s32_f32(steps_of(b, factor.val[1]));
  c = vcvtnq_s32_f32(steps_of(c, factor.val[2]));
  d = vcvtnq_s32_f32(steps_of(d, factor.val[3]));
  even = vqaddq_n_s16(vqmovntq_s32(vqmovnbq_s32(vreinterpretq_s16_s32(a), a), c), (int16_t)zero);
  odd = vqaddq_n_s16(vqmovntq_s32(vqmovnbq_s32(vreinterpretq_s16_s32(b), b), d), (int16_t)zero);
  vstrbq_p_u8(out + channel, vqmovuntq_s16(vqmovunbq_s16(vreinterpretq_u8_s16(even), even), odd), some);
}
#endif

/* Where the taps of a window begin in the input; those outside of it read zeros. */
PTQC_APART void find_places(const struct depthwise *layer, const uint8_t *in, int32_t row, int32_t column,
                            const uint8_t *outside, const uint8_t **places) {
  const uint32_t height = layer->in[0], width = layer->in[1], channels = layer->in[2];
  for (int32_t i = 0; i < layer->window[0]; i++, row += layer->dilations[0]) {
    const uint8_t *const line = in + (int32_t)(width * channels) * row;
    int32_t here = column;
    for (int32_t j = 0; j < layer->window[1]; j++, here += layer->dilations[1])
      *places++ = (uint32_t)row < height && (uint32_t)here < width ? line + (int32_t)channels * here : outside;
  }
}

static void depthwise(const struct depthwise *layer, const uint8_t *in, uint8_t *out, uint8_t *scratch) {
  const uint32_t taps = (uint32_t)layer->window[0] * layer->window[1], channels = layer->in[2];
  const uint8_t zero = layer->channels.zero_out, is_exact = layer->channels.is_exact;
  const uint8_t **const places = (const uint8_t **)(void *)scratch;
  const uint32_t block = (layer->block + 15u) & ~15u;
  int32_t *const starts = (int32_t *)(void *)(places + taps);
  float *const factors = (float *)(void *)(starts + block);
  const int32_t reach = (layer->window[1] - 1) * layer->dilations[1];
  uint8_t *const outside = (uint8_t *)(factors + block);
  int8_t *const panel = (int8_t *)outside + layer->block, *const row = panel + layer->block * taps;
  struct reader reader;
  memset(outside, layer->channels.zero_in, layer->block);
  open_reader(&reader, &layer->weights);
  for (uint32_t first = 0; first < channels; first += layer->block) {
    const uint32_t count = channels - first < layer->block ? channels - first : layer->block;
    const uint32_t stride = layer->weights.kind == RAW ? channels : layer->block;
    const int8_t *const codes = layer->weights.kind == RAW ? (const int8_t *)layer->weights.data + first : panel;
    for (uint32_t i = 0; i < count; i++) {
      if (layer->weights.kind != RAW) {
        unpack_rows(&reader, 1, row);
        for (uint32_t tap = 0; tap < taps; tap++) panel[tap * stride + i] = row[tap];
      }
      starts[i] = sum_of(codes + i, taps, stride);
    }
    open_channels(&layer->channels, first, count, starts, factors);
    uint8_t *to = out + first;
    for (int32_t y = 0; y < layer->out[0]; y++) {
      int32_t column = -layer->padding[1], is_inside = 0;
      for (uint32_t x = 0; x < layer->out[1]; x++, column += layer->strides[1], to += channels) {
        const int32_t was_inside = is_inside;
        is_inside = column >= 0 && column + reach < layer->in[1];
        if (was_inside && is_inside) {
          for (uint32_t tap = 0; tap < taps; tap++)
            if (places[tap] != outside) places[tap] += layer->strides[1] * channels;
        } else {
          find_places(layer, in + first, y * layer->strides[0] - layer->padding[0], column, outside, places);
        }
        uint32_t channel = 0;
#if defined(PTQC_HELIUM)
        for (; channel < count; channel += 16)
          sixteen_channels(places, taps, codes, stride, starts, factors, channel, count, zero, to);
#elif defined(PTQC_DSP)
        for (; channel + 4 <= count; channel += 4) {
          const int8_t *weight = codes + channel;
          int32_t a = starts[channel], b = starts[channel + 1], c = starts[channel + 2], d = starts[channel + 3];
          for (uint32_t tap = 0; tap < taps; tap++, weight += stride) {
            const uint32_t v = load4(places[tap] + channel), w = load4(weight);
            const uint32_t v0 = activations_even(v), v1 = activations_odd(v);
            const uint32_t w0 = weights_even(w), w1 = weights_odd(w);
            a = add_low(v0, w0, a);
            b = add_low(v1, w1, b);
            c = add_high(v0, w0, c);
            d = add_high(v1, w1, d);
          }
          to[channel] = requantized(a, factors[channel], zero, is_exact);
          to[channel + 1] = requantized(b, factors[channel + 1], zero, is_exact);
          to[channel + 2] = requantized(c, factors[channel + 2], zero, is_exact);
          to[channel + 3] = requantized(d, factors[channel + 3], zero, is_exact);
        }
#endif
        for (; channel < count; channel++) {
          const int8_t *weight = codes + channel;
          int32_t sum = starts[channel];
          for (uint32_t tap = 0; tap < taps; tap++, weight += stride) sum += places[tap][channel] * *weight;
          to[channel] = requantized(sum, factors[channel], zero, is_exact);
        }
      }
    }
  }
}
