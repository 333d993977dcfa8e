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
  const uint32_t all = layer->in[2], channels = all / layer->groups;
  const int32_t width = layer->in[1], taps = layer->window[1], dilation = layer->dilations[1];
  const int32_t outside = column < 0 ? -column : 0, end = width - column < taps ? width - column : taps;
  const uint32_t before = (uint32_t)(outside < taps ? outside : taps) * channels;
  const uint32_t inside = end > outside ? (uint32_t)(end - outside) * channels : 0u;
  const uint32_t after = (uint32_t)taps * channels - before - inside;
  const uint8_t zero = layer->channels.zero_in;
  in += group * channels;
  for (int32_t y = 0; y < layer->window[0]; y++, row += layer->dilations[0]) {
    const uint8_t *const line = in + row * width * (int32_t)all;
    if ((uint32_t)row >= layer->in[0]) {
      fill(out, zero, (uint32_t)taps * channels);
      out += (uint32_t)taps * channels;
    } else if (layer->groups == 1 && dilation == 1) {
      fill(out, zero, before);
      copy(out + before, line + (column + outside) * (int32_t)all, inside);
      fill(out + before + inside, zero, after);
      out += before + inside + after;
    } else {
      int32_t here = column;
      for (int32_t x = 0; x < taps; x++, here += dilation, out += channels)
        if (here < 0 || here >= width)
          fill(out, zero, channels);
        else
          copy(out, line + here * (int32_t)all, channels);
    }
  }
}

/* Rows of weights, and of their channels where sums begin and the factors from sums to codes. */
struct panel {
  const int8_t *codes;
  int32_t *starts;
  float *factors;
  uint32_t row, count;
};

#if defined(PTQC_HELIUM)
/* Sums of a column of activations and four rows of weights. */
PTQC_INLINE int32x4_t multiply(const uint8_t *column, const int8_t *one, const int8_t *two, const int8_t *three,
                               const int8_t *four, uint32_t count) {
  const uint8x16_t offset = vdupq_n_u8(PTQC_ACTIVATION_OFFSET);
  int32x4_t sums;
  int32_t a = 0, b = 0, c = 0, d = 0;
  __asm__(
      "dlstp.8 lr, %[count]\n"
      "1:\n\t"
      "vldrb.8 q0, [%[column]], #16\n\t"
      "vldrb.8 q1, [%[one]], #16\n\t"
      "veor q0, q0, %q[offset]\n\t"
      "vmladava.s8 %[a], q0, q1\n\t"
      "vldrb.8 q2, [%[two]], #16\n\t"
      "vmladava.s8 %[b], q0, q2\n\t"
      "vldrb.8 q1, [%[three]], #16\n\t"
      "vmladava.s8 %[c], q0, q1\n\t"
      "vldrb.8 q2, [%[four]], #16\n\t"
      "vmladava.s8 %[d], q0, q2\n\t"
      "letp lr, 1b\n\t"
      "vmov %q[sums][2], %q[sums][0], %[a], %[c]\n\t"
      "vmov %q[sums][3], %q[sums][1], %[b], %[d]"
      : [column] "+r"(column), [one] "+r"(one), [two] "+r"(two), [three] "+r"(three), [four] "+r"(four), [a] "+Te"(a),
        [b] "+Te"(b), [c] "+Te"(c), [d] "+Te"(d), [sums] "=w"(sums)
      : [count] "r"(count), [offset] "w"(offset)
      : "q0", "q1", "q2", "lr", "memory");
  return sums;
}

/* The sums of rows of weights. */
PTQC_APART void sum_rows(const struct panel *panel) {
  const uint32_t row = panel->row;
  for (uint32_t i = 0; i < panel->count; i += 4) {
    const uint32_t left = panel->count - i;
    const int8_t *one = panel->codes + (size_t)i * row, *two = left > 1 ? one + row : one;
    const int8_t *three = left > 2 ? two + row : one, *four = left > 3 ? three + row : one;
    int32_t a = 0, b = 0, c = 0, d = 0;
    int32x4_t sums;
    __asm__(
        "dlstp.8 lr, %[count]\n"
        "1:\n\t"
        "vldrb.8 q0, [%[one]], #16\n\t"
        "vldrb.8 q1, [%[two]], #16\n\t"
        "vaddva.s8 %[a], q0\n\t"
        "vldrb.8 q0, [%[three]], #16\n\t"
        "vaddva.s8 %[b], q1\n\t"
        "vldrb.8 q1, [%[four]], #16\n\t"
        "vaddva.s8 %[c], q0\n\t"
        "vaddva.s8 %[d], q1\n\t"
        "letp lr, 1b\n\t"
        "vmov %q[sums][2], %q[sums][0], %[a], %[c]\n\t"
        "vmov %q[sums][3], %q[sums][1], %[b], %[d]"
        : [one] "+r"(one), [two] "+r"(two), [three] "+r"(three), [four] "+r"(four), [a] "+Te"(a), [b] "+Te"(b),
          [c] "+Te"(c), [d] "+Te"(d), [sums] "=w"(sums)
        : [count] "r"(row)
        : "q0", "q1", "lr", "memory");
    vstrwq_p_s32(panel->starts + i, sums, vctp32q(left));
  }
}

