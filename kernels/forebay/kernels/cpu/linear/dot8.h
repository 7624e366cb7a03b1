// Products of unsigned bytes of weights and signed bytes of activations, four at a time, into 32-bit sums.
#ifndef FOREBAY_DOT8_H
#define FOREBAY_DOT8_H

#include "vec.h"

#if VL == 16
INLINE vi dot_bytes(vi sum, vi unsigned_w, vi signed_a) {
  return (vi)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)unsigned_w, (__m512i)signed_a);
}
#else
// AVX2 adds pairs with 16-bit saturation. Weights up to 127 (after the caller made them so) cannot reach it:
// 2 x 127 x 127 < 32768.
INLINE vi dot_bytes(vi sum, vi unsigned_w, vi signed_a) {
  const __m256i pairs = _mm256_maddubs_epi16((__m256i)unsigned_w, (__m256i)signed_a);
  return sum + (vi)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}
#endif

// Weights stored as w + 128. The raw sum contains INT8_OFFSET times the sum of the activations, to be taken off.
#if VL == 16
#define INT8_OFFSET 128
INLINE vi dot_offset_bytes(vi sum, vi w, vi a) { return dot_bytes(sum, w, a); }
#else
#define INT8_OFFSET 0
INLINE vi dot_offset_bytes(vi sum, vi w, vi a) {
  const __m256i centred = _mm256_xor_si256((__m256i)w, _mm256_set1_epi8((char)0x80));
  return dot_bytes(sum, (vi)_mm256_abs_epi8(centred), (vi)_mm256_sign_epi8((__m256i)a, centred));
}
#endif

#endif
