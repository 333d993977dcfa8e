/* To about 2e-7 of its value. */
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
