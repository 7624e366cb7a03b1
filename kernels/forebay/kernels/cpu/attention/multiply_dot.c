// bf16 pages on CPUs with avx512_bf16; chosen at run time.
#ifdef __AVX512F__
#pragma GCC target("avx512bf16")
#include "pairs.h"

#define multiply_words multiply_pairs_dot
#define TABLES MULTIPLY_DOT
#include "multiply.h"
#endif
