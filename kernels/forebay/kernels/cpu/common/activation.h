// Writes one row of fp32 as the activation that the next linear layer wants. Each row is handled alone and in a fixed
// order, so its bits do not depend on the other rows.
#ifndef FOREBAY_ACTIVATION_H
#define FOREBAY_ACTIVATION_H

#include "vec.h"
#include "ops.h"

INLINE void row_to_bf16(const float *x, uint16_t *out, int64_t width) {
  int64_t i = 0;
  for (; i + VL <= width; i += VL) vf_store_bf16(out + i, vf_load(x + i));
  for (; i < width; i++) out[i] = float_to_bf16(x[i]);
}

INLINE void sum_groups(const int8_t *row, int32_t *sums, int64_t width) {
  for (int64_t g = 0; g < width / QUANT_GROUP; g++) {
    int32_t sum = 0;
    for (int i = 0; i < QUANT_GROUP; i++) sum += row[g * QUANT_GROUP + i];
    sums[g] = sum;
  }
}

// q = round(x * 127 / max|x|) within each group of 64; the width is a multiple of 16. One scale for a whole row would let
// a single outlier take the precision of all others.
INLINE void row_to_int8(const float *x, const struct activation *out, int64_t row) {
  const int64_t width = out->width, groups = scale_groups(width);
  int8_t *data = (int8_t *)out->data + row * width;
  for (int64_t group = 0; group < groups; group++) {
    const int64_t begin = group * SCALE_GROUP, end = begin + SCALE_GROUP < width ? begin + SCALE_GROUP : width;
    vf highest = vf_set(0.0f);
    for (int64_t i = begin; i < end; i += VL) highest = vf_max(highest, vf_abs(vf_load(x + i)));
    const float most = vf_highest(highest);
    const float inverse = most > 0.0f ? 127.0f / most : 0.0f;
    vi sum = vi_set(0);
    for (int64_t i = begin; i < end; i += VL) {
      const vi q = vf_round(vf_load(x + i) * inverse);
      sum += q;
      store_low_bytes(data + i, q);
    }
    out->scales[row * groups + group] = most / 127.0f;
    out->sums[row * groups + group] = vi_sum(sum);
  }
  if (out->group_sums) sum_groups(data, out->group_sums + row * (width / QUANT_GROUP), width);
}

INLINE void store_activation(const float *x, const struct activation *out, int64_t row) {
  const int64_t width = out->width;
  if (out->kind == INT8) row_to_int8(x, out, row);
  else if (out->kind == BF16) row_to_bf16(x, (uint16_t *)out->data + row * width, width);
  else memcpy((float *)out->data + row * width, x, (size_t)width * sizeof(float));
}

#endif
