// bf16 linear layers without bf16 instructions: both halves of a pair become fp32 by a shift or a mask.
#include "vec.h"

INLINE vf multiply_pairs(vf sum, vi w, vi a) {
  sum += (vf)(w << 16) * (vf)(a << 16);
  return sum + (vf)(w & (int32_t)0xffff0000) * (vf)(a & (int32_t)0xffff0000);
}

#include "bf16.h"
panel_rows *const BF16_WIDEN_ROWS[MAX_ROWS + 1] = {FOR_EACH_ROW_COUNT(TABLE_ENTRY)};
