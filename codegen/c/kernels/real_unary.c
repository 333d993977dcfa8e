/* A function of each real number. */
enum { SIGMOID, TANH, EXP, SQRT, NEG, ABS, SQUARE, RECIPROCAL, LEAKY_RELU, HARD_SIGMOID, HARD_SWISH };

static float within_one(float x) { return x < 0.0f ? 0.0f : x > 1.0f ? 1.0f : x; }

static void real_unary(const float *in, float *out, uint32_t count, int function, float alpha,
                       float beta) {
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
      case LEAKY_RELU: out[i] = x < 0.0f ? alpha * x : x; break;
      case HARD_SIGMOID: out[i] = within_one(alpha * x + beta); break;
      case HARD_SWISH: out[i] = x * within_one(alpha * x + beta); break;
      default: out[i] = 1.0f / x; break;
    }
  }
}
