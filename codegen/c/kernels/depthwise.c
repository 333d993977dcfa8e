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

static void depthwise(const struct depthwise *layer, const uint8_t *in, uint8_t *out, uint8_t *scratch) {
  const uint32_t taps = (uint32_t)layer->window[0] * layer->window[1], channels = layer->in[2];
  const uint8_t zero = layer->channels.zero_out, is_exact = layer->channels.is_exact;
  const uint8_t **const places = (const uint8_t **)(void *)scratch;
  int32_t *const starts = (int32_t *)(void *)(places + taps);
  float *const factors = (float *)(void *)(starts + layer->block);
  uint8_t *const outside = (uint8_t *)(factors + layer->block), *const states = outside + layer->block;
  int8_t *const panel = (int8_t *)states + states_of(&layer->weights);
  struct reader reader;
  memset(outside, layer->channels.zero_in, layer->block);
  open_reader(&reader, &layer->weights, states);
  for (uint32_t first = 0; first < channels; first += layer->block) {
    const uint32_t count = channels - first < layer->block ? channels - first : layer->block;
    const uint32_t stride = layer->weights.kind == RAW ? channels : layer->block;
    const int8_t *const codes = layer->weights.kind == RAW ? (const int8_t *)layer->weights.data + first : panel;
    for (uint32_t i = 0; i < count; i++) {
      if (layer->weights.kind != RAW) unpack_row(&reader, panel + i, stride);
      open_channel(&layer->channels, first + i, sum_of(codes + i, taps, stride), starts + i, factors + i);
    }
    for (int32_t y = 0; y < layer->out[0]; y++)
      for (int32_t x = 0; x < layer->out[1]; x++) {
        uint8_t *to = out + ((size_t)y * layer->out[1] + (size_t)x) * channels + first;
        uint32_t tap = 0;
        for (int32_t i = 0; i < layer->window[0]; i++)
          for (int32_t j = 0; j < layer->window[1]; j++) {
            const int32_t row = y * layer->strides[0] - layer->padding[0] + i * layer->dilations[0];
            const int32_t column = x * layer->strides[1] - layer->padding[1] + j * layer->dilations[1];
            const int is_inside = row >= 0 && row < layer->in[0] && column >= 0 && column < layer->in[1];
            places[tap++] =
                is_inside ? in + ((size_t)row * layer->in[1] + (size_t)column) * channels + first : outside;
          }
        uint32_t channel = 0;
#if defined(PTQC_HELIUM)
        for (; channel < count; channel += 4) {
          const mve_pred16_t some = vctp32q(count - channel);
          const int8_t *weight = codes + channel;
          int32x4_t sum = vldrwq_z_s32(starts + channel, some);
          int32_t sums[4];
          for (tap = 0; tap < taps; tap++, weight += stride) {
            const int32x4_t a = vreinterpretq_s32_u32(vldrbq_z_u32(places[tap] + channel, some));
            sum = vaddq_s32(sum, vmulq_s32(a, vldrbq_z_s32(weight, some)));
          }
          vst1q_s32(sums, sum);
          for (uint32_t i = 0; i < 4 && channel + i < count; i++)
            to[channel + i] = requantized(sums[i], factors[channel + i], zero, is_exact);
        }
#elif defined(PTQC_DSP)
        for (; channel + 4 <= count; channel += 4) {
          const int8_t *weight = codes + channel;
          int32_t a = starts[channel], b = starts[channel + 1], c = starts[channel + 2], d = starts[channel + 3];
          for (tap = 0; tap < taps; tap++, weight += stride) {
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
          for (tap = 0; tap < taps; tap++, weight += stride) sum += places[tap][channel] * *weight;
          to[channel] = requantized(sum, factors[channel], zero, is_exact);
        }
      }
  }
}
