// The inner products of attention: C[R][columns] (+)= A[R][k] B[k][columns], with B read from the pages as it lies.
// A and B consist of 32-bit words that hold one fp32, or two bf16 that are consecutive along k. Included by a file that
// says what `multiply_words(sum, b, a)` and TABLES are. Products are added in the order of k with one accumulator for
// each output, so that the bits of a row depend neither on R nor on how a prompt was cut.
#include "attend.h"
#include "rows.h"

// 16 columns: one vector with AVX-512, two with AVX2.
#if VL == 16
#define NARROW_DECLARE(r) vf c##r##_0 = add ? vf_load(c + r * c_stride) : vf_set(0.0f);
#define NARROW_MULTIPLY(r) c##r##_0 = multiply_words(c##r##_0, w0, vi_set(a[r * a_stride + i]));
#define NARROW_STORE(r) vf_store(c + r * c_stride, c##r##_0);
#define NARROW_LOAD const vi w0 = vi_load(b);
#else
#define NARROW_DECLARE(r)                                       \
  vf c##r##_0 = add ? vf_load(c + r * c_stride) : vf_set(0.0f); \
  vf c##r##_1 = add ? vf_load(c + r * c_stride + VL) : vf_set(0.0f);
#define NARROW_MULTIPLY(r)                        \
  {                                               \
    const vi x = vi_set(a[r * a_stride + i]);     \
    c##r##_0 = multiply_words(c##r##_0, w0, x);   \
    c##r##_1 = multiply_words(c##r##_1, w1, x);   \
  }
#define NARROW_STORE(r)                 \
  vf_store(c + r * c_stride, c##r##_0); \
  vf_store(c + r * c_stride + VL, c##r##_1);
#define NARROW_LOAD const vi w0 = vi_load(b), w1 = vi_load(b + VL);
#endif

#define NARROW(R)                                                                                                 \
  static void narrow_##R(const int32_t *a, int64_t a_stride, const int32_t *b, int64_t b_stride, int64_t k, float *c, \
                         int64_t c_stride, int add) {                                                             \
    ROWS_##R(NARROW_DECLARE)                                                                                      \
    for (int64_t i = 0; i < k; i++, b += b_stride) {                                                              \
      NARROW_LOAD                                                                                                 \
      ROWS_##R(NARROW_MULTIPLY)                                                                                   \
    }                                                                                                             \
    ROWS_##R(NARROW_STORE)                                                                                        \
  }

NARROW(1) NARROW(2) NARROW(3) NARROW(4) NARROW(5) NARROW(6)

#if VL == 16
// 4 x 16 columns at once, each of the four with its own place.
#define WIDE_DECLARE(r)                                              \
  vf c##r##_0 = add ? vf_load(c + r * c_stride) : vf_set(0.0f);      \
  vf c##r##_1 = add ? vf_load(c + r * c_stride + 16) : vf_set(0.0f); \
  vf c##r##_2 = add ? vf_load(c + r * c_stride + 32) : vf_set(0.0f); \
  vf c##r##_3 = add ? vf_load(c + r * c_stride + 48) : vf_set(0.0f);
#define WIDE_MULTIPLY(r)                        \
  {                                             \
    const vi x = vi_set(a[r * a_stride + i]);   \
    c##r##_0 = multiply_words(c##r##_0, w0, x); \
    c##r##_1 = multiply_words(c##r##_1, w1, x); \
    c##r##_2 = multiply_words(c##r##_2, w2, x); \
    c##r##_3 = multiply_words(c##r##_3, w3, x); \
  }
#define WIDE_STORE(r)                        \
  vf_store(c + r * c_stride, c##r##_0);      \
  vf_store(c + r * c_stride + 16, c##r##_1); \
  vf_store(c + r * c_stride + 32, c##r##_2); \
  vf_store(c + r * c_stride + 48, c##r##_3);
#define WIDE(R)                                                                                                     \
  static void wide_##R(const int32_t *a, int64_t a_stride, const int32_t *const b[4], int64_t b_stride, int64_t k, \
                       float *c, int64_t c_stride, int add) {                                                       \
    const int32_t *b0 = b[0], *b1 = b[1], *b2 = b[2], *b3 = b[3];                                                   \
    ROWS_##R(WIDE_DECLARE)                                                                                          \
    for (int64_t i = 0; i < k; i++) {                                                                               \
      const int64_t at = i * b_stride;                                                                              \
      const vi w0 = vi_load(b0 + at), w1 = vi_load(b1 + at), w2 = vi_load(b2 + at), w3 = vi_load(b3 + at);           \
      ROWS_##R(WIDE_MULTIPLY)                                                                                       \
    }                                                                                                               \
    ROWS_##R(WIDE_STORE)                                                                                            \
  }

WIDE(1) WIDE(2) WIDE(3) WIDE(4) WIDE(5) WIDE(6)
#endif

const struct multiply TABLES = {
    .narrow = {0, narrow_1, narrow_2, narrow_3, narrow_4, narrow_5, narrow_6},
#if VL == 16
    .wide = {0, wide_1, wide_2, wide_3, wide_4, wide_5, wide_6},
#endif
};
