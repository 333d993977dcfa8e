/* Functions of real numbers, to about 2e-7 of their value. */
static float exponential(float x) {
  float whole, part, result;
  int32_t bits;
  if (x != x) return x;
  if (x > 88.72284f) x = 88.72284f;
  if (x < -87.33654f) x = -87.33654f;
  bits = nearest(x * 1.44269504f);
  whole = (float)bits;
  part = x - whole * 0.693359375f + whole * 2.12194440e-4f;
  result = 1.9875691500e-4f * part + 1.3981999507e-3f;
  result = result * part + 8.3334519073e-3f;
  result = result * part + 4.1665795894e-2f;
  result = result * part + 1.6666665459e-1f;
  result = result * part + 5.0000001201e-1f;
  result = result * part * part + part + 1.0f;
  bits = bits > 127 ? 127 : bits; /* twice in the end, for the largest */
  {
    const int32_t power = (bits + 127) * 0x800000;
    memcpy(&whole, &power, 4);
  }
  return nearest(x * 1.44269504f) > 127 ? result * whole * 2.0f : result * whole;
}

static float sigmoid(float x) { return 1.0f / (1.0f + exponential(-x)); }

static float hyperbolic_tangent(float x) {
  const float size = x < 0.0f ? -x : x, square = x * x;
  float result;
  if (size > 0.625f) {
    result = 1.0f - 2.0f / (exponential(2.0f * size) + 1.0f);
    return x < 0.0f ? -result : result;
  }
  result = -5.70498872745e-3f * square + 2.06390887954e-2f;
  result = result * square - 5.37397155531e-2f;
  result = result * square + 1.33314422036e-1f;
  result = result * square - 3.33332819422e-1f;
  return result * square * x + x;
}

static float square_root(float x) {
  float result;
  int32_t bits;
  if (!(x > 0.0f)) return x == 0.0f ? x : (x - x) / 0.0f;
  if (x > 3.4028235e38f) return x;
  memcpy(&bits, &x, 4);
  bits = (bits >> 1) + 0x1FBD1DF5;
  memcpy(&result, &bits, 4);
  for (bits = 0; bits < 3; bits++) result = 0.5f * (result + x / result);
  return result;
}
