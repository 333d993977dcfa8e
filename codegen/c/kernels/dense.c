/*
 * Convolutions and matrix products. The rows of a few output channels are unpacked, then multiplied with all pixels.
 * window: rows, columns; of in and out: rows, columns, channels. panel: channels whose rows are unpacked at a time.
 */
struct dense {
  struct weights weights;
  struct channels channels;
  uint16_t in[3], out[3];
  uint16_t groups, panel;
  int16_t padding[2];
  uint16_t window[2], strides[2], dilations[2];
  uint8_t is_pointwise;
};

/* What a window covers, as a row; what lies outside of the input is real zero. */
PTQC_APART void gather_window(const struct dense *layer, const uint8_t *in, int32_t row, int32_t column, uint32_t group,
                          uint8_t *out) {
  const uint32_t channels = layer->in[2] / layer->groups;
  const int32_t dilation = layer->dilations[1], taps = layer->window[1];
  for (int32_t y = 0; y < layer->window[0]; y++) {
    const int32_t from = row + y * layer->dilations[0];
    const int is_inside = from >= 0 && from < layer->in[0];
    for (int32_t x = 0; x < taps; x++) {
      const int32_t place = column + x * dilation;
      uint32_t count = 1;
      if (!is_inside || place < 0 || place >= layer->in[1]) {
        memset(out, layer->channels.zero_in, channels);
      } else {
        const size_t pixel = (size_t)from * layer->in[1] + (size_t)place;
        if (layer->groups == 1 && dilation == 1) {
          const int32_t more = (taps - x < layer->in[1] - place ? taps - x : layer->in[1] - place) - 1;
          count += (uint32_t)more;
          x += more;
        }
        memcpy(out, in + pixel * layer->in[2] + group * channels, count * channels);
      }
      out += count * channels;
    }
  }
}

/* sums[0 to 3] += two columns of activations times two rows of weights: (first, first), (first, second), ... */
PTQC_APART void multiply(const uint8_t *first, const uint8_t *second, const int8_t *one, const int8_t *other,
                     uint32_t count, int32_t *sums) {
  int32_t a = sums[0], b = sums[1], c = sums[2], d = sums[3];
#if defined(PTQC_HELIUM)
  /* Both have to be signed: 128 is taken from activations, and 128 times the sum of the weights added. */
  int32_t of_one = 0, of_other = 0;
  const uint8x16_t sign = vdupq_n_u8(0x80);
  for (int32_t left = (int32_t)count; left > 0; left -= 16) {
    const mve_pred16_t some = vctp8q((uint32_t)left);
    const int8x16_t x = vreinterpretq_s8_u8(veorq_u8(vldrbq_z_u8(first, some), sign));
    const int8x16_t y = vreinterpretq_s8_u8(veorq_u8(vldrbq_z_u8(second, some), sign));
    const int8x16_t v = vldrbq_z_s8(one, some), w = vldrbq_z_s8(other, some);
    of_one = vaddvaq_s8(of_one, v);
    of_other = vaddvaq_s8(of_other, w);
    a = vmladavaq_s8(a, x, v);
    b = vmladavaq_s8(b, x, w);
    c = vmladavaq_s8(c, y, v);
    d = vmladavaq_s8(d, y, w);
    first += 16, second += 16, one += 16, other += 16;
  }
  a += 128 * of_one, b += 128 * of_other, c += 128 * of_one, d += 128 * of_other;
#else
#if defined(PTQC_DSP)
  for (; count >= 4; count -= 4, first += 4, second += 4, one += 4, other += 4) {
    const uint32_t x = load4(first), y = load4(second), v = load4(one), w = load4(other);
    uint32_t x2 = activations_even(x), y2 = activations_even(y), v2 = weights_even(v), w2 = weights_even(w);
    a = add_products(x2, v2, a);
    b = add_products(x2, w2, b);
    c = add_products(y2, v2, c);
    d = add_products(y2, w2, d);
    x2 = activations_odd(x), y2 = activations_odd(y), v2 = weights_odd(v), w2 = weights_odd(w);
    a = add_products(x2, v2, a);
    b = add_products(x2, w2, b);
    c = add_products(y2, v2, c);
    d = add_products(y2, w2, d);
  }
#endif
  for (uint32_t i = 0; i < count; i++) {
    a += first[i] * one[i];
    b += first[i] * other[i];
    c += second[i] * one[i];
    d += second[i] * other[i];
  }
#endif
  sums[0] = a, sums[1] = b, sums[2] = c, sums[3] = d;
}

