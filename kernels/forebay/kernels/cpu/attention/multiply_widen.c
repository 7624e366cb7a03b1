// bf16 pages on CPUs without bf16 instructions.
#include "pairs.h"

#define multiply_words multiply_pairs_widened
#define TABLES MULTIPLY_WIDEN
#include "multiply.h"
