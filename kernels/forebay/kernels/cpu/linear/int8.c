// int8 weights with a scale an output column, [k / 4][48][4] bytes in a panel; int8 activations with a scale a row.
// Sums are exact integers, so results differ between CPUs only in the last fp32 rounding.
#include "dot8.h"
#include "panel.h"

#define DECLARE(r) vi c##r##_0 = {0}, c##r##_1 = {0}, c##r##_2 = {0};
#define MULTIPLY(r)                                  \
  {                                                  \
    const vi a = vi_set(x[r * stride + quad]);       \
    c##r##_0 = dot_offset_bytes(c##r##_0, w0, a);    \
    c##r##_1 = dot_offset_bytes(c##r##_1, w1, a);    \
    c##r##_2 = dot_offset_bytes(c##r##_2, w2, a);    \
  }
#define FINISH(r)                                   \
  finish_int(panel, in, row + r, 0 * VL, c##r##_0); \
  finish_int(panel, in, row + r, 1 * VL, c##r##_1); \
  finish_int(panel, in, row + r, 2 * VL, c##r##_2);
#define KERNEL(R)                                                                                      \
  static void rows_##R(const struct panel *panel, const struct activation *in, int64_t row, int step) { \
    const int64_t stride = in->width / 4;                                                              \
    const int32_t *x = (const int32_t *)in->data + row * stride;                                       \
    const int32_t *w = (const int32_t *)panel->weight;                                                 \
    const uint8_t *ahead = panel->ahead;                                                               \
    ROWS_##R(DECLARE)                                                                                  \
    for (int64_t quad = 0; quad < panel->k / 4; quad++, w += PANEL, ahead += step) {                   \
      const vi w0 = vi_load(w), w1 = vi_load(w + VL), w2 = vi_load(w + 2 * VL);                        \
      prefetch_ahead(ahead, step);                                                                     \
      ROWS_##R(MULTIPLY)                                                                               \
    }                                                                                                  \
    ROWS_##R(FINISH)                                                                                   \
  }

INLINE void finish_int(const struct panel *panel, const struct activation *in, int64_t row, int column, vi sum) {
  const vf scale = vf_load((const float *)panel->scales + column) * in->scales[row];
  finish(panel, row, column, vf_of_int(sum - INT8_OFFSET * in->sums[row]) * scale);
}

FOR_EACH_ROW_COUNT(KERNEL)
panel_rows *const INT8_ROWS[MAX_ROWS + 1] = {FOR_EACH_ROW_COUNT(TABLE_ENTRY)};