/* sums[0], sums[1] += a column of activations less their zero point times two rows of weights. */
PTQC_APART void multiply_one(const uint8_t *column, const int8_t *one, const int8_t *other, uint32_t count, uint8_t zero,
                         int32_t *sums) {
  int32_t a = sums[0], b = sums[1];
#if defined(PTQC_HELIUM)
  int32_t of_one = 0, of_other = 0;
  const uint8x16_t sign = vdupq_n_u8(0x80);
  for (int32_t left = (int32_t)count; left > 0; left -= 16) {
    const mve_pred16_t some = vctp8q((uint32_t)left);
    const int8x16_t x = vreinterpretq_s8_u8(veorq_u8(vldrbq_z_u8(column, some), sign));
    const int8x16_t v = vldrbq_z_s8(one, some), w = vldrbq_z_s8(other, some);
    of_one = vaddvaq_s8(of_one, v);
    of_other = vaddvaq_s8(of_other, w);
    a = vmladavaq_s8(a, x, v);
    b = vmladavaq_s8(b, x, w);
    column += 16, one += 16, other += 16;
  }
  a += (128 - zero) * of_one, b += (128 - zero) * of_other;
#else
#if defined(PTQC_DSP)
  const uint32_t zeros = zero * 0x10001u;
  for (; count >= 4; count -= 4, column += 4, one += 4, other += 4) {
    const uint32_t x = load4(column), v = load4(one), w = load4(other);
    uint32_t x2 = less(activations_even(x), zeros);
    a = add_products(x2, weights_even(v), a);
    b = add_products(x2, weights_even(w), b);
    x2 = less(activations_odd(x), zeros);
    a = add_products(x2, weights_odd(v), a);
    b = add_products(x2, weights_odd(w), b);
  }
#endif
  for (uint32_t i = 0; i < count; i++) {
    const int32_t x = column[i] - zero;
    a += x * one[i];
    b += x * other[i];
  }
#endif
  sums[0] = a, sums[1] = b;
}

/* The sums of a pixel and one or two channels, as codes or real numbers. */
PTQC_INLINE void put_sums(const struct channels *channels, const int32_t *sums, const float *factors, uint32_t two,
                          void *out, size_t place) {
  if (channels->scale_out > 0.0f) {
    uint8_t *const to = (uint8_t *)out + place;
    to[0] = requantized(sums[0], factors[0], channels->zero_out, channels->is_exact);
    if (two) to[1] = requantized(sums[1], factors[1], channels->zero_out, channels->is_exact);
  } else {
    float *const to = (float *)out + place;
    to[0] = (float)sums[0] * factors[0];
    if (two) to[1] = (float)sums[1] * factors[1];
  }
}

static void dense(const struct dense *layer, const uint8_t *in, void *out, uint8_t *scratch) {
  const struct channels *const channels = &layer->channels;
  const uint32_t row = layer->weights.row, rows = layer->out[2] / layer->groups;
  const uint32_t inputs = layer->in[2] / layer->groups;
  const uint32_t pixels = (uint32_t)layer->out[0] * layer->out[1];
  int32_t *const starts = (int32_t *)(void *)scratch;
  float *const factors = (float *)(void *)(starts + layer->panel);
  uint8_t *const states = (uint8_t *)(factors + layer->panel), *const windows = states + states_of(&layer->weights);
  int8_t *const panel = (int8_t *)windows + (layer->is_pointwise ? 0u : 2u * row);
  struct reader reader;
  open_reader(&reader, &layer->weights, states);
  for (uint32_t group = 0; group < layer->groups; group++)
    for (uint32_t first = 0; first < rows; first += layer->panel) {
      const uint32_t count = rows - first < layer->panel ? rows - first : layer->panel;
      const uint32_t channel = group * rows + first;
      const int8_t *const codes =
          layer->weights.kind == RAW ? (const int8_t *)layer->weights.data + (size_t)channel * row : panel;
      int32_t y = 0, x = 0;
      for (uint32_t i = 0; i < count; i++) {
        if (layer->weights.kind != RAW) unpack_row(&reader, panel + (size_t)i * row, 1);
        open_channel(channels, channel + i, pixels == 1 ? 0 : sum_of(codes + (size_t)i * row, row, 1), starts + i,
                     factors + i);
      }
      for (uint32_t pixel = 0; pixel < pixels; pixel += 2) {
        const uint32_t pair = pixel + 1 < pixels ? 2 : 1;
        const size_t place = (size_t)pixel * layer->out[2] + channel;
        const uint8_t *columns[2];
        for (uint32_t i = 0; i < pair; i++) {
          if (layer->is_pointwise) {
            columns[i] = in + (size_t)(pixel + i) * layer->in[2] + group * inputs;
          } else {
            columns[i] = windows + i * row;
            gather_window(layer, in, y * layer->strides[0] - layer->padding[0],
                          x * layer->strides[1] - layer->padding[1], group, windows + i * row);
            if (++x == layer->out[1]) x = 0, y++;
          }
        }
        for (uint32_t i = 0; i < count; i += 2) {
          const uint32_t two = i + 1 < count ? 1 : 0;
          const int8_t *const one = codes + (size_t)i * row, *const other = one + two * row;
          int32_t sums[4];
          sums[0] = sums[2] = starts[i];
          sums[1] = sums[3] = starts[i + two];
          if (pair == 2) {
            multiply(columns[0], columns[1], one, other, row, sums);
            put_sums(channels, sums + 2, factors + i, two, out, place + layer->out[2] + i);
          } else {
            multiply_one(columns[0], one, other, row, pixels == 1 ? channels->zero_in : 0, sums);
          }
          put_sums(channels, sums, factors + i, two, out, place + i);
        }
      }
    }
}
