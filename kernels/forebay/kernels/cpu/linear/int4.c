// int4 weights in groups of 32 along k, each with an fp16 scale and, if asked, an fp16 minimum; int8 activations with a
// scale for each 64 inputs of a row.
// A weight is scale (q - 8), or scale q + minimum. Byte b of [4 quads][48][4] of a group holds q of k = 4 quad + b % 4
// in its low half and of k + 16 in its high half. Group sums are exact integers; groups are added in order in fp32.
#include "dot8.h"
#include "panel.h"

#define LOW(v) ((v) & 0x0f0f0f0f)
#define HIGH(v) ((vi)((vu)(v) >> 4) & 0x0f0f0f0f)

#define SCALE_OF(r) in->scales[(row + r) * scales_a_row + group / (SCALE_GROUP / QUANT_GROUP)]

#define DECLARE(r) vf f##r##_0 = {0}, f##r##_1 = {0}, f##r##_2 = {0};
#define START(r)                                                                              \
  const vi s##r = vi_set(panel->mins ? 0 : -8 * in->group_sums[(row + r) * groups + group]); \
  vi c##r##_0 = s##r, c##r##_1 = s##r, c##r##_2 = s##r;
#define MULTIPLY(r)                                                              \
  {                                                                              \
    const vi low = vi_set(x[r * stride + quad]), high = vi_set(x[r * stride + quad + 4]); \
    c##r##_0 = dot_bytes(dot_bytes(c##r##_0, LOW(w0), low), HIGH(w0), high);     \
    c##r##_1 = dot_bytes(dot_bytes(c##r##_1, LOW(w1), low), HIGH(w1), high);     \
    c##r##_2 = dot_bytes(dot_bytes(c##r##_2, LOW(w2), low), HIGH(w2), high);     \
  }
#define ADD_GROUP(r)                              \
  {                                               \
    const vf scale = vf_set(SCALE_OF(r));         \
    f##r##_0 += vf_of_int(c##r##_0) * scale * d0; \
    f##r##_1 += vf_of_int(c##r##_1) * scale * d1; \
    f##r##_2 += vf_of_int(c##r##_2) * scale * d2; \
  }
#define ADD_MINS(r)                                                                    \
  {                                                                                    \
    const vf sum = vf_set((float)in->group_sums[(row + r) * groups + group] * SCALE_OF(r)); \
    f##r##_0 += sum * m0;                                                              \
    f##r##_1 += sum * m1;                                                              \
    f##r##_2 += sum * m2;                                                              \
  }
#define FINISH(r)                           \
  finish(panel, row + r, 0 * VL, f##r##_0); \
  finish(panel, row + r, 1 * VL, f##r##_1); \
  finish(panel, row + r, 2 * VL, f##r##_2);
#define KERNEL(R)                                                                                        \
  static void rows_##R(const struct panel *panel, const struct activation *in, int64_t row, int step) {   \
    const int64_t stride = in->width / 4, groups = panel->k / QUANT_GROUP;                               \
    const int64_t scales_a_row = scale_groups(in->width);                                                \
    const int32_t *x = (const int32_t *)in->data + row * stride;                                         \
    const int32_t *w = (const int32_t *)panel->weight;                                                   \
    const uint16_t *scales = (const uint16_t *)panel->scales, *mins = (const uint16_t *)panel->mins;     \
    const uint8_t *ahead = panel->ahead;                                                                 \
    ROWS_##R(DECLARE)                                                                                    \
    for (int64_t group = 0; group < groups; group++, x += 8, scales += PANEL) {                          \
      const vf d0 = vf_load_fp16(scales), d1 = vf_load_fp16(scales + VL), d2 = vf_load_fp16(scales + 2 * VL); \
      ROWS_##R(START)                                                                                    \
      for (int quad = 0; quad < 4; quad++, w += PANEL, ahead += step) {                                  \
        const vi w0 = vi_load(w), w1 = vi_load(w + VL), w2 = vi_load(w + 2 * VL);                        \
        prefetch_ahead(ahead, step);                                                                     \
        ROWS_##R(MULTIPLY)                                                                               \
      }                                                                                                  \
      ROWS_##R(ADD_GROUP)                                                                                \
      if (mins) {                                                                                        \
        const vf m0 = vf_load_fp16(mins), m1 = vf_load_fp16(mins + VL), m2 = vf_load_fp16(mins + 2 * VL); \
        ROWS_##R(ADD_MINS)                                                                               \
        mins += PANEL;                                                                                   \
      }                                                                                                  \
    }                                                                                                    \
    ROWS_##R(FINISH)                                                                                     \
  }

KERNEL(1)
KERNEL(2)
#if VL == 16
KERNEL(3)
KERNEL(4)
#endif
// Two accumulators for each output: more rows than these would not fit into registers.
panel_rows *const INT4_ROWS[MAX_ROWS + 1] = {
    [1] = rows_1, [2] = rows_2,
#if VL == 16
    [3] = rows_3, [4] = rows_4,
#endif
};
