// One vector type for both builds: 16 floats with AVX-512 (v4), 8 with AVX2 (v3).
// Arithmetic uses GCC's vector extension; only what has no operator is an intrinsic here.
#ifndef FOREBAY_VEC_H
#define FOREBAY_VEC_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#ifdef __AVX512F__
#define VL 16
#else
#define VL 8
#endif

typedef float vf __attribute__((vector_size(4 * VL), aligned(4), may_alias));
typedef int32_t vi __attribute__((vector_size(4 * VL), aligned(4), may_alias));
typedef uint32_t vu __attribute__((vector_size(4 * VL), aligned(4), may_alias));

#define INLINE static inline __attribute__((always_inline))

INLINE vf vf_load(const float *p) { return *(const vf *)p; }
INLINE void vf_store(float *p, vf x) { *(vf *)p = x; }
INLINE vf vf_set(float x) { return (vf){0} + x; }
INLINE vi vi_set(int32_t x) { return (vi){0} + x; }
INLINE vi vi_load(const void *p) { return *(const vi *)p; }
INLINE vi vi_select(vi mask, vi yes, vi no) { return (mask & yes) | (~mask & no); }
INLINE vf vf_select(vi mask, vf yes, vf no) { return (vf)vi_select(mask, (vi)yes, (vi)no); }

#if VL == 16
INLINE vf vf_max(vf a, vf b) { return (vf)_mm512_max_ps((__m512)a, (__m512)b); }
INLINE float vf_sum(vf a) { return _mm512_reduce_add_ps((__m512)a); }
INLINE float vf_highest(vf a) { return _mm512_reduce_max_ps((__m512)a); }
INLINE int32_t vi_sum(vi a) { return _mm512_reduce_add_epi32((__m512i)a); }
INLINE vi vf_round(vf a) { return (vi)_mm512_cvtps_epi32((__m512)a); }
INLINE vf vf_of_int(vi a) { return (vf)_mm512_cvtepi32_ps((__m512i)a); }
INLINE vf vf_load_bf16(const uint16_t *p) {
  return (vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16);
}
INLINE vf vf_load_fp16(const uint16_t *p) { return (vf)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
INLINE void store_low_halves(uint16_t *p, vu x) {
  _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16((__m512i)x));
}
INLINE void store_low_bytes(int8_t *p, vi x) { _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8((__m512i)x)); }
INLINE __mmask16 first_lanes(int n) { return (__mmask16)((1u << n) - 1u); }
INLINE vf vf_load_first(const float *p, int n) { return (vf)_mm512_maskz_loadu_ps(first_lanes(n), p); }
INLINE void vf_store_first(float *p, vf x, int n) { _mm512_mask_storeu_ps(p, first_lanes(n), (__m512)x); }
#else
INLINE vf vf_max(vf a, vf b) { return (vf)_mm256_max_ps((__m256)a, (__m256)b); }
// Halves are folded in the same pattern as the AVX-512 reduction folds them.
INLINE float vf_sum(vf a) {
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128((__m256)a), _mm256_extractf128_ps((__m256)a, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
INLINE float vf_highest(vf a) {
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128((__m256)a), _mm256_extractf128_ps((__m256)a, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
INLINE int32_t vi_sum(vi a) {
  const __m128i four = _mm_add_epi32(_mm256_castsi256_si128((__m256i)a), _mm256_extracti128_si256((__m256i)a, 1));
  const __m128i two = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 0xb1)));
}
INLINE vi vf_round(vf a) { return (vi)_mm256_cvtps_epi32((__m256)a); }
INLINE vf vf_of_int(vi a) { return (vf)_mm256_cvtepi32_ps((__m256i)a); }
INLINE vf vf_load_bf16(const uint16_t *p) {
  return (vf)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16);
}
INLINE vf vf_load_fp16(const uint16_t *p) { return (vf)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }
INLINE void store_low_halves(uint16_t *p, vu x) {
  const __m256i wide = (__m256i)x;
  _mm_storeu_si128((__m128i *)p, _mm_packus_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1)));
}
INLINE void store_low_bytes(int8_t *p, vi x) {
  const __m256i wide = (__m256i)x;
  const __m128i halves = _mm_packs_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1));
  _mm_storel_epi64((__m128i *)p, _mm_packs_epi16(halves, halves));
}
INLINE __m256i first_lanes(int n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
INLINE vf vf_load_first(const float *p, int n) { return (vf)_mm256_maskload_ps(p, first_lanes(n)); }
INLINE void vf_store_first(float *p, vf x, int n) { _mm256_maskstore_ps(p, first_lanes(n), (__m256)x); }
#endif

INLINE vf vf_abs(vf a) { return (vf)((vi)a & 0x7fffffff); }

// Round to nearest even, as torch does; NaN is not kept as NaN.
INLINE vu vf_to_bf16(vf x) {
  const vu bits = (vu)x;
  return (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
}
INLINE void vf_store_bf16(uint16_t *p, vf x) { store_low_halves(p, vf_to_bf16(x)); }

INLINE float bf16_to_float(uint16_t half) {
  const uint32_t bits = (uint32_t)half << 16;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}
INLINE uint16_t float_to_bf16(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// e^x for x <= 88, relative error below 3e-7 by a degree-6 polynomial; exactly 0 for x < -87, also for -inf, so that a
// masked score adds nothing. The large constant rounds to an integer: -ffast-math would fold it away.
INLINE vf vf_exp(vf x) {
  const vi alive = (vi)(x >= -87.0f);
  const vf scaled = vf_max(x, vf_set(-87.0f)) * 1.44269504f;
  const vf shifted = scaled + 12582912.0f;
  const vi exponent = (vi)shifted - 0x4B400000;
  const vf r = scaled - (shifted - 12582912.0f);
  vf p = vf_set(1.540353e-4f);
  p = p * r + 1.3333558e-3f;
  p = p * r + 9.6181291e-3f;
  p = p * r + 5.5504109e-2f;
  p = p * r + 0.24022651f;
  p = p * r + 0.69314718f;
  p = p * r + 1.0f;
  return (vf)(((vi)p + (exponent << 23)) & alive);
}

INLINE vf vf_tanh(vf x) {
  const vf bounded = vf_max(vf_set(-20.0f), -vf_max(vf_set(-20.0f), -x));
  return 1.0f - 2.0f / (vf_exp(bounded + bounded) + 1.0f);
}

#endif
