// bf16 linear layers on CPUs without bf16 instructions.
#include "pairs.h"

#define multiply_pairs multiply_pairs_widened
#include "bf16.h"
panel_rows *const BF16_WIDEN_ROWS[MAX_ROWS + 1] = {FOR_EACH_ROW_COUNT(TABLE_ENTRY)};
