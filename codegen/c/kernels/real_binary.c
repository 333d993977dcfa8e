/* Two tensors of real numbers. */
enum { ADD, SUB, MUL, DIV, MAX, MIN };

static void real_binary(const struct pair *pair, const float *a, const float *b, float *out, int function) {
  for (uint32_t i = 0; i < pair->sizes[0]; i++)
    for (uint32_t j = 0; j < pair->sizes[1]; j++)
      for (uint32_t k = 0; k < pair->sizes[2]; k++) {
        const float *p = a + (int32_t)i * pair->first[0] + (int32_t)j * pair->first[1] + (int32_t)k * pair->first[2];
        const float *q = b + (int32_t)i * pair->second[0] + (int32_t)j * pair->second[1] + (int32_t)k * pair->second[2];
        for (uint32_t l = 0; l < pair->sizes[3]; l++, p += pair->first[3], q += pair->second[3]) {
          const float x = *p, y = *q;
          *out++ = function == ADD   ? x + y
                   : function == SUB ? x - y
                   : function == MUL ? x * y
                   : function == DIV ? x / y
                   : function == MAX ? (x > y ? x : y)
                                     : (x < y ? x : y);
        }
      }
}
