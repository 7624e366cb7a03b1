// bf16 linear layers on CPUs with avx512_bf16; chosen at run time.
#ifdef __AVX512F__
#pragma GCC target("avx512bf16")
#include "vec.h"

INLINE vf multiply_pairs(vf sum, vi w, vi a) { return (vf)_mm512_dpbf16_ps((__m512)sum, (__m512bh)w, (__m512bh)a); }

#include "bf16.h"
panel_rows *const BF16_DOT_ROWS[MAX_ROWS + 1] = {FOR_EACH_ROW_COUNT(TABLE_ENTRY)};
#endif