/* At most four rows of a panel and all pixels, of `step` activations each. */
PTQC_APART void multiply_rows(const struct panel *panel, uint32_t first, const uint8_t *column, size_t step,
                              uint32_t pixels, int32_t zero, void *out, size_t next) {
  const uint32_t row = panel->row, count = panel->count - first;
  const mve_pred16_t some = vctp32q(count);
  const int8_t *const one = panel->codes + (size_t)first * row, *const two = count > 1 ? one + row : one;
  const int8_t *const three = count > 2 ? two + row : one, *const four = count > 3 ? three + row : one;
  const int32x4_t starts = vldrwq_z_s32(panel->starts + first, some);
  const float32x4_t factors = vldrwq_z_f32(panel->factors + first, some);
  if (zero >= 0) {
    uint8_t *to = (uint8_t *)out + first;
    for (; pixels; pixels--, column += step, to += next) {
      const int32x4_t sums = vaddq_s32(multiply(column, one, two, three, four, row), starts);
      vstrbq_p_u32(to, codes_of(steps_of(sums, factors), zero), some);
    }
  } else {
    float *to = (float *)out + first;
    for (; pixels; pixels--, column += step, to += next) {
      const int32x4_t sums = vaddq_s32(multiply(column, one, two, three, four, row), starts);
      vstrwq_p_f32(to, steps_of(sums, factors), some);
    }
  }
}

/* A panel and pixels of `step` activations each, which lie `next` values apart in the output. */
PTQC_INLINE void multiply_pixels(const struct channels *channels, const struct panel *panel, const uint8_t *column,
                                 size_t step, uint32_t pixels, void *out, size_t place, size_t next) {
  const int is_real = channels->scale_out <= 0.0f;
  void *const to = is_real ? (void *)((float *)out + place) : (void *)((uint8_t *)out + place);
  for (uint32_t first = 0; first < panel->count; first += 4)
    multiply_rows(panel, first, column, step, pixels, is_real ? -1 : channels->zero_out, to, next);
}
#else
/* The sums of rows of weights. */
PTQC_INLINE void sum_rows(const struct panel *panel) {
  for (uint32_t i = 0; i < panel->count; i++)
    panel->starts[i] = sum_of(panel->codes + (size_t)i * panel->row, panel->row, 1);
}

/* sums[0 to 3] += two columns of activations times two rows of weights: (first, first), (first, second), ... */
PTQC_APART void multiply(const uint8_t *first, const uint8_t *second, const int8_t *one, const int8_t *other,
                     uint32_t count, int32_t *sums) {
  int32_t a = sums[0], b = sums[1], c = sums[2], d = sums[3];
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
  sums[0] = a, sums[1] = b, sums[2] = c, sums[3] = d;
}

/* sums[0], sums[1] += a column of activations times two rows of weights. */
PTQC_APART void multiply_one(const uint8_t *column, const int8_t *one, const int8_t *other, uint32_t count,
                         int32_t *sums) {
  int32_t a = sums[0], b = sums[1];
#if defined(PTQC_DSP)
  for (; count >= 4; count -= 4, column += 4, one += 4, other += 4) {
    const uint32_t x = load4(column), v = load4(one), w = load4(other);
    uint32_t x2 = activations_even(x);
    a = add_products(x2, weights_even(v), a);
    b = add_products(x2, weights_even(w), b);
    x2 = activations_odd(x);
    a = add_products(x2, weights_odd(v), a);
    b = add_products(x2, weights_odd(w), b);
  }
#endif
  for (uint32_t i = 0; i < count; i++) {
    a += column[i] * one[i];
    b += column[i] * other[i];
  }
  sums[0] = a, sums[1] = b;
}

