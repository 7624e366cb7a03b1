// fp32 pages.
#include "pairs.h"

#define multiply_words(sum, b, a) ((sum) + (vf)(b) * (vf)(a))
#define TABLES MULTIPLY_FP32
#include "multiply.h"
