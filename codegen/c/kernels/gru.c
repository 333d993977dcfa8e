/* Gates are in the order update, reset, hidden. last_h: the state before, and then behind the sequence. */
static void gru(const struct recurrent *layer, const float *in, float *out, float *last_h, uint8_t *scratch) {
  const uint32_t units = layer->units;
  float *const gates = (float *)(void *)scratch, *const turned = gates + 3u * units;
  float *const held = turned + 3u * units;
  uint8_t *const rest = (uint8_t *)(held + units);
  const float *const bias = layer->bias;
  for (uint32_t step = 0; step < layer->steps; step++) {
    const uint32_t place = layer->is_reversed ? layer->steps - 1u - step : step;
    for (uint32_t i = 0; i < 3u * units; i++) {
      gates[i] = bias ? bias[i] : 0.0f;
      turned[i] = bias ? bias[3u * units + i] : 0.0f;
    }
    products(&layer->inputs, in + (size_t)place * layer->width, gates, 3u * units, rest);
    products(&layer->recurrence, last_h, turned, 3u * units, rest);
    for (uint32_t i = 0; i < units; i++) {
      const float update = sigmoid(gates[i] + turned[i]), reset = sigmoid(gates[units + i] + turned[units + i]);
      const float hidden = hyperbolic_tangent(gates[2u * units + i] + reset * turned[2u * units + i]);
      held[i] = (1.0f - update) * hidden + update * last_h[i];
    }
    memcpy(last_h, held, units * sizeof(float));
    if (out) memcpy(out + (size_t)place * units, last_h, units * sizeof(float));
  }
}