/* The sums of a pixel and one or two channels, as codes or real numbers. */
PTQC_INLINE void put_sums(const struct channels *channels, const int32_t *sums, const float *factors, uint32_t two,
                          void *out, size_t place) {
  if (channels->scale_out > 0.0f) {
    const int32_t zero = channels->zero_out, is_exact = channels->is_exact;
    uint8_t *const to = (uint8_t *)out + place;
    to[0] = requantized(sums[0], factors[0], zero, is_exact);
    if (two) to[1] = requantized(sums[1], factors[1], zero, is_exact);
  } else {
    float *const to = (float *)out + place;
    to[0] = (float)sums[0] * factors[0];
    if (two) to[1] = (float)sums[1] * factors[1];
  }
}

/* A panel and pixels of `step` activations each, which lie `next` values apart in the output. */
PTQC_INLINE void multiply_pixels(const struct channels *channels, const struct panel *panel, const uint8_t *column,
                                 size_t step, uint32_t pixels, void *out, size_t place, size_t next) {
  const uint32_t row = panel->row, count = panel->count;
  for (; pixels > 1; pixels -= 2, column += 2 * step, place += 2 * next) {
    const int8_t *one = panel->codes;
    for (uint32_t i = 0; i < count; i += 2, one += 2 * row) {
      const uint32_t two = i + 1 < count ? 1 : 0;
      int32_t sums[4];
      sums[0] = sums[2] = panel->starts[i];
      sums[1] = sums[3] = panel->starts[i + two];
      multiply(column, column + step, one, two ? one + row : one, row, sums);
      put_sums(channels, sums, panel->factors + i, two, out, place + i);
      put_sums(channels, sums + 2, panel->factors + i, two, out, place + next + i);
    }
  }
  if (pixels) {
    const int8_t *one = panel->codes;
    for (uint32_t i = 0; i < count; i += 2, one += 2 * row) {
      const uint32_t two = i + 1 < count ? 1 : 0;
      int32_t sums[2];
      sums[0] = panel->starts[i];
      sums[1] = panel->starts[i + two];
      multiply_one(column, one, two ? one + row : one, row, sums);
      put_sums(channels, sums, panel->factors + i, two, out, place + i);
    }
  }
}
#endif

static void dense(const struct dense *layer, const uint8_t *in, void *out, uint8_t *scratch) {
  const struct channels *const channels = &layer->channels;
  const uint32_t row = layer->weights.row, rows = layer->out[2] / layer->groups;
  const uint32_t inputs = layer->in[2] / layer->groups;
  const uint32_t pixels = (uint32_t)layer->out[0] * layer->out[1];
  int32_t *const starts = (int32_t *)(void *)scratch;
  float *const factors = (float *)(void *)(starts + layer->panel);
  uint8_t *const windows = (uint8_t *)(factors + layer->panel);
  int8_t *const unpacked = (int8_t *)windows + (layer->is_pointwise ? 0u : 2u * row);
  const int is_summed = channels->zero_in != PTQC_ACTIVATION_OFFSET;
  struct panel panel = {unpacked, starts, factors, row, 0};
  struct reader reader;
  open_reader(&reader, &layer->weights);
  for (uint32_t group = 0; group < layer->groups; group++)
    for (uint32_t first = 0; first < rows; first += layer->panel) {
      const uint32_t channel = group * rows + first;
      int32_t y = 0, x = 0;
      if (layer->weights.kind == RAW) panel.codes = (const int8_t *)layer->weights.data + (size_t)channel * row;
      panel.count = rows - first < layer->panel ? rows - first : layer->panel;
      if (layer->weights.kind != RAW) unpack_rows(&reader, panel.count, unpacked);
      if (!channels->sums && is_summed) sum_rows(&panel);
      open_channels(channels, channel, panel.count, starts, factors);
      if (layer->is_pointwise) {
        multiply_pixels(channels, &panel, in + group * inputs, layer->in[2], pixels, out, channel, layer->out[2]);
        continue;
      }
      for (uint32_t pixel = 0; pixel < pixels; pixel += 2) {
        const uint32_t pair = pixel + 1 < pixels ? 2 : 1;
        for (uint32_t i = 0; i < pair; i++) {
          gather_window(layer, in, y * layer->strides[0] - layer->padding[0], x * layer->strides[1] - layer->padding[1],
                        group, windows + i * row);
          if (++x == layer->out[1]) x = 0, y++;
        }
        multiply_pixels(channels, &panel, windows, row, pair, out, (size_t)pixel * layer->out[2] + channel,
                        layer->out[2]);
      }
    }
}
