// bf16 linear layers on CPUs with avx512_bf16; chosen at run time.
#ifdef __AVX512F__
#pragma GCC target("avx512bf16")
#include "pairs.h"

#define multiply_pairs multiply_pairs_dot
#include "bf16.h"
panel_rows *const BF16_DOT_ROWS[MAX_ROWS + 1] = {FOR_EACH_ROW_COUNT(TABLE_ENTRY)};
#endif
