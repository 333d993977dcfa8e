/* A function of each real number. */
enum { SIGMOID, TANH, EXP, SQRT, NEG, ABS, SQUARE, RECIPROCAL };

static void real_unary(const float *in, float *out, uint32_t count, int function) {
  for (uint32_t i = 0; i < count; i++) {
    const float x = in[i];
    switch (function) {
      case SIGMOID: out[i] = sigmoid(x); break;
      case TANH: out[i] = hyperbolic_tangent(x); break;
      case EXP: out[i] = exponential(x); break;
      case SQRT: out[i] = square_root(x); break;
      case NEG: out[i] = -x; break;
      case ABS: out[i] = x < 0.0f ? -x : x; break;
      case SQUARE: out[i] = x * x; break;
      default: out[i] = 1.0f / x; break;
    }
  }
}
