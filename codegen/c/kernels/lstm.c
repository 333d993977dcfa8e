/* Gates are in the order input, output, forget, cell. last_h, last_c: the state before, and then behind the sequence. */
static void lstm(const struct recurrent *layer, const float *in, float *out, float *last_h, float *last_c,
                 uint8_t *scratch) {
  const uint32_t units = layer->units;
  float *const gates = (float *)(void *)scratch;
  for (uint32_t step = 0; step < layer->steps; step++) {
    const uint32_t place = layer->is_reversed ? layer->steps - 1u - step : step;
    for (uint32_t i = 0; i < 4u * units; i++)
      gates[i] = layer->bias ? layer->bias[i] + layer->bias[4u * units + i] : 0.0f;
    products(&layer->inputs, in + (size_t)place * layer->width, gates, 4u * units, (uint8_t *)(gates + 4u * units));
    products(&layer->recurrence, last_h, gates, 4u * units, (uint8_t *)(gates + 4u * units));
    for (uint32_t i = 0; i < units; i++) {
      const float cell = hyperbolic_tangent(gates[3u * units + i]);
      last_c[i] = sigmoid(gates[2u * units + i]) * last_c[i] + sigmoid(gates[i]) * cell;
      last_h[i] = sigmoid(gates[units + i]) * hyperbolic_tangent(last_c[i]);
    }
    if (out) memcpy(out + (size_t)place * units, last_h, units * sizeof(float));
  }
}
