/* To about 2e-7 of its value. */
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
