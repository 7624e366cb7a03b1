// fp32 weights, [k][48] in a panel; fp32 activations.
#include "panel.h"

#define DECLARE(r) vf c##r##_0 = {0}, c##r##_1 = {0}, c##r##_2 = {0};
#define MULTIPLY(r) { const vf a = vf_set(x[r * stride + k]); c##r##_0 += a * w0; c##r##_1 += a * w1; c##r##_2 += a * w2; }
#define FINISH(r)                           \
  finish(panel, row + r, 0 * VL, c##r##_0); \
  finish(panel, row + r, 1 * VL, c##r##_1); \
  finish(panel, row + r, 2 * VL, c##r##_2);
#define KERNEL(R)                                                                                      \
  static void rows_##R(const struct panel *panel, const struct activation *in, int64_t row, int step) { \
    const int64_t stride = in->width;                                                                  \
    const float *x = (const float *)in->data + row * stride;                                           \
    const float *w = (const float *)panel->weight;                                                     \
    const uint8_t *ahead = panel->ahead;                                                               \
    ROWS_##R(DECLARE)                                                                                  \
    for (int64_t k = 0; k < panel->k; k++, w += PANEL, ahead += step) {                                \
      const vf w0 = vf_load(w), w1 = vf_load(w + VL), w2 = vf_load(w + 2 * VL);                        \
      prefetch_ahead(ahead, step);                                                                     \
      ROWS_##R(MULTIPLY)                                                                               \
    }                                                                                                  \
    ROWS_##R(FINISH)                                                                                   \
  }

FOR_EACH_ROW_COUNT(KERNEL)
panel_rows *const FP32_ROWS[MAX_ROWS + 1] = {FOR_EACH_ROW_COUNT(TABLE_ENTRY)};
