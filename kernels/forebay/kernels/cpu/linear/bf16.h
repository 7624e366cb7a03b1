// bf16 weights, [k / 2][48][2] in a panel; bf16 activations; fp32 sums. Included by a file that says what
// `multiply_pairs(sum, w, a)` is: 16 (or 8) columns x 2 consecutive k.
#include "panel.h"

#define DECLARE(r) vf c##r##_0 = {0}, c##r##_1 = {0}, c##r##_2 = {0};
#define MULTIPLY(r)                                \
  {                                                \
    const vi a = vi_set(x[r * stride + pair]);     \
    c##r##_0 = multiply_pairs(c##r##_0, w0, a);    \
    c##r##_1 = multiply_pairs(c##r##_1, w1, a);    \
    c##r##_2 = multiply_pairs(c##r##_2, w2, a);    \
  }
#define FINISH(r)                           \
  finish(panel, row + r, 0 * VL, c##r##_0); \
  finish(panel, row + r, 1 * VL, c##r##_1); \
  finish(panel, row + r, 2 * VL, c##r##_2);
#define KERNEL(R)                                                                                      \
  static void rows_##R(const struct panel *panel, const struct activation *in, int64_t row, int step) { \
    const int64_t stride = in->width / 2;                                                              \
    const int32_t *x = (const int32_t *)in->data + row * stride;                                       \
    const int32_t *w = (const int32_t *)panel->weight;                                                 \
    const uint8_t *ahead = panel->ahead;                                                               \
    ROWS_##R(DECLARE)                                                                                  \
    for (int64_t pair = 0; pair < panel->k / 2; pair++, w += PANEL, ahead += step) {                   \
      const vi w0 = vi_load(w), w1 = vi_load(w + VL), w2 = vi_load(w + 2 * VL);                        \
      prefetch_ahead(ahead, step);                                                                     \
      ROWS_##R(MULTIPLY)                                                                               \
    }                                                                                                  \
    ROWS_##R(FINISH)                                                                                   \
  }

FOR_EACH_ROW_COUNT(KERNEL)
