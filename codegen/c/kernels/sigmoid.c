static float sigmoid(float x) { return 1.0f / (1.0f + exponential(-x)); }
