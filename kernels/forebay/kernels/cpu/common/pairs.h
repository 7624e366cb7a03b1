// Products of pairs of bf16 numbers that share a 32-bit word, added to fp32.
#ifndef FOREBAY_PAIRS_H
#define FOREBAY_PAIRS_H

#include "vec.h"

// Both halves become fp32 by a shift or a mask.
INLINE vf multiply_pairs_widened(vf sum, vi b, vi a) {
  sum += (vf)(b << 16) * (vf)(a << 16);
  return sum + (vf)(b & (int32_t)0xffff0000) * (vf)(a & (int32_t)0xffff0000);
}

// Only in files that ask the compiler for avx512bf16.
#ifdef __AVX512BF16__
INLINE vf multiply_pairs_dot(vf sum, vi b, vi a) {
  return (vf)_mm512_dpbf16_ps((__m512)sum, (__m512bh)b, (__m512bh)a);
}
#endif

#endif
