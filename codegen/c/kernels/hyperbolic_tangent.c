/* To about 2e-7 of its value. */
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
