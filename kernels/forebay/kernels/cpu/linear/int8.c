// int8 weights with a scale an output column, [k / 4][48][4] bytes in a panel; int8 activations with a scale for each 64
// inputs of a row. The sum of such a group is an exact integer; groups are added in order in fp32.
#include "dot8.h"
#include "panel.h"

#define DECLARE(r) vf f##r##_0 = {0}, f##r##_1 = {0}, f##r##_2 = {0};
#define START(r)                                                                        \
  const vi s##r = vi_set(-INT8_OFFSET * in->sums[(row + r) * groups + group]);          \
  vi c##r##_0 = s##r, c##r##_1 = s##r, c##r##_2 = s##r;
#define MULTIPLY(r)                                  \
  {                                                  \
    const vi a = vi_set(x[r * stride + quad]);       \
    c##r##_0 = dot_offset_bytes(c##r##_0, w0, a);    \
    c##r##_1 = dot_offset_bytes(c##r##_1, w1, a);    \
    c##r##_2 = dot_offset_bytes(c##r##_2, w2, a);    \
  }
#define ADD_GROUP(r)                                                  \
  {                                                                   \
    const vf scale = vf_set(in->scales[(row + r) * groups + group]);  \
    f##r##_0 += vf_of_int(c##r##_0) * scale;                          \
    f##r##_1 += vf_of_int(c##r##_1) * scale;                          \
    f##r##_2 += vf_of_int(c##r##_2) * scale;                          \
  }
#define FINISH(r)                                        \
  finish_scaled(panel, row + r, 0 * VL, f##r##_0);       \
  finish_scaled(panel, row + r, 1 * VL, f##r##_1);       \
  finish_scaled(panel, row + r, 2 * VL, f##r##_2);
#define KERNEL(R)                                                                                      \
  static void rows_##R(const struct panel *panel, const struct activation *in, int64_t row, int step) { \
    const int64_t stride = in->width / 4, groups = scale_groups(in->width), quads = panel->k / 4;      \
    const int32_t *x = (const int32_t *)in->data + row * stride;                                       \
    const int32_t *w = (const int32_t *)panel->weight;                                                 \
    const uint8_t *ahead = panel->ahead;                                                               \
    ROWS_##R(DECLARE)                                                                                  \
    for (int64_t group = 0, quad = 0; group < groups; group++) {                                       \
      const int64_t next = quad + SCALE_GROUP / 4, end = next < quads ? next : quads;                  \
      ROWS_##R(START)                                                                                  \
      for (; quad < end; quad++, w += PANEL, ahead += step) {                                          \
        const vi w0 = vi_load(w), w1 = vi_load(w + VL), w2 = vi_load(w + 2 * VL);                      \
        prefetch_ahead(ahead, step);                                                                   \
        ROWS_##R(MULTIPLY)                                                                             \
      }                                                                                                \
      ROWS_##R(ADD_GROUP)                                                                              \
    }                                                                                                  \
    ROWS_##R(FINISH)                                                                                   \
  }

INLINE void finish_scaled(const struct panel *panel, int64_t row, int column, vf sum) {
  finish(panel, row, column, sum * vf_load((const float *)panel->scales + column));
}

KERNEL(1)
KERNEL(2)
#if VL == 16
KERNEL(3)
KERNEL(4)
#endif
// Two accumulators for each output: more rows than these would not fit into registers.
panel_rows *const INT8_ROWS[MAX_ROWS + 1] = {
    [1] = rows_1, [2] = rows_2,
#if VL == 16
    [3] = rows_3, [4] = rows_4,
#endif
};
